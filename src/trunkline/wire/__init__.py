"""The wire protocol between a hub and its clients, as pure code over frames."""
