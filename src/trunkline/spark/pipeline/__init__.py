"""A run of the pipeline: what it reads from a journal, which hours it makes again, and the warehouse it writes."""
