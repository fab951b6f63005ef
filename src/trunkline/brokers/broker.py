"""The interface of a broker: it moves messages by publish and subscribe, and does not depend on handlers.

A broker implements `publish`, `subscribe`, `tap` and `aclose`, and states its features. Everything else has a
default. A broker that stores messages has a `store`; one that supports channels has a `directory`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as Batch
from typing import ClassVar, Protocol, Self

from trunkline.brokers.directory import Directory
from trunkline.brokers.store import Store
from trunkline.clock import Sequence, World
from trunkline.delivery.fates import Outcome
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.pending import Failures, Owner, RunOwner
from trunkline.delivery.plain_run import PlainRun
from trunkline.delivery.route import InboxOf, Take
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscribers import Subscribers
from trunkline.errors import PartlyRefused, Refused, StreamClosed, Unsupported
from trunkline.message import Message
from trunkline.settings import Settings
from trunkline.topic import matches, refuse_slashes, reply_topic
from trunkline.unchecked import without_numbers


class Feature(enum.StrEnum):
    """Features of brokers beyond publish and subscribe. Using a missing one raises Unsupported."""

    GROUPS = "groups"
    PRIORITY = "priority"
    ACKNOWLEDGEMENT = "acknowledgement"
    BACKPRESSURE = "backpressure"
    LINKS = "links to endpoints"
    DURABLE = "durable topics"
    STORED = "reading stored messages"
    """The last message of a topic, and subscriptions that start before now."""
    CHANNELS = "channels"
    """A directory of channels and schemas."""
    RIGHTS = "rights of identities"
    """Rules that limit what an identity may do. A forbidden operation raises NotAllowed."""


class Lane(Protocol):
    """The publishing path of one topic.

    Messages get their numbers in place, so no other code may hold references to them. After an awaited put, messages
    are in the inboxes (in memory), stored, or in transit to the hub. The result is the list of messages that a
    subscriber refused. Raises Refused or HubError if none was accepted.
    """

    @property
    def plain(self) -> tuple[Inbox, ...] | None:
        """The inboxes in this process to which plain messages may be appended; None if that is not allowed."""

    @property
    def has_subscribers(self) -> bool:
        """Whether a message here reaches a subscriber."""

    @property
    def unserved(self) -> bool:
        """Whether it is certain that a message here has no subscriber.

        If that is decided elsewhere, it is reported later.
        """

    @property
    def stored(self) -> bool:
        """Whether messages are stored, or sent to another process, before they are delivered.

        They get their numbers then.
        """

    @property
    def immediate(self) -> bool:
        """Whether a publish need not wait: `put_now` is enough while it returns True."""

    def reserve(self, count: int) -> int:
        """Reserve `count` numbers for the messages that are put here next.

        Returns the first; 0 if numbers are assigned later.
        """

    def put_now(self, message: Message) -> bool:
        """Take one plain message, without reporting its fate. False if that is not possible now."""

    def put(self, message: Message, *, alike: bool) -> Awaitable[Failures]:
        """Take one message. With `alike`, the caller guarantees that it was published without header fields."""

    def put_many(self, messages: Batch[Message], *, alike: bool) -> Awaitable[Failures]:
        """Take messages of one kind.

        With `alike`, the caller guarantees that all are plain, and of one sender and format.
        """


class OwnedLane(Lane, Protocol):
    """A lane that is `stored`: a publisher of many messages can be informed of their outcomes together."""

    def post(self, message: Message, owner: Owner) -> bool:
        """As `put`, but informs the owner instead of being awaited. False if the topic is unknown: then use `put`."""

    def owned_run(self, sender: str, content_type: str, owner: RunOwner) -> PlainRun | None:
        """A run to which the owner appends its plain messages at once, until it is closed. None: use `post`."""

    def lengthen_run(self, run: PlainRun) -> None:
        """Called when a run is full. Sends and closes it, or gives it more room."""


class Broker(abc.ABC):
    """One per process and address; any number of buses may share it. Used in the thread of one event loop."""

    name: ClassVar[str]
    features: frozenset[Feature]
    next_steps: ClassVar[Mapping[Feature, str]] = {}
    """The next step for users of a missing feature."""
    url = ""
    """Its URL; empty if it is in this process."""
    here = False
    """Whether publishers and subscribers are in this process. If so, a tap can make publishers wait."""
    foreign_topics = False
    """Whether programs without Trunkline may publish there, on topics that they have named."""
    store: Store | None = None
    directory: Directory | None = None
    _closed = False

    def __init__(self, world: World | None = None, settings: Settings | None = None) -> None:
        self.world = world or World()
        self.settings = settings or Settings()
        self.sequence = Sequence()
        self.served = Subscribers(self.world, self.settings)
        """The subscribers in this process."""
        self.finders: list[Callable[[str], Message | None]] = []
        """Functions that find a recent message by its id: in the histories of buses, in the recent batches of a hub."""
        self.lanes: Mapping[str, Lane] = {}
        """The lanes of topics in use."""

    def lane(self, topic: str) -> Lane:
        """The lane of a topic. A broker overrides this, or `publish`."""
        return PublishLane(self, topic)

    async def publish(self, batch: Batch[Message]) -> None:
        """Take messages, in order. When it returns, they are in the inboxes (in memory) or in the outbox.

        A batch is of one kind: all have the topic, priority, ttl and need of acknowledgement of the first. Raises
        Refused if a subscriber rejects it, PartlyRefused for several; the other subscribers still get the message.
        After a backpressure timeout the rest of the batch is refused as well, and is not offered to subscribers.
        """
        if not batch:
            return
        if type(self).lane is Broker.lane:
            raise NotImplementedError(f"{type(self).__name__} has neither `publish` nor `lane`: a broker needs one")
        lane = self.lane(batch[0].topic)
        # Numbers that messages already have are kept where that is possible.
        own = batch if batch[0].seq and not lane.stored else without_numbers(batch)
        if failures := await lane.put_many(own, alike=False):
            raise failures[0][1] if len(batch) == 1 else PartlyRefused(failures, len(batch))

    @abc.abstractmethod
    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        """An independent stream of matching messages. Everything published after `await stream.opened()` is seen."""

    @abc.abstractmethod
    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        """Call `take` with each matching message as it arrives. It may return further sinks for the message.

        It is used for internal parts of the bus: answers to requests, routing rules, actors. Returns a function that
        removes the tap. A tap without `hears` does not count as a subscriber. If `inbox_of` returns an inbox for a
        topic, `take` need not be called; when the inbox changes, call `forget_route`.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End all streams. Messages that were not taken get a fate. Closing twice is allowed."""

    async def begin(self) -> None:
        """Called when a bus on this broker is entered. Most brokers do nothing here."""
        return

    def forget_route(self, topic: str) -> None:
        """Must be called when the inbox that a tap returns for a topic has changed."""
        return

    def reply_topic(self) -> str:
        """A new topic for answers. It cannot be guessed, and only its creator may subscribe to it."""
        return reply_topic(self.world.secret())

    def link(self, pattern: str, topic: str) -> bool:
        """Also deliver messages that match `pattern` to the subscribers of `topic`; False if the link exists."""
        raise Unsupported(self.name, Feature.LINKS.value)

    def unlink(self, pattern: str, topic: str) -> bool:
        """Remove a link; False if there is none."""
        raise Unsupported(self.name, Feature.LINKS.value)

    async def flush(self) -> None:
        """Return when the broker has received everything that was published so far."""
        # By default, the broker has a message when its publish returns: nothing to do.
        return

    def release_gone(self) -> None:
        """Fail the unsent messages whose owners have all given up."""
        return

    def on_lost(self, report: Callable[[Batch[Message], Exception], None]) -> None:
        """Set a callback for messages that did not reach the broker and whose publisher did not wait."""
        # By default, the broker has a message when its publish returns: there are none.
        return

    def on_unserved(self, report: Callable[[Message, Batch[str]], None]) -> None:
        """Set a callback for requests without a recipient, with the most similar topics that have subscribers."""
        # If subscribers are in this process, the lane reports this.
        return

    def nearest(self, topic: str) -> Batch[str]:
        """Topics or patterns with subscribers that are most similar to this one."""
        return ()

    def check_written(self, topic: str) -> None:
        """Raises InvalidTopic for a topic or pattern with slashes that a program with Trunkline uses."""
        if "/" in topic and not self.foreign_topics:
            refuse_slashes(topic)

    # Features

    def check_open(self) -> None:
        """Raises StreamClosed after `aclose`."""
        if self._closed:
            raise StreamClosed(f"the {self.name} broker")

    def require(self, feature: Feature) -> None:
        """Raises Unsupported if the broker does not have it."""
        if feature not in self.features:
            raise Unsupported(self.name, feature.value, self.next_steps.get(feature, ""))

    def require_store(self, feature: Feature = Feature.STORED) -> Store:
        """The store, for something that is part of a feature; raises Unsupported if there is none."""
        if self.store is None:
            raise Unsupported(self.name, feature.value, self.next_steps.get(feature, ""))
        return self.store

    def require_directory(self) -> Directory:
        """The directory; raises Unsupported if there is none."""
        if self.directory is None:
            raise Unsupported(self.name, Feature.CHANNELS.value)
        return self.directory

    # Information

    def recent(self, message_id: str) -> Message | None:
        """A recent message of this process, by id."""
        return next((found for find in self.finders if (found := find(message_id)) is not None), None)

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        """The message, if the caller or the broker has it, and its fates: one outcome per subscriber.

        Subscribers in other processes are queried. Raises HubUnavailable if that is not possible.
        """
        if self.store is not None:
            return await self.store.explain(message_id, known)
        message = known or self.recent(message_id)
        return message, [] if message is None else self.served.outcomes(message)

    def subscribers(self, topic: str) -> list[str]:
        """The names of the subscribers to this topic that are known in this process."""
        return [inbox.name for inbox in self.served if matches(inbox.pattern, topic)]

    def has_subscribers(self, topic: str) -> bool:
        """Whether this topic has subscribers that are known in this process."""
        return bool(self.subscribers(topic))

    def published_by_topic(self) -> dict[str, int]:
        """The number of messages published on each topic."""
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class PublishLane:
    """The lane of a broker that implements only `publish`."""

    plain = None
    stored = True
    unserved = False
    immediate = False

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic

    @property
    def has_subscribers(self) -> bool:
        return self._broker.has_subscribers(self._topic)

    def reserve(self, count: int) -> int:
        return 0

    def put_now(self, message: Message) -> bool:
        return False

    def put(self, message: Message, *, alike: bool) -> Awaitable[Failures]:
        return self.put_many((message,), alike=alike)

    async def put_many(self, messages: Batch[Message], *, alike: bool) -> Failures:
        try:
            await self._broker.publish(messages)
        except PartlyRefused as error:
            return list(error.refused)
        except Refused as error:
            return [(message, error) for message in messages]
        return []
