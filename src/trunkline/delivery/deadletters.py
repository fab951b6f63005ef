"""Dead letters: messages that could not be handled, kept with cause, attempts and traceback until someone looks."""

from __future__ import annotations

import enum
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.errors import InvalidMessage, InvalidPayload, UsageError
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.delivery.ledger import Ledger


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
        self._letters: OrderedDict[tuple[str, int], DeadLetter] = OrderedDict()
        self._origins: dict[tuple[str, int], object] = {}
        self.total = 0
        self.evicted = 0
        self.ledger: Ledger | None = None

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(list(self._letters.values()))

    def add(self, letter: DeadLetter, origin: object = None) -> None:
        """Keep a letter; `origin` is whoever it died at, and is handed back when it is replayed."""
        key = (letter.subscriber, letter.message.seq)
        self._letters.pop(key, None)
        self._letters[key] = letter
        self._origins[key] = origin
        self.total += 1
        if len(self._letters) > self._max:
            self._take(next(iter(self._letters)))
            self.evicted += 1

    def restore(self, letter: DeadLetter) -> None:
        """Keep one that is on record already: it died before this process began."""
        key = (letter.subscriber, letter.message.seq)
        self._letters[key] = letter
        self._origins[key] = None

    def _take(self, key: tuple[str, int]) -> tuple[DeadLetter, object] | None:
        letter = self._letters.pop(key, None)
        return None if letter is None else (letter, self._origins.pop(key))

    def find(
        self, *, message_id: str | None = None, subscriber: str | None = None, cause: Cause | None = None
    ) -> list[DeadLetter]:
        return [
            letter
            for letter in self._letters.values()
            if (message_id is None or letter.message.id == message_id)
            and (subscriber is None or letter.subscriber == subscriber)
            and (cause is None or letter.cause == cause)
        ]

    def replay(self, letter: DeadLetter, **changes: Any) -> Message:
        """Give the message back to the subscriber that failed, as it was or with some fields changed.

        It starts with no attempts counted, and leaves the dead letters. Raises UnknownHandler if the subscriber is
        gone, and InvalidMessage if the changes make no sense; the letter stays then.
        """
        key = (letter.subscriber, letter.message.seq)
        if key not in self._letters:
            raise UsageError(f"the letter {letter.message.id} is not here any more: it was replayed or removed")
        message = letter.message.replace(**{"attempts": 0, **changes})
        message = msgspec.structs.replace(message, seq=letter.message.seq)
        kept, origin = self._letters.pop(key), self._origins.pop(key)
        try:
            self._redeliver(letter.subscriber, message, origin)
        except BaseException:
            self._letters[key], self._origins[key] = kept, origin
            raise
        if self.ledger is not None:
            self.ledger.revived(letter, message)
        return message

    def replay_stored(self, letter: DeadLetter) -> Message:
        """As `replay`, also for one that is not here, but where all of them are stored."""
        here = (letter.subscriber, letter.message.seq) in self._letters
        if not here:
            self.restore(letter)
        try:
            return self.replay(letter)
        except BaseException:
            if not here:
                self._take((letter.subscriber, letter.message.seq))
            raise

    def remove(self, letter: DeadLetter) -> bool:
        removed = self._take((letter.subscriber, letter.message.seq)) is not None
        if removed and self.ledger is not None:
            self.ledger.removed(letter)
        return removed

    def clear(self) -> int:
        """Throw all of them away; say how many that were."""
        return sum(self.remove(letter) for letter in self)
