"""Dead letters: messages that could not be handled, kept with cause, attempts and traceback."""

from __future__ import annotations

import enum
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr

from trunkline.errors import InvalidMessage, InvalidPayload, UsageError
from trunkline.message import Message
from trunkline.topic import EVERYTHING, matches

if TYPE_CHECKING:
    from trunkline.delivery.ledger import Ledger


Key = tuple[str, int]
"""A subscriber, and the number of a message: there is one dead letter of both at most."""


class Cause(enum.StrEnum):
    INVALID_PAYLOAD = "invalid payload"
    HANDLER_FAILED = "handler failed"
    REJECTED = "rejected by the handler"
    HANDLER_TIMEOUT = "handler timed out"
    NOT_ACKNOWLEDGED = "not acknowledged"
    UNKNOWN_ACTOR = "no such actor"
    NO_RECIPIENT = "no recipient"
    NOT_RUNNING = "its system is not running"
    MAILBOX_FULL = "mailbox full"


class Attempt(msgspec.Struct, frozen=True):
    number: int
    at_ns: int
    error: str


class DeadLetter(msgspec.Struct, frozen=True):
    message: Message
    subscriber: str
    cause: Cause
    reason: str
    error_type: str
    traceback: str
    attempts: tuple[Attempt, ...]
    at_ns: int

    def __post_init__(self) -> None:
        payload = self.message.payload
        if type(payload) is memoryview:
            # Shared memory is for messages on their way: a letter may be kept for long.
            force_setattr(self, "message", msgspec.structs.replace(self.message, payload=bytes(payload)))

    @property
    def key(self) -> Key:
        return self.subscriber, self.message.seq

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> DeadLetter:
        """The letter `data` holds; raises InvalidPayload, whatever the bytes."""
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidMessage) as error:
            raise InvalidPayload(f"not a dead letter: {error}") from error


_decode = msgspec.msgpack.Decoder(DeadLetter).decode


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: those that fit everything that is given."""

    topic: str = EVERYTHING
    """A pattern."""
    subscriber: str | None = None
    cause: Cause | None = None
    message_id: str | None = None

    def holds(self, letter: DeadLetter) -> bool:
        return (
            self.message_id in (None, letter.message.id)
            and self.subscriber in (None, letter.subscriber)
            and self.cause in (None, letter.cause)
            and matches(self.topic, letter.message.topic)
        )


def describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as trouble:
        # Somebody else's error: its text is code that may fail, too.
        return f"{type(error).__name__}: (its text could not be made: {type(trouble).__name__})"


def traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__)) + describe(error)


class DeadLetters:
    """The last dead letters, oldest first; beyond `max_letters` the oldest go, and are counted in `evicted`.

    Replaying gives a message back to the one subscriber that failed on it, and to nobody else.
    """

    def __init__(self, max_letters: int, redeliver: Callable[[str, Message, object], None]) -> None:
        self._max = max_letters
        self._redeliver = redeliver
        self._letters: OrderedDict[Key, tuple[DeadLetter, object]] = OrderedDict()
        """Each with whoever it died at."""
        self.total = 0
        self.evicted = 0
        self.ledger: Ledger | None = None

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter([letter for letter, _ in self._letters.values()])

    def add(self, letter: DeadLetter, origin: object = None) -> None:
        """Keep a letter; `origin` is whoever it died at, and is handed back when it is replayed."""
        self._letters.pop(letter.key, None)
        self._letters[letter.key] = letter, origin
        self.total += 1
        if len(self._letters) > self._max:
            self._letters.popitem(last=False)
            self.evicted += 1

    def restore(self, letter: DeadLetter) -> None:
        """Keep one that is on record already: it died before this process began."""
        self._letters[letter.key] = letter, None

    def find(
        self, *, message_id: str | None = None, subscriber: str | None = None, cause: Cause | None = None
    ) -> list[DeadLetter]:
        choice = Choice(message_id=message_id, subscriber=subscriber, cause=cause)
        return [letter for letter in self if choice.holds(letter)]

    def replay(self, letter: DeadLetter, **changes: Any) -> Message:
        """Give the message back to the subscriber that failed, as it was or with some fields changed.

        It starts with no attempts counted, and leaves the dead letters. Raises UnknownHandler if the subscriber is
        gone, and InvalidMessage if the changes make no sense; the letter stays then.
        """
        if letter.key not in self._letters:
            raise UsageError(f"the dead letter {letter.message.id} no longer exists: it was replayed or removed")
        message = letter.message.replace(**{"attempts": 0, **changes})
        message = msgspec.structs.replace(message, seq=letter.message.seq)
        kept = self._letters.pop(letter.key)
        try:
            self._redeliver(letter.subscriber, message, kept[1])
        except BaseException:
            self._letters[letter.key] = kept
            raise
        if self.ledger is not None:
            self.ledger.revived(letter, message)
        return message

    def replay_stored(self, letter: DeadLetter) -> Message:
        """As `replay`, also for one that is not here, but where all of them are stored."""
        if letter.key in self._letters:
            return self.replay(letter)
        self.restore(letter)
        try:
            return self.replay(letter)
        except BaseException:
            del self._letters[letter.key]
            raise

    def remove(self, letter: DeadLetter) -> bool:
        removed = self._letters.pop(letter.key, None) is not None
        if removed and self.ledger is not None:
            self.ledger.removed(letter)
        return removed

    def clear(self) -> int:
        """Throw all of them away; say how many that were."""
        return sum(self.remove(letter) for letter in self)
