"""Redis and Valkey as a broker: pub/sub for plain topics, Streams for stored ones."""
