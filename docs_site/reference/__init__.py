"""Reference pages that are generated from the code, so they are never stale."""
