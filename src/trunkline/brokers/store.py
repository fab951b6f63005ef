"""The store of a broker: the interface for stored messages, fates and dead letters."""

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
    """The `store` of a broker; None for a broker that stores nothing."""

    @property
    def local(self) -> LocalStore | None:
        """The same store, if it is in this process. A hub uses it to serve other processes."""

    async def last(self, topic: str, before: int | None = None) -> Message | None:
        """The stored message with the highest number on a topic, below `before` if given; None if there is none.

        This includes every publish that has returned. Raises TopicNotStored if the broker does not store the topic, and
        JournalDamaged if the message cannot be read: an older message is never returned instead.
        """

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        """As `Broker.explain`."""

    async def recall_dead_letters(self, after: str = "") -> tuple[list[DeadLetter], str]:
        """A page of stored dead letters, oldest first, ready to be replayed, and the start of the next page.

        The first page starts at "". After the last page, the returned start is "".
        """

    def recall_orphans(self, max_age_s: float) -> list[tuple[Message, Why, float]]:
        """Stored orphans, with their age in seconds."""

    async def forget(self, name: str) -> bool:
        """Remove a durable subscription permanently; False if there is none. Its subscribers must have left."""

    def pause(self) -> None:
        """Stop delivering stored messages, because the bus is about to close."""


class KeptDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter at a hub or an engine."""

    letter: DeadLetter
    whole: bool
    """Whether its payload, traceback and attempts are included."""
    returns: bool
    """Whether it can be redelivered from anywhere; if not, only in the process of its subscriber."""


class KeptDeadLetters(Protocol):
    """The dead letters that a hub or an engine keeps, for tools."""

    async def keeps(self) -> bool:
        """Whether dead letters are kept."""

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
        """Redeliver dead letters to the subscribers that failed.

        Returns those that were not redelivered, with the reasons.
        """


class Retention(Group, frozen=True, kw_only=True):
    """How long messages on matching topics are kept. The first rule that matches applies.

    Without a limit, they are kept for ever. Messages that a durable subscription has not read are kept beyond all
    limits, unless `even_unread` is set. With `keep_last` the last message of each topic is kept, whatever the limits;
    this always applies to the states of actors. The messages of one batch are kept or removed together, and so are the
    messages of one topic in a sealed file.
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
    """The position of a durable subscription."""

    name: str
    pattern: str
    behind: int
    """The number of stored messages that match and have no fate yet."""


class StoreSummary(NamedTuple):
    dead_letters: int
    orphans: int
    places: list[DurablePlace]


class ReservedNumbers(Protocol):
    """Numbers that may be assigned now. They count as used even if this process is killed."""

    due: int
    """When a higher number than this was assigned, call `extend`."""

    async def begin(self) -> None:
        """Reserve the first numbers of this run. The reservation is on disk when this returns."""

    def extend(self) -> None:
        """Reserve further numbers with the next commit."""


class LocalStore(Protocol):
    """A store in this process."""

    folder: Path
    """Its directory. A hub keeps its files there, too."""
    durable: tuple[str, ...]
    """Patterns of the topics that are on disk when their publish returns."""
    attended: set[tuple[str, str]]
    """The plain subscribers, with their patterns, that were connected when the last run ended."""

    @property
    def dead_letters(self) -> DeadLetterStore: ...

    @property
    def numbers(self) -> ReservedNumbers: ...

    def find(self, message_id: str) -> Message | None:
        """A stored message."""

    async def numbers_by_topic(self, first: int, last: int) -> dict[str, Ranges]:
        """The numbers of the stored messages between two numbers. Only the last 100,000 numbers are looked up."""

    def durable_names(self) -> list[str]:
        """The names of the durable subscriptions."""

    async def summary(self) -> StoreSummary:
        """The number of dead letters and orphans, and the position of each durable subscription."""

    def retain(self, rules: tuple[Retention, ...]) -> None:
        """Apply these retention rules, after those of the settings."""


Change = Callable[[DeadLetter, str | None], Message]
"""Returns the message as which a letter is replayed. Raises an error if the letter is not replayed.

The arguments are the letter, and the pattern of the durable subscription or group member that failed, if any.
"""


class DeadLetterStore(Protocol):
    """Dead letters on disk, including those that are no longer in memory. Its methods see all earlier changes."""

    async def page(
        self, choice: Choice, limit: int, max_bytes: int, after: str, may_see: Callable[[str], bool]
    ) -> tuple[list[tuple[DeadLetter, bool]], str]:
        """Letters on topics for which `may_see` is true, oldest first, and the start of the next page or "".

        Each comes with whether it can be replayed from here, to a durable subscription or a member of a group. A page
        has at most `max_bytes`, unless its first letter is larger. A page may be empty although more pages follow.
        """

    async def take(self, letters: Sequence[DeadLetter], fits: Callable[[Message], bool]) -> int:
        """Store letters of remote subscribers, with the message as it is stored. Returns how many were left out.

        A letter is left out if its message is not stored, or does not fit.
        """

    def waiting_for(self, name: str) -> list[str]:
        """The stored state of a subscriber: the pattern of its cursor, and the topics of its retries."""

    async def replay(self, changes: Mapping[Key, Change]) -> dict[Key, TrunklineError]:
        """Redeliver letters, each as its `Change` returns it.

        Returns those that were not redelivered, with the reasons.
        """

    async def remove(self, keys: Iterable[Key], may: Callable[[DeadLetter, str | None], bool]) -> set[Key]:
        """Remove the letters for which `may` is true. Returns those that existed."""
