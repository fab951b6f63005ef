"""The ZeroMQ transports: one ROUTER at the hub, one DEALER at each client."""
