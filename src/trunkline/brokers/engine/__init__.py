"""The common part of brokers on an existing engine (NATS, Redis). There is no hub, so its tasks are done here."""
