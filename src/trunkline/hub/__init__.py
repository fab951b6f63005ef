"""The hub: the process that others connect to. It forwards batches and enforces the contracts of channels."""
