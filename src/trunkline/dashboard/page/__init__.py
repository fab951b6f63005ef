"""The page: what a hub or a journal holds, in a browser. A process of its own, started by `trunkline page`."""
