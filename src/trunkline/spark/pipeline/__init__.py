"""A run of the pipeline: the ingest of a journal, the choice of hours to rebuild, and the warehouse."""
