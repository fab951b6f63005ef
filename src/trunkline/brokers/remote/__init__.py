"""What every remote broker needs: outgoing batches, incoming feeds, and restoring both after a reconnection."""
