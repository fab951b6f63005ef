"""The wire protocol: what a hub and its clients say to each other, as pure code over frames."""
