"""NATS as a broker: core NATS for plain topics, JetStream for stored ones."""
