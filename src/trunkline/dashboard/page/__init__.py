"""The page: a view of a hub or a journal in a browser. `trunkline page` runs it in its own process."""
