"""Verifying and repairing a journal. Nothing here runs while a journal is in normal use, except `quarantine.py`."""
