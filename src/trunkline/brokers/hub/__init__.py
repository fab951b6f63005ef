"""The client of a hub as a broker: the same bus, with a hub in another process or on another machine."""
