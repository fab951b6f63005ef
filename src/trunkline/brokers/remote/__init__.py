"""The common part of all remote brokers: outgoing batches, incoming feeds, and restoring both after a reconnection."""
