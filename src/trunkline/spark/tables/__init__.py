"""The tables of the warehouse: one module a table, and `catalog.py`, which lists them in order."""
