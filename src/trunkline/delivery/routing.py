"""The routing tree: finds the subscribers of a topic, local and remote.

A route is found once, and kept until subscriptions change. Then it is discarded, so that it holds no reference to a
subscriber.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from trunkline.delivery.inbox import Inbox
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.route import Engine, GroupMember, GroupSink, Route, Sink, SubscriberGroup, Tap
from trunkline.message import Message
from trunkline.topic import (
    BROADCAST,
    ENDPOINT_PREFIX,
    REPLY_PREFIX,
    TopicTree,
    matches,
    nearest,
    validate_pattern,
    validate_topic,
)

MAX_COMPARED = 256
"""The maximum number of patterns that are compared with a topic without subscribers, and of topics for which the result
is kept."""
MAX_UNUSED = 10_000
"""The maximum number of topics whose counts are kept although they were not used between two changes of subscriptions:
at most 5 MB."""


class TopicLink:
    """Messages that match its pattern also go to the subscribers of `topic`."""

    __slots__ = ("topic",)

    def __init__(self, topic: str) -> None:
        self.topic = topic


Listener = Inbox | GroupMember | Outlet | Tap


class RoutingTree:
    def __init__(self, engine: Engine, max_topics: int) -> None:
        self._engine = engine
        self.routes: dict[str, Route] = {}
        """The valid routes. An invalid route is replaced and never updated, because a caller may still be using it."""
        self.private_replies = False
        """Whether an answer reaches only a subscription to exactly its topic, and no wildcard."""
        self.changed: Callable[[], None] = lambda: None
        """Called when subscriptions have changed, and the routes were discarded."""
        self._max_topics = max_topics
        self._published: OrderedDict[str, int] = OrderedDict()
        """How many messages were published on topics that have no route now."""
        self._tree: TopicTree[Listener] = TopicTree()
        self._link_tree: TopicTree[TopicLink] = TopicTree()
        """Apart from the listeners: a link may match the topics of thousands of other links, which are not followed."""
        self._links: dict[tuple[str, str], TopicLink] = {}
        self._groups: dict[str, SubscriberGroup] = {}
        self._nearest: dict[str, list[str]] = {}
        """The result of `nearest` for topics without subscribers, until subscriptions change."""

    def route(self, topic: str) -> Route:
        """The route of a topic. Raises InvalidTopic."""
        route = self.routes.get(topic)
        if route is None:
            route = Route(validate_topic(topic), self._engine)
            if len(self.routes) >= self._max_topics:
                self.forget()
            route.published = self._published.pop(topic, 0)
            if len(self.routes) + len(self._published) >= self._max_topics:
                self._published.popitem(last=False)
            self._lead(route)
            self.routes[topic] = route
        return route

    def _lead(self, route: Route) -> None:
        plain: list[Inbox] = []
        special: list[Sink | Tap] = []
        outlets: list[Outlet] = []
        groups: dict[SubscriberGroup, list[Inbox]] = {}
        for entry in self.listeners(route.topic):
            if isinstance(entry, Outlet):
                outlets.append(entry)
            elif isinstance(entry, GroupMember):
                groups.setdefault(entry.group, []).append(entry.inbox)
            elif isinstance(entry, Inbox) and entry.gate is None:
                plain.append(entry)
            elif isinstance(entry, Tap) and entry.inbox_of and (inbox := entry.inbox_of(route.topic)) is not None:
                plain.append(inbox)
            else:
                special.append(entry)
        special.extend(GroupSink(group, tuple(members)) for group, members in groups.items())
        route.lead_to(plain, special, outlets)

    def listeners(self, topic: str) -> list[Listener]:
        found: dict[Listener, None] = {}
        private = self.private_replies and topic.startswith(REPLY_PREFIX)
        for entry in self._tree.match(topic):
            if not private or not isinstance(entry, Outlet) or entry.pattern == topic:
                found[entry] = None
        if not private:
            # One step only: a link leads to an endpoint, never on to another link.
            for link in self._link_tree.match(topic):
                found.update(dict.fromkeys(self._tree.match(link.topic)))
        of_several = [entry for entry in found if isinstance(entry, Outlet) and entry.one_of is not None]
        exact = {outlet.one_of for outlet in of_several if outlet.pattern == topic}
        for outlet in of_several:
            if outlet.one_of in exact and outlet.pattern != topic:
                del found[outlet]
        return list(found)

    def nearest(self, topic: str) -> list[str]:
        """The patterns with subscribers that are most similar to a topic without subscribers."""
        found = self._nearest.get(topic)
        if found is None:
            if len(self._nearest) >= MAX_COMPARED:
                self._nearest.clear()
            found = self._nearest[topic] = nearest(topic, islice(self._tree.patterns(), MAX_COMPARED))
        return found

    def add(self, pattern: str, entry: Listener) -> None:
        for each in (pattern,) if isinstance(entry, Tap) else patterns(pattern):
            self._tree.add(each, entry)
        self.forget()

    def remove(self, pattern: str, entry: Listener) -> None:
        for each in (pattern,) if isinstance(entry, Tap) else patterns(pattern):
            self._tree.remove(each, entry)
        self.forget()
        if pattern.startswith(REPLY_PREFIX):
            # A reply topic belongs to one subscriber: it is not used again.
            self._published.pop(pattern, None)

    def forget(self) -> None:
        """Discard all routes. They are found again when they are needed."""
        self._end_run()
        for route in self.routes.values():
            self._keep_count(route)
        # The topics in use are the newest entries.
        while len(self._published) > len(self.routes) + MAX_UNUSED:
            self._published.popitem(last=False)
        self.routes.clear()
        self._nearest.clear()
        self.changed()

    def forget_route(self, topic: str) -> None:
        self._end_run()
        if (route := self.routes.pop(topic, None)) is not None:
            self._keep_count(route)

    def _end_run(self) -> None:
        """Close the open run, so that its messages are counted."""
        if (run := self._engine.sequence.unnumbered) is not None:
            run.close()

    def _keep_count(self, route: Route) -> None:
        if route.published:
            self._published[route.topic] = route.published

    def published(self) -> dict[str, int]:
        """How many messages were published on each topic."""
        self._end_run()
        live = {topic: route.published for topic, route in self.routes.items() if route.published}
        return {**self._published, **live}

    # Links

    def link(self, pattern: str, topic: str) -> bool:
        """Add a link; False if it exists already."""
        if (pattern, topic) in self._links:
            return False
        link = TopicLink(validate_topic(topic))
        self._link_tree.add(validate_pattern(pattern), link)
        self._links[pattern, topic] = link
        self.forget()
        return True

    def unlink(self, pattern: str, topic: str) -> bool:
        """Remove a link; False if there is none."""
        link = self._links.pop((pattern, topic), None)
        if link is None:
            return False
        self._link_tree.remove(pattern, link)
        self.forget()
        return True

    def leads(self, topic: str, pattern: str) -> bool:
        """Whether a subscription to the pattern gets the topic, directly or by a link."""
        own = patterns(pattern)
        return any(matches(each, topic) for each in own) or any(
            matches(wide, topic) and any(matches(each, to) for each in own) for wide, to in self._links
        )

    # Groups

    def join(self, name: str, inbox: Inbox) -> GroupMember:
        """Add an inbox to the group of this name."""
        group = self._groups.setdefault(name, SubscriberGroup(name))
        group.size += 1
        member = GroupMember(group, inbox)
        inbox.successor_of = self._successor_of(member)
        return member

    def leave(self, member: GroupMember) -> None:
        member.group.size -= 1
        if not member.group.size:
            del self._groups[member.group.name]

    def _successor_of(self, leaver: GroupMember) -> Callable[[Message], Inbox | None]:
        """Returns a function that chooses the member that takes over a message from `leaver`; None if there is no other
        member for it.
        """

        def choose(message: Message) -> Inbox | None:
            stay = tuple(
                entry.inbox
                for entry in self._tree.match(message.topic)
                if isinstance(entry, GroupMember)
                and entry.group is leaver.group
                and entry is not leaver
                and not (entry.inbox.closed or entry.inbox.abandoned)
            )
            return leaver.group.pick(stay) if stay else None

        return choose


def patterns(pattern: str) -> tuple[str, ...]:
    """The patterns that a subscription to this pattern gets: an endpoint also gets broadcasts."""
    return (pattern, BROADCAST) if pattern.startswith(ENDPOINT_PREFIX) else (pattern,)
