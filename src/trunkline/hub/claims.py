"""Claims: the fates and dead letters that a client reports, checked before they are recorded. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from msgspec.structs import replace

from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.errors import InvalidMessage, InvalidPayload, PayloadError, ProtocolError
from trunkline.wire.control import FateRow

MAX_REASON = 1000
MAX_NS = 2**63 - 1
ENDS = frozenset({Fate.FILTERED, Fate.EXPIRED, Fate.DROPPED, Fate.DEAD})
"""The fates of a message other than delivery."""


def not_sent(count: int, name: str) -> ProtocolError:
    return ProtocolError("unknown", f"{count} of these are about messages that {name} was not sent: they are ignored")


def ended(fate: str) -> Fate:
    """Raises ProtocolError unless this is a valid fate of a message that was sent."""
    if fate not in ENDS:
        raise ProtocolError("malformed", f"{fate[:40]!r} is not a fate of a message that was sent")
    return Fate(fate)


def letter(data: str, last: int) -> DeadLetter:
    """The dead letter that a client reports, for a message up to number `last`; raises ProtocolError."""
    try:
        read = DeadLetter.from_bytes(base64.b64decode(data, validate=True))
        if not 0 < read.message.seq <= last:
            raise InvalidPayload(f"there is no message {read.message.seq}")
        read.message.check()
    except (binascii.Error, ValueError, PayloadError, InvalidMessage) as error:
        raise ProtocolError("malformed", f"not a dead letter: {error}") from error
    return replace(read, reason=read.reason[:MAX_REASON], at_ns=min(max(0, read.at_ns), MAX_NS))


def fates(rows: list[FateRow], last: int) -> Iterator[tuple[Fate, FateRow]]:
    """The rows that can be recorded, for messages up to number `last`. Raises ProtocolError."""
    for row in rows:
        fate = Fate(row.fate) if row.fate in (Fate.DELIVERED, Fate.IN_FLIGHT) else ended(row.fate)
        if not 0 < row.first <= row.last <= last or row.count != row.last - row.first + 1:
            raise ProtocolError("malformed", f"there cannot be {row.count} messages from {row.first} to {row.last}")
        yield fate, row if len(row.reason) <= MAX_REASON else replace(row, reason=row.reason[:MAX_REASON])
