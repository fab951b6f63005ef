"""Leases: which messages are held, and until when. Pure: the caller passes the time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trunkline.message import Message


class Leases:
    """Messages handed out and not yet acknowledged, by sequence number. All leases last equally long.

    Kept in the order in which they end, so that the next to end is found without a search.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.held: dict[int, tuple[Message, float]] = {}
        """Each message with the end of its lease: `math.inf` if it is held as long as its handler runs."""

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, seq: int) -> bool:
        return seq in self.held

    def grant(self, message: Message, now: float) -> None:
        self.held.pop(message.seq, None)
        self.held[message.seq] = (message, now + self.lease_s)

    def grant_many(self, messages: Sequence[Message], now: float) -> None:
        ends = now + self.lease_s
        held = self.held
        for message in messages:
            seq = message.seq
            if seq in held:
                # Moved to the end, because the order is that of the lease ends.
                del held[seq]
            held[seq] = (message, ends)

    def renew(self, seq: int, now: float) -> bool:
        """Hold it for another full lease; False if it is not held (any more)."""
        held = self.held.pop(seq, None)
        if held is None:
            return False
        self.held[seq] = (held[0], now + self.lease_s)
        return True

    def end(self, seq: int) -> Message | None:
        held = self.held.pop(seq, None)
        return None if held is None else held[0]

    def end_many(self, messages: Sequence[Message]) -> list[Message]:
        """End the leases of these messages. Returns those that were held, as defined by `holds`."""
        held = self.held
        ended: list[Message] = []
        for message in messages:
            seq = message.seq
            found = held.get(seq)
            if found is not None and (found[0] is message or found[0].attempts == message.attempts):
                del held[seq]
                ended.append(message)
        return ended

    def holds(self, message: Message) -> bool:
        """Whether this attempt at the message is held. A later attempt has its own lease."""
        held = self.held.get(message.seq)
        return held is not None and (held[0] is message or held[0].attempts == message.attempts)

    def original(self, message: Message) -> Message:
        """The message as it was handed out, if this is a copy of it."""
        return self.held[message.seq][0] if self.holds(message) else message

    def due(self, now: float) -> list[Message]:
        """The messages whose leases have ended, the longest overdue first. They stay held until `end` or `renew`."""
        due: list[Message] = []
        for message, ends in self.held.values():
            if ends == math.inf:
                continue
            if ends > now:
                break
            due.append(message)
        return due

    def next_end(self) -> float | None:
        return next((ends for _, ends in self.held.values() if ends != math.inf), None)

    def messages(self) -> list[Message]:
        return [message for message, _ in self.held.values()]
