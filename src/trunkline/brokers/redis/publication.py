"""A batch that is being sent to a Redis server."""

from __future__ import annotations


class Publication:
    """A batch that was published on a topic that is not stored, and is not confirmed."""

    __slots__ = ("attempt", "data", "is_stored", "known", "number", "topic")

    def __init__(self, number: int, topic: str, data: bytes) -> None:
        self.number = number
        self.topic = topic
        self.data = data
        self.attempt = 0
        self.is_stored = False
        """Whether its topic turned out to be stored."""
        self.known = 0
        """How many patterns of stored topics were known when it was sent."""
