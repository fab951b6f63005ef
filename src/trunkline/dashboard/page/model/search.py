"""Search for messages in a journal by id, topic, time, correlation and text, the newest first."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from trunkline.cli import show
from trunkline.errors import InvalidSettings, UsageError
from trunkline.journal.reader import Reader
from trunkline.message import Message
from trunkline.moment import utc
from trunkline.topic import EVERYTHING, matches, validate_pattern

STEP = 10_000
MAX_SCANNED = 500_000
"""A search stops after this many messages. `MessagesFound.complete` is then false."""
MAX_FOUND = 200


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query. A message must match all fields that are given."""

    text: str = ""
    """A text in the payload, a header, the sender, the recipient, the topic or an id. Case is ignored."""
    topic: str = ""
    """A pattern."""
    correlation: str = ""
    """A correlation id or a request id."""
    since: str = ""
    until: str = ""

    def check(self) -> None:
        """Raises UsageError or InvalidTopic if the query is not valid."""
        validate_pattern(self.topic or EVERYTHING)
        for name in ("since", "until"):
            if text := getattr(self, name):
                try:
                    utc(text)
                except InvalidSettings as error:
                    raise UsageError(f"{name} {error}") from None

    def fits(self, message: Message) -> bool:
        return (
            (not self.topic or matches(self.topic, message.topic))
            and (not self.correlation or self.correlation in (message.correlation_id, message.request_id))
            and (not self.text or _has(message, self.text.lower()))
            and (not self.since or message.timestamp_ns >= utc(self.since).timestamp() * 1e9)
            and (not self.until or message.timestamp_ns < utc(self.until).timestamp() * 1e9)
        )


class MessagesFound(msgspec.Struct, frozen=True):
    messages: list[Message]
    """The newest first."""
    scanned: int
    complete: bool
    """False if there may be more."""


def find_messages(reader: Reader, query: MessageQuery, limit: int = MAX_FOUND) -> MessagesFound:
    """Search from the newest message backwards. Raises UsageError if the query is not valid."""
    query.check()
    if (
        query.text
        and not query.topic
        and not query.correlation
        and (found := reader.find(query.text, everywhere=False)) is not None
    ):
        return MessagesFound([found], 1, True)
    begin, end = (utc(text) if text else None for text in (query.since, query.until))
    found_messages: list[Message] = []
    scanned = 0
    last = reader.last()
    while last > 0 and len(found_messages) < limit and scanned < MAX_SCANNED:
        first = max(1, last - STEP + 1)
        part = list(reader.messages(query.topic or EVERYTHING, first=first, last=last, since=begin, until=end))
        scanned += last - first + 1
        found_messages += [message for message in reversed(part) if query.fits(message)]
        last = first - 1
    return MessagesFound(found_messages[:limit], scanned, last <= 0 and len(found_messages) <= limit)


def _has(message: Message, needle: str) -> bool:
    return any(needle in text.lower() for text in _texts(message))


def _texts(message: Message) -> Iterator[str]:
    yield message.topic
    yield message.id
    yield message.sender
    yield message.correlation_id or ""
    yield message.request_id or ""
    yield message.recipient or ""
    for key, value in (message.headers or {}).items():
        yield key
        yield value
    value = show.payload(message)
    yield value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)


def related(reader: Reader, message: Message, most: int = MAX_FOUND) -> list[Message]:
    """The messages of its conversation, in order: messages near its number that share ids, directly or indirectly."""
    nearby = list(reader.messages(first=max(1, message.seq - STEP), last=message.seq + STEP))
    names = _names(message)
    found = {message.seq: message}
    while len(found) < most:
        more = [each for each in nearby if each.seq not in found and _names(each) & names]
        if not more:
            break
        for each in more:
            found[each.seq] = each
            names |= _names(each)
    return [found[seq] for seq in sorted(found)][:most]


def _names(message: Message) -> set[str]:
    return {name for name in (message.id, message.correlation_id, message.request_id) if name}
