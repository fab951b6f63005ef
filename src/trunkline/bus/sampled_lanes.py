"""The lanes of a bus whose only hook applies to a share of the messages: the others take the fast path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trunkline.brokers.broker import Lane
from trunkline.hooks.head import HeadSampling


class TopicLanes(Protocol):
    """The interface of lanes by topic, for messages that need no hook. A mapping implements it."""

    def get(self, topic: str, /) -> Lane | None: ...


class SampledLanes:
    """Each `get` decides for one publish.

    It returns None if the message is sampled, or if the topic has no lane yet.
    """

    __slots__ = ("head", "known")

    def __init__(self, known: Mapping[str, Lane], head: HeadSampling) -> None:
        self.known = known
        """Lanes for messages that are never sampled: answers to requests that were not sampled."""
        self.head = head

    def get(self, topic: str, /) -> Lane | None:
        head = self.head
        if context := head.current(None):
            return self.known.get(topic) if context is head.unsampled else None
        if not head.left or (lane := self.known.get(topic)) is None:
            return None
        head.left -= 1
        return lane
