"""The keys of a hub and of its clients: certificates, CURVE key pairs, and the register of all keys."""
