"""Redis and Valkey as a broker: pub/sub for plain topics, Streams for what is stored."""
