"""What brokers on an existing engine (NATS, Redis) share: there is no hub, so what a hub would keep is kept here."""
