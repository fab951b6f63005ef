"""The subscribers that share a durable subscription, and which of them gets the next message. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline.delivery.inbox import Inbox
from trunkline.delivery.route import SubscriberGroup
from trunkline.journal.backlog import LargeMessages
from trunkline.message import Message

LARGE_BYTES: Final = 4096
MAX_LARGE_BYTES: Final = 64 * 1024 * 1024
"""The limit for large messages of one member, in bytes. Small ones are limited by the capacity of its inbox."""


class FeederMembers:
    def __init__(self, name: str) -> None:
        self.all: list[Inbox] = []
        self.enough = 1
        """After this many settled messages it is checked whether there is room: half of their capacity."""
        self._group = SubscriberGroup(name)
        self._large = LargeMessages()

    def __bool__(self) -> bool:
        return bool(self.all)

    def add(self, inbox: Inbox) -> None:
        self.all.append(inbox)
        self._measure()

    def remove(self, inbox: Inbox) -> None:
        self.all.remove(inbox)
        self._measure()

    def _measure(self) -> None:
        self.enough = max(1, sum(member.capacity for member in self.all) // 2)

    @property
    def abandoned(self) -> list[Inbox]:
        """Members whose streams were garbage-collected."""
        return [member for member in self.all if member.abandoned]

    # Choosing a member

    @property
    def room(self) -> int:
        """The number of messages for which there is room."""
        light = (member for member in self.all if not (self._large and self._is_heavy(member)))
        return sum(member.free for member in light if not member.closed)

    def free(self) -> Inbox | None:
        """The member that gets the next message; None if none has room."""
        members = self.all
        if self._large:
            members = [member for member in members if not self._is_heavy(member)]
        if len(members) == 1:
            only = members[0]
            return only if only.free > 0 and not only.closed and not only.abandoned else None
        free = [member for member in members if member.free > 0 and not member.closed and not member.abandoned]
        if len(free) <= 1:
            return free[0] if free else None
        return self._group.pick(free)

    def successor_of(self, leaver: Inbox) -> Callable[[Message], Inbox | None]:
        """The member that takes over from one that leaves."""

        def choose(message: Message) -> Inbox | None:
            stay = [member for member in self.all if member is not leaver and not member.closed]
            return self._group.pick(stay) if stay else None

        return choose

    # Messages of each member

    def hand(self, message: Message, inbox: Inbox) -> None:
        if len(message.payload) > LARGE_BYTES:
            self._large.hand(message.seq, len(message.payload), inbox)

    def pass_on(self, message: Message, successor: Inbox) -> None:
        if message.seq in self._large:
            self._large.hand(message.seq, len(message.payload), successor)

    def take(self, seq: int) -> None:
        self._large.take(seq)

    def _is_heavy(self, inbox: Inbox) -> bool:
        return self._large.bytes_of(inbox) >= MAX_LARGE_BYTES
