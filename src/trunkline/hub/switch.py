"""The switch: from a topic to those who get its batches, found once and kept until subscriptions change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from trunkline.clock import Sequence
from trunkline.delivery.inbox import Overflow
from trunkline.hub.access import reaches
from trunkline.hub.outlet import Outlet
from trunkline.hub.parcel import Parcel
from trunkline.hub.recent import Recent
from trunkline.topic import (
    BROADCAST,
    ENDPOINT_PREFIX,
    REPLY_PREFIX,
    TopicTree,
    matches,
    validate_pattern,
    validate_topic,
)


class Engine(Protocol):
    """Takes what needs more than a switch: topics that are stored, groups, durable subscriptions."""

    def takes(self, topic: str) -> bool: ...

    def stores(self, topic: str) -> bool:
        """Whether messages here are stored before anybody sees them."""

    def take(self, parcel: Parcel) -> None:
        """Give it to those it knows."""

    def store(self, parcel: Parcel, hand_out: Callable[[Parcel], None]) -> None:
        """Store and number it, give it to those it knows, and call `hand_out`."""

    def names(self, topic: str) -> list[str]: ...

    def link(self, pattern: str, topic: str) -> None:
        """From now on, members that listen on `topic` get what matches, too."""

    def unlink(self, pattern: str, topic: str) -> None: ...


class Link:
    """What matches its pattern also goes to whoever listens on `topic`."""

    __slots__ = ("topic",)

    def __init__(self, topic: str) -> None:
        self.topic = topic


class Route:
    __slots__ = ("confirm", "engine", "heard", "outlets", "published", "stored", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.published = 0
        self.outlets: tuple[Outlet, ...] = ()
        self.engine = False
        self.stored = False
        self.heard = False
        self.confirm = False
        """Whether publishers must wait to hear what became of a batch."""


class Switch:
    def __init__(self, engine: Engine, numbers: Sequence, window: int, max_topics: int) -> None:
        self._engine = engine
        self._numbers = numbers
        self._window = window
        self._max_topics = max_topics
        self._tree: TopicTree[Outlet | Link] = TopicTree()
        self._links: dict[tuple[str, str], tuple[Link, int]] = {}
        self._routes: dict[str, Route] = {}
        self.private_replies = False
        """Whether an answer goes to who listens on its very topic, and to nobody else."""
        self.published = 0
        """Messages, on all topics."""
        self.recent = Recent()

    def publish(self, parcel: Parcel) -> None:
        route = self._routes.get(parcel.topic)
        if route is None:
            route = self.route(parcel.topic)
        route.published += parcel.count
        self.published += parcel.count
        if route.stored:
            self._engine.store(parcel, self._hand_out)
        else:
            numbers = self._numbers
            parcel.first = numbers.last + 1
            numbers.last += parcel.count
            self.recent.remember(parcel)
            if route.engine:
                self._engine.take(parcel)
            for outlet in route.outlets:
                outlet.offer(parcel)
        parcel.done()

    def _hand_out(self, parcel: Parcel) -> None:
        # Looked up anew: subscriptions may have changed while it was written.
        for outlet in self.route(parcel.topic).outlets:
            outlet.offer(parcel)

    def route(self, topic: str) -> Route:
        """Raises InvalidTopic."""
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= self._max_topics:
                self._routes.clear()
            route = self._routes[topic] = Route(validate_topic(topic))
            route.outlets = tuple(self._listeners(topic))
            route.engine = self._engine.takes(topic)
            route.stored = self._engine.stores(topic)
            route.heard = any(outlet.hears for outlet in route.outlets) or bool(self._engine.names(topic))
            route.confirm = route.stored or any(map(self._is_strict, route.outlets)) or route.engine
        return route

    def _is_strict(self, outlet: Outlet) -> bool:
        """Whether its publishers must hear at once: a window ahead of a smaller inbox would make a joke of its size."""
        return outlet.overflow is Overflow.REJECT or (
            outlet.overflow is Overflow.BLOCK and outlet.capacity < self._window
        )

    def _listeners(self, topic: str) -> Iterable[Outlet]:
        found: dict[Outlet, None] = {}
        if self.private_replies and topic.startswith(REPLY_PREFIX):
            matching = self._tree.match(topic)
            return [each for each in matching if isinstance(each, Outlet) and reaches(each.pattern, topic)]
        for entry in self._tree.match(topic):
            if isinstance(entry, Outlet):
                found[entry] = None
                continue
            # One step only: a link leads to an endpoint, never on to another link.
            for linked in self._tree.match(entry.topic):
                if isinstance(linked, Outlet):
                    found[linked] = None
        return found

    def attach(self, outlet: Outlet) -> None:
        for pattern in patterns(outlet.pattern):
            self._tree.add(pattern, outlet)
        self.forget()

    def detach(self, outlet: Outlet) -> None:
        for pattern in patterns(outlet.pattern):
            self._tree.remove(pattern, outlet)
        self.forget()

    def link(self, pattern: str, topic: str) -> bool:
        """False if that was so already. Several clients may want the same one: it goes with the last of them."""
        key = (validate_pattern(pattern), validate_topic(topic))
        known, users = self._links.get(key, (Link(topic), 0))
        self._links[key] = (known, users + 1)
        if users:
            return False
        self._tree.add(pattern, known)
        self._engine.link(pattern, topic)
        self.forget()
        return True

    def unlink(self, pattern: str, topic: str) -> bool:
        known, users = self._links.get((pattern, topic), (None, 0))
        if known is None:
            return False
        if users > 1:
            self._links[(pattern, topic)] = (known, users - 1)
            return False
        del self._links[(pattern, topic)]
        self._tree.remove(pattern, known)
        self._engine.unlink(pattern, topic)
        self.forget()
        return True

    def leads(self, topic: str, pattern: str) -> bool:
        """Whether what is published on the topic may come to a subscription to the pattern, also by a link."""
        own = patterns(pattern)
        return any(matches(each, topic) for each in own) or any(
            matches(wide, topic) and any(matches(each, to) for each in own) for wide, to in self._links
        )

    def forget(self) -> None:
        """Subscriptions have changed."""
        self._routes.clear()

    def names(self, topic: str) -> list[str]:
        """Who gets what is published here."""
        return [outlet.name for outlet in self._listeners(topic) if outlet.hears] + self._engine.names(topic)


def patterns(pattern: str) -> tuple[str, ...]:
    """An endpoint also gets what is for everyone."""
    return (pattern, BROADCAST) if pattern.startswith(ENDPOINT_PREFIX) else (pattern,)
