"""The broker that is a hub elsewhere: the same bus, in another process or on another machine."""
