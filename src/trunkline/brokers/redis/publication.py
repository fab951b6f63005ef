"""A batch on its way to a Redis server."""

from __future__ import annotations


class Publication:
    """A batch of a topic that is not stored, under way."""

    __slots__ = ("attempt", "data", "is_stored", "known", "number", "topic")

    def __init__(self, number: int, topic: str, data: bytes) -> None:
        self.number = number
        self.topic = topic
        self.data = data
        self.attempt = 0
        self.is_stored = False
        """Whether its topic was found to be stored, after all."""
        self.known = 0
        """How many patterns of stored topics were known when it was sent."""
