"""Benchmarks: one file, one question, the peers in the same run. `python -m benchmarks` lists them."""
