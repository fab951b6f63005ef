"""Watchers: which clients are notified when the subscriptions to a topic change. Pure.

This is the inverse of a TopicTree, which finds patterns by topic: here topics are found by pattern. The cost depends on
the topics that match, not on all that are watched. With 10,000 topics, testing each of them took 20 ms for every
subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _WatchNode(Generic[T]):
    __slots__ = ("below", "topic", "watchers")

    def __init__(self) -> None:
        self.below: dict[str, _WatchNode[T]] = {}
        self.topic = ""
        self.watchers: set[T] = set()


class Watchers(Generic[T]):
    def __init__(self) -> None:
        self._root: _WatchNode[T] = _WatchNode()

    def add(self, topic: str, watcher: T) -> None:
        node = self._root
        for token in topic.split("."):
            node = node.below.setdefault(token, _WatchNode())
        node.topic = topic
        node.watchers.add(watcher)

    def discard(self, topic: str, watcher: T) -> None:
        path = [self._root]
        tokens = topic.split(".")
        for token in tokens:
            node = path[-1].below.get(token)
            if node is None:
                return
            path.append(node)
        path[-1].watchers.discard(watcher)
        for above, token, node in zip(path[-2::-1], tokens[::-1], path[:0:-1], strict=True):
            if node.watchers or node.below:
                break
            del above.below[token]

    def matching(self, *patterns: str) -> dict[str, set[T]]:
        """The topics that match any of the patterns, with their watchers."""
        return {node.topic: node.watchers for pattern in patterns for node in self._walk(pattern) if node.watchers}

    def _walk(self, pattern: str) -> Iterator[_WatchNode[T]]:
        nodes = [self._root]
        for token in pattern.split("."):
            if token == ">":
                below = [each for node in nodes for each in node.below.values()]
                while below:
                    node = below.pop()
                    yield node
                    below.extend(node.below.values())
                return
            if token == "*":
                nodes = [each for node in nodes for each in node.below.values()]
            else:
                nodes = [node.below[token] for node in nodes if token in node.below]
        yield from nodes
