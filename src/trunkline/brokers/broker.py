"""What a broker is: it moves messages by publish and subscribe, and knows nothing of handlers, actors or kernels.

Who writes one writes `publish`, `subscribe`, `tap` and `aclose`, and states its features. Everything else has a
default. A broker that stores messages has a `store`, one that knows channels has a `directory`.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as Batch
from types import MappingProxyType
from typing import ClassVar, Protocol, Self

from trunkline.brokers.directory import Directory
from trunkline.brokers.store import Store
from trunkline.clock import Sequence, World
from trunkline.delivery.fates import Outcome
from trunkline.delivery.options import Delivery
from trunkline.delivery.pending import Failures, Owner, Turn
from trunkline.delivery.roster import Roster
from trunkline.delivery.route import InboxOf, Route, Take
from trunkline.delivery.stream import Stream
from trunkline.errors import StreamClosed, Unsupported
from trunkline.message import Message
from trunkline.settings import Settings
from trunkline.topic import matches, reply_topic

UNNUMBERED = -1
"""The number of a message that gets its own when it is stored. Not 0, which would have it checked again."""


class Feature(enum.StrEnum):
    """What a broker may offer beyond publish and subscribe. Asking for one it lacks raises Unsupported."""

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
    """Rules that limit what an identity may do. What they forbid is refused with NotAllowed."""


class Lane(Protocol):
    """The way in for a topic that is stored. Messages put there get their number in place, when they are stored."""

    heard: bool
    """Whether a message here reaches anybody."""
    swift: bool
    """Whether a publish need not wait: `put_now` will do, as long as it says so."""
    turn: Mapping[str, Turn]
    """What was put in since the last flush, by topic: an owner may append to what is its own."""

    def put_now(self, message: Message) -> bool:
        """Take one plain message without a word of what becomes of it; False if that cannot be now."""

    def put(self, message: Message) -> Awaitable[Failures]:
        """Take one plain message. Awaited, it is stored and handed out; raises NotStored."""

    def put_many(self, messages: Batch[Message], *, alike: bool) -> Awaitable[Failures]:
        """As `put`. `alike` promises that all are plain, and of one sender and one format."""

    def post(self, message: Message, owner: Owner) -> None:
        """As `put`, and tell the owner instead of being awaited."""


class Broker(abc.ABC):
    """One per process and place; any number of buses may share it. Used from one event loop thread."""

    name: ClassVar[str]
    features: frozenset[Feature]
    here = False
    """Whether publishers and subscribers are in this process: then those who tap can make publishers wait."""
    store: Store | None = None
    directory: Directory | None = None
    _closed = False

    def __init__(self, world: World | None = None, settings: Settings | None = None) -> None:
        self.world = world or World()
        self.settings = settings or Settings()
        self.sequence = Sequence()
        self.roster = Roster(self.world, self.settings)
        """The subscribers in this process."""
        self.finders: list[Callable[[str], Message | None]] = []
        """Who may still know a message by its id: the histories of buses here, the recent batches of a hub."""
        self.routes: Mapping[str, Route] = {}
        """Routes of topics in use, if publishers may write to the inboxes directly. Empty: they call `publish`."""

    lanes: Mapping[str, Lane] = MappingProxyType({})
    """Topics that are stored before they are handed out, if publishers may put messages there directly."""

    @abc.abstractmethod
    async def publish(self, batch: Batch[Message]) -> None:
        """Take messages, in order. When it returns, they are in the inboxes (in memory) or in the outbox.

        A batch is of one kind: all have the topic, priority, ttl and need of acknowledgement of the first. Raises
        Refused if a subscriber's policy says so, PartlyRefused for several; the other subscribers have the message all
        the same. After a backpressure timeout the rest of the batch is refused, too, and offered to nobody.
        """

    @abc.abstractmethod
    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        """An independent stream of what matches. Everything published after `await stream.opened()` is seen."""

    @abc.abstractmethod
    def tap(
        self, pattern: str, take: Take, *, hears: bool = True, inbox_of: InboxOf | None = None
    ) -> Callable[[], None]:
        """Call `take` with each message that matches, as it comes; it may name sinks that are to get it as well.

        For the bus's own parts: answers to requests, routing rules, actors. Returns how to stop it. One that does not
        `hear` leaves a message without subscribers unrouted. Where `inbox_of` names an inbox for a topic, `take` need
        not be called; when that changes, call `forget_route`.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End all streams. What was not taken gets its fate. Closing twice is fine."""

    def route(self, topic: str) -> Route | None:
        """The route of a topic, if publishers may write to the inboxes directly."""
        return None

    def forget_route(self, topic: str) -> None:
        """What a tap says of the inbox of a topic has changed."""
        return

    def reply_topic(self) -> str:
        """A new topic for answers. Nobody can guess it, and only who made it here may subscribe to it."""
        return reply_topic(self.world.secret())

    def link(self, pattern: str, topic: str) -> bool:
        """Send what matches `pattern` also to whoever listens on `topic`; False if that was so already."""
        raise Unsupported(self.name, Feature.LINKS.value)

    def unlink(self, pattern: str, topic: str) -> bool:
        """Undo `link`; False if there was none."""
        raise Unsupported(self.name, Feature.LINKS.value)

    async def flush(self) -> None:
        """Return when everything published so far is with the broker."""
        # Nothing to do where a publish is with the broker when it returns.
        return

    def on_lost(self, tell: Callable[[Batch[Message], Exception], None]) -> None:
        """Have somebody told of messages whose publisher did not wait, and that did not reach the broker."""
        # Where a publish is with the broker when it returns, there are none.
        return

    def lane(self, topic: str) -> Lane | None:
        """How a topic is published that is stored before it is handed out; None if it is not stored."""
        return None

    # What the broker offers

    def check_open(self) -> None:
        """Raises StreamClosed after `aclose`."""
        if self._closed:
            raise StreamClosed(f"the {self.name} broker")

    def require(self, feature: Feature) -> None:
        """Raises Unsupported if the broker lacks it."""
        if feature not in self.features:
            raise Unsupported(self.name, feature.value)

    def require_store(self, feature: Feature = Feature.STORED) -> Store:
        """The store, for something that is part of a feature; raises Unsupported if there is none."""
        if self.store is None:
            raise Unsupported(self.name, feature.value)
        return self.store

    def require_directory(self) -> Directory:
        """The directory; raises Unsupported if there is none."""
        if self.directory is None:
            raise Unsupported(self.name, Feature.CHANNELS.value)
        return self.directory

    # What the broker can tell

    def recent(self, message_id: str) -> Message | None:
        """A message that somebody in this process still remembers."""
        return next((found for find in self.finders if (found := find(message_id)) is not None), None)

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        """The message, if the caller or the broker knows it, and what became of it: one outcome a subscriber.

        Where subscribers are elsewhere, they are asked. Raises HubUnavailable if they cannot be.
        """
        if self.store is not None:
            return await self.store.explain(message_id, known)
        message = known or self.recent(message_id)
        return message, [] if message is None else self.roster.outcomes(message)

    def subscribers(self, topic: str) -> list[str]:
        """The names of who would get a message on this topic, as far as this process knows."""
        return [inbox.name for inbox in self.roster if matches(inbox.pattern, topic)]

    def heard(self, topic: str) -> bool:
        """Whether anybody, as far as this process knows, would get a message on this topic."""
        return bool(self.subscribers(topic))

    def published_by_topic(self) -> dict[str, int]:
        """How many messages were published on each topic."""
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
