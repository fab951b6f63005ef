"""What a broker stores: the interface for stored messages, fates and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from trunkline.delivery.dead_letters import Cause, Choice, DeadLetter, Key
from trunkline.delivery.fates import Outcome
from trunkline.delivery.ranges import Ranges
from trunkline.delivery.requests import Why
from trunkline.errors import TrunklineError
from trunkline.message import Message
from trunkline.settings import Group
from trunkline.topic import EVERYTHING, validate_pattern
from trunkline.wire.control import LetterFailure


class Store(Protocol):
    """The `store` of a broker. One that stores nothing has None there."""

    @property
    def local(self) -> LocalStore | None:
        """The same store, if it is in this process: what a hub needs to serve it to others."""

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        """The stored message with the highest number on a topic, below `before` if that is given; None if none is.

        Everything whose publish has returned counts. Raises TopicNotStored if the broker does not store the topic, and
        JournalDamaged if the message cannot be read: an older one is never given in its place.
        """

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        """As `Broker.explain`."""

    async def recall_dead_letters(self, after: str = "") -> tuple[list[DeadLetter], str]:
        """A page of stored dead letters, oldest first, ready to be replayed, and where the next page begins.

        The first page begins at "", and none begins there: after the last one.
        """

    def recall_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        """Stored orphans, with their age in seconds."""

    async def forget(self, name: str) -> bool:
        """Remove a durable subscription permanently; False if there is none. Its subscribers must have left."""

    def pause(self) -> None:
        """Hand out nothing more of what is stored: the bus is about to close."""


class KeptDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter at a hub or an engine."""

    letter: DeadLetter
    whole: bool
    """Whether its payload, its traceback and its attempts are there."""
    returns: bool
    """Whether it can be redelivered from anywhere; if not, only in the process of its subscriber."""


class KeptDeadLetters(Protocol):
    """The dead letters that a hub or an engine keeps, for tools."""

    async def keeps(self) -> bool:
        """Whether it keeps any."""

    async def find(
        self,
        *,
        subscriber: str | None = None,
        topic: str = EVERYTHING,
        cause: Cause | None = None,
        message_id: str | None = None,
        limit: int | None = None,
        brief: bool = False,
    ) -> list[KeptDeadLetter]:
        """Dead letters, oldest first. `brief` may leave payloads and tracebacks out."""

    async def replay(self, letters: Iterable[DeadLetter]) -> list[LetterFailure]:
        """Redeliver them to the subscribers that failed. Says which stay, and why."""


class Retention(Group, frozen=True, kw_only=True):
    """How much of the topics that match is kept: the first rule that matches counts, and no limit means for ever.

    Messages that a durable subscription has not read are kept beyond all limits, unless `even_unread` is set. With
    `keep_last` the last message of each topic is kept, whatever the limits; for the states of actors that is always so.
    Whole batches, and what one sealed file has of a topic, are kept or removed together.
    """

    topics: str = EVERYTHING
    max_age_s: float | None = None
    max_bytes: int | None = None
    max_count: int | None = None
    even_unread: bool = False
    keep_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_pattern(self.topics)


class DurablePlace(NamedTuple):
    """How far a durable subscription is."""

    name: str
    pattern: str
    behind: int
    """Stored messages that match, and have no fate yet."""


class StoreSummary(NamedTuple):
    dead_letters: int
    orphans: int
    places: list[DurablePlace]


class ReservedNumbers(Protocol):
    """Numbers that may be given now, and count as used even if this process is killed."""

    due: int
    """If a higher number was given, call `extend`."""

    async def begin(self) -> None:
        """Reserve the first numbers of this run. On return, that is on disk."""

    def extend(self) -> None:
        """Reserve further numbers with the next commit."""


class LocalStore(Protocol):
    """A store in this process."""

    folder: Path
    """Its directory. A hub keeps files of its own there."""
    durable: tuple[str, ...]
    """Patterns of the topics that are on disk when their publish returns."""

    @property
    def dead_letters(self) -> DeadLetterStore: ...

    @property
    def numbers(self) -> ReservedNumbers: ...

    def find(self, message_id: str) -> Message | None:
        """A stored message."""

    async def numbers_by_topic(self, first: int, last: int) -> dict[str, Ranges]:
        """The numbers of the stored messages between two numbers. Only the last 100,000 numbers are looked up."""

    def durable_names(self) -> list[str]:
        """The names of durable subscriptions that it keeps a place for."""

    async def summary(self) -> StoreSummary:
        """What waits for somebody to look at it, and how far each durable subscription is."""

    def retain(self, rules: tuple[Retention, ...]) -> None:
        """Apply these rules of retention, after those of its settings."""


Change = Callable[[DeadLetter, str | None], Message]
"""The message that a letter is replayed as; raises if the letter stays.

Its arguments are the letter, and the pattern of the durable subscription or group member where it died, if any.
"""


class DeadLetterStore(Protocol):
    """Dead letters on disk, beyond those that a process remembers. Its methods see everything that happened before."""

    async def page(
        self, choice: Choice, limit: int, max_bytes: int, after: str, may_see: Callable[[str], bool]
    ) -> tuple[list[tuple[DeadLetter, bool]], str]:
        """Letters on topics for which `may_see` is true, oldest first, and where the next page begins ("": nowhere).

        Each with whether it can be replayed from here, to a durable subscription or a member of a group. Together they
        have at most `max_bytes`; the first may be larger. A page may be empty although there are more.
        """

    async def take(self, letters: Sequence[DeadLetter], fits: Callable[[Message], bool]) -> int:
        """Keep letters of subscribers elsewhere, with the message as it is stored; how many were left out.

        A letter is left out if its message is not stored, or does not fit.
        """

    def waiting_for(self, name: str) -> list[str]:
        """What waits under a subscriber's name: the pattern of its cursor, the topics of its retries."""

    async def replay(self, changes: Mapping[Key, Change]) -> dict[Key, TrunklineError]:
        """Give letters back to the subscribers that failed, each as its change returns it; those that stay, and why."""

    async def remove(self, keys: Iterable[Key], may: Callable[[DeadLetter, str | None], bool]) -> set[Key]:
        """Remove the letters for which `may` is true; which of them there were."""
