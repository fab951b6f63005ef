"""Reference pages that are made of the code: they cannot be older than it."""
