"""The hub: the process that others connect to. It moves batches between them and keeps the contracts of channels."""
