"""NATS as a broker: plain topics on core NATS, what is stored on JetStream."""
