"""The demo: one small shop in several processes, told and checked step by step. `make demo` runs it.

Read story.py first, then books.py: they are the chapters. The shop itself is in agents.py, actors.py and spark.py.
The rest is the stage: processes.py starts and ends processes, narrator.py prints, output.py keeps the result.
"""
