"""The tables of the warehouse: one module per table, and `catalog.py`, which lists them in order."""
