"""Dead letters: messages that could not be handled, kept with cause, attempts and traceback."""

from __future__ import annotations

import enum
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr

from trunkline.codec import RAW, UNOPENED
from trunkline.errors import InvalidMessage, InvalidPayload, UsageError
from trunkline.message import Message
from trunkline.topic import EVERYTHING, matches

if TYPE_CHECKING:
    from trunkline.delivery.ledger import Ledger


UNREADABLE = "unreadable-"
"""The beginning of the id of a message that stands for stored data which is not a message. The number follows it."""
UNREADABLE_BYTES = 64 * 1024

Key = tuple[str, int]
"""A subscriber, and the number of a message. Each pair has at most one dead letter."""


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
            # Copied, because a dead letter may be kept for a long time. Shared memory is for messages in flight.
            force_setattr(self, "message", msgspec.structs.replace(self.message, payload=bytes(payload)))

    @property
    def key(self) -> Key:
        return self.subscriber, self.message.seq

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> DeadLetter:
        """Decode a letter. Raises InvalidPayload for any invalid bytes."""
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidMessage) as error:
            raise InvalidPayload(f"not a dead letter: {error}") from error


_decode = msgspec.msgpack.Decoder(DeadLetter).decode


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the dead letters that match all given fields."""

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


def unreadable_message(topic: str, seq: int, data: memoryview, at_ns: int, error: InvalidPayload) -> Message:
    """A message that stands for stored data which is not a message, so that it can be a dead letter.

    Its payload is the data, cut to UNREADABLE_BYTES. Decoding the payload raises InvalidPayload with the reason.
    """
    cut = f"; the first {UNREADABLE_BYTES:,} of {len(data):,} bytes are kept" if len(data) > UNREADABLE_BYTES else ""
    return Message(
        id=f"{UNREADABLE}{seq}",
        topic=topic,
        payload=bytes(data[:UNREADABLE_BYTES]),
        timestamp_ns=at_ns,
        content_type=RAW,
        encoding=f"{UNOPENED}{error}{cut}",
        seq=seq,
    )


def describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as trouble:
        # The `__str__` of a foreign exception may raise, too.
        return f"{type(error).__name__}: (str() of it raised {type(trouble).__name__})"


def traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__)) + describe(error)


class DeadLetters:
    """The latest dead letters, oldest first. Beyond `max_letters`, the oldest are removed and counted in `evicted`.

    Replaying a letter delivers its message only to the subscriber that failed on it.
    """

    def __init__(self, max_letters: int, redeliver: Callable[[str, Message, object], None]) -> None:
        self._max = max_letters
        self._redeliver = redeliver
        self._letters: OrderedDict[Key, tuple[DeadLetter, object]] = OrderedDict()
        """Each letter with its origin: see `add`."""
        self.total = 0
        self.evicted = 0
        self.ledger: Ledger | None = None

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter([letter for letter, _ in self._letters.values()])

    def add(self, letter: DeadLetter, origin: object = None) -> None:
        """Keep a letter. `origin` is the inbox where the message died, if there is one. Replaying passes it to
        `redeliver`.
        """
        self._letters.pop(letter.key, None)
        self._letters[letter.key] = letter, origin
        self.total += 1
        if len(self._letters) > self._max:
            self._letters.popitem(last=False)
            self.evicted += 1

    def restore(self, letter: DeadLetter) -> None:
        """Keep a letter that is already stored: the message died before this process started."""
        self._letters[letter.key] = letter, None

    def find(
        self, *, message_id: str | None = None, subscriber: str | None = None, cause: Cause | None = None
    ) -> list[DeadLetter]:
        choice = Choice(message_id=message_id, subscriber=subscriber, cause=cause)
        return [letter for letter in self if choice.holds(letter)]

    def replay(self, letter: DeadLetter, **changes: Any) -> Message:
        """Deliver the message again to the subscriber that failed, unchanged or with some fields changed.

        Its attempts start at 0, and the letter is removed. Raises UnknownHandler if the subscriber is gone, and
        InvalidMessage if the changes are not valid; in both cases the letter is kept.
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
        """Like `replay`, also for a letter that is in the store but not in memory."""
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
        """Remove all dead letters. Returns their number."""
        return sum(self.remove(letter) for letter in self)
