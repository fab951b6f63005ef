"""Owners: a durable subscription that is not a group has one subscriber at a time, across all processes.

A key holds the owner. It is changed only if its value is still the one that was read. A new subscriber first asks the
old owner whether it is still running. If that process is not connected, the server answers at once. What one process at
a time may do, such as changing the stored topics, is owned in the same way, for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from trunkline.brokers.nats.link import NatsLink
from trunkline.brokers.nats.names import NatsNames
from trunkline.brokers.nats.refusals import CHANGED, JetStreamRefused, translated
from trunkline.errors import DuplicateName

if TYPE_CHECKING:
    from trunkline.brokers.nats.store import NatsStore

log = logging.getLogger("trunkline.connection")

ALIVE_S = 2.0
"""How long to wait for the answer of a process."""
ATTEMPTS = 2
"""The number of attempts. Between them, the server can notice a connection that has just broken."""
AGAIN_S = 0.02
OWNER_TABLE = "owner"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class Ownership(StrEnum):
    """The answer to the question whether a process owns a place."""

    MINE = "mine"
    LEAVING = "leaving"
    NOT_MINE = "not mine"
    NOBODY = "nobody"
    """Derived from the answer of the server: no such process is connected."""


class Owners:
    def __init__(self, link: NatsLink, names: NatsNames, store: NatsStore) -> None:
        self._link = link
        self._names = names
        self._store = store
        self._owned: dict[str, int] = {}
        """Places that this process owns, and the sequence number of the stored key; 0 while it is being stored."""
        self._leaving: set[str] = set()
        self._turn = asyncio.Lock()
        self.me = ""

    def _subject(self, place: str) -> str:
        return f"{self._names.kept}.{OWNER_TABLE}.{place}"

    async def own(self, place: str, role: str, *, briefly: bool = False) -> None:
        """Make this process the owner of a place. Raises DuplicateName if another running process owns it.

        If the other process owns it `briefly`, wait. Then DuplicateName means that the other process does not answer.
        """
        subject = self._subject(place)
        self._owned.setdefault(place, 0)
        if briefly:
            self._leaving.add(place)
        else:
            self._leaving.discard(place)
        try:
            while True:
                found = await self._store.js.message(self._names.kept, last_by_subj=subject)
                owner, number = ("", 0) if found is None else (found.data.decode(), found.seq)
                if owner not in ("", self.me):
                    await self._take_turn(owner, place, role)
                try:
                    self._owned[place] = await self._store.put(subject, self.me.encode(), {EXPECTED: str(number)})
                    return
                except JetStreamRefused as error:
                    if error.number not in CHANGED:
                        raise
                    log.debug("another process changed the owner of %s", role)
        except BaseException:
            self._owned.pop(place, None)
            raise

    @asynccontextmanager
    async def alone(self, what: str) -> AsyncIterator[None]:
        """Run a block in one process at a time. It does not wait for a process that does not answer."""
        async with self._turn:
            try:
                try:
                    await self.own(what, what, briefly=True)
                except DuplicateName:
                    log.warning("%s: the process that holds %s does not answer: going on", self._link.url, what)
                yield
            finally:
                self.leave(what)

    async def _take_turn(self, owner: str, place: str, role: str) -> None:
        """Return when the owner has released the place. Raises DuplicateName if it keeps the place."""
        while True:
            match await self._ask(owner, place):
                case Ownership.NOBODY | Ownership.NOT_MINE:
                    return
                case Ownership.LEAVING:
                    await asyncio.sleep(AGAIN_S)
                case _:
                    raise DuplicateName("subscriber", role)

    def leaving(self, place: str) -> None:
        """Note that a subscriber has stopped reading, and still holds entries."""
        self._leaving.add(place)

    def leave(self, place: str) -> None:
        self._leaving.discard(place)
        if (number := self._owned.pop(place, 0)) and self._link.live:
            self._link.publish(self._subject(place), b"", headers={EXPECTED: str(number)})

    # Which processes are running

    def answer(self, message: Msg) -> None:
        """Answer another process that asks whether this one is running and owns a place."""
        place = message.data.decode(errors="replace")
        mine = (
            Ownership.LEAVING
            if place in self._leaving
            else Ownership.MINE
            if place in self._owned
            else Ownership.NOT_MINE
        )
        if message.reply:
            self._link.publish(message.reply, mine.value.encode())

    async def is_connected(self, address: str) -> bool:
        """Whether another process is connected to the engine. True if it does not answer in time."""
        return await self._ask(address, "") is not Ownership.NOBODY

    async def _ask(self, address: str, place: str) -> Ownership:
        connection = self._link.required()
        subject = f"{self._names.control}alive.{address}"
        with translated(self._link.url):
            for _ in range(ATTEMPTS):
                try:
                    answer = await connection.request(subject, place.encode(), timeout=ALIVE_S)
                    return Ownership(answer.data.decode())
                except NoRespondersError:
                    return Ownership.NOBODY
                except NatsTimeoutError:
                    log.debug("%s does not answer the query whether it is alive", address)
        return Ownership.MINE
