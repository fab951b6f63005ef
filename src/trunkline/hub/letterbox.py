"""The letterbox: the dead letters in the hub's journal. Looked at in pages, given back to who failed, thrown away.

A letter is given back as it is in one process: it leaves the dead letters, and waits as a retry until it has its fate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from trunkline.brokers.broker import Broker
from trunkline.delivery.deadletters import Cause, DeadLetter
from trunkline.delivery.options import Delivery
from trunkline.errors import ProtocolError, TrunklineError
from trunkline.journal.broker import JournalBroker
from trunkline.journal.feeder import kept_for
from trunkline.journal.journal import Journal
from trunkline.journal.ledger import decode_letter, readable
from trunkline.journal.reader import Reader
from trunkline.message import Message
from trunkline.topic import matches

log = logging.getLogger("trunkline.hub")

SCANNED = 10_000
"""So many are looked at for one page: who asks for what is rare gets an empty page, and asks on."""

Key = tuple[str, int]
"""A subscriber, and the number of a message."""
Change = Callable[[DeadLetter, str | None], Message]
"""The message that a letter is given back as. It raises if the letter is to stay.

It gets the letter, and the pattern of the subscription that it died at, if that is a member of a group or durable.
"""
May = Callable[[DeadLetter, str | None], bool]


class Row(msgspec.Struct, frozen=True):
    """What is known of a letter before it is read."""

    at_ns: int
    subscriber: str
    seq: int
    topic: str
    size: int

    @property
    def key(self) -> Key:
        return self.subscriber, self.seq

    @property
    def place(self) -> str:
        return f"{self.at_ns}:{self.seq}:{self.subscriber}"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters, how many, and after which."""

    topic: str
    subscriber: str | None
    cause: Cause | None
    message_id: str | None
    limit: int
    max_bytes: int
    """They may be so large together; the first may be larger."""
    after: str

    def rows(self, reader: Reader) -> list[Row]:
        clauses, values = ["(at_ns, seq, subscriber) > (?, ?, ?)"], [*_place(self.after)]
        for column, wanted in (("subscriber", self.subscriber), ("cause", self.cause), ("id", self.message_id)):
            if wanted is not None:
                clauses.append(f"{column} = ?")
                values.append(str(wanted))
        found = reader.query(
            f"SELECT at_ns, subscriber, seq, topic, length(letter) FROM dead_letters WHERE {' AND '.join(clauses)}"
            f" ORDER BY at_ns, seq, subscriber LIMIT {SCANNED}",
            tuple(values),
        )
        return [Row(*row) for row in found]

    def pick(self, rows: list[Row], may: Callable[[str], bool]) -> tuple[list[Row], str]:
        """Those for one page, and the place after which the next begins; empty if there is none."""
        picked: list[Row] = []
        size = 0
        for at, row in enumerate(rows):
            if not matches(self.topic, row.topic) or not may(row.topic):
                continue
            if picked and (size + row.size > self.max_bytes or len(picked) >= self.limit):
                return picked, rows[at - 1].place
            picked.append(row)
            size += row.size
        return picked, rows[-1].place if len(rows) == SCANNED else ""


class Letterbox:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._journal = broker.journal if isinstance(broker, JournalBroker) else None
        self._turn = asyncio.Lock()
        """Who looks sees what was given back before, and nobody gives back the same letter twice."""

    @property
    def keeps(self) -> bool:
        return self._journal is not None

    @asynccontextmanager
    async def _written(self) -> AsyncIterator[Journal]:
        """The journal, for one at a time, with everything in it that happened so far."""
        if self._journal is None:
            raise ProtocolError("unknown", "this hub has no journal, and keeps no dead letters: start it with one")
        async with self._turn:
            await self._journal.flush()
            yield self._journal

    async def page(self, choice: Choice, may: Callable[[str], bool]) -> tuple[list[DeadLetter], str]:
        """Letters on topics where `may` says yes, oldest first, and where to go on; empty: these were the last."""
        if self._journal is None:
            return [], ""
        async with self._written() as journal:
            rows, more = choice.pick(await journal.in_thread(choice.rows), may)
            letters = [await self._read(journal, row.key) for row in rows]
        return [letter for letter in letters if letter is not None], more

    async def takers(self) -> set[str]:
        """Who takes letters back from the hub: members of groups that are here, and durable subscriptions."""
        if self._journal is None:
            return set()
        durable = await self._journal.in_thread(lambda reader: reader.query("SELECT name FROM cursors"))
        return self._here() | {name for (name,) in durable}

    def _here(self) -> set[str]:
        roster = self._broker.roster
        return {*roster.receivers, *(inbox.name for inbox in roster if not inbox.closed)}

    async def take(self, letters: Sequence[DeadLetter], fits: Callable[[Message], bool]) -> int:
        """Keep what a plain subscription gave up on, with the message as it is stored; how many were left out.

        What became of a message is the client's word, and how often it tried. What the message was is not.
        """
        refused = 0
        async with self._written() as journal:
            numbers = [letter.message.seq for letter in letters]
            stored = {each.seq: each for each in await journal.in_thread(lambda reader: reader.some(numbers))}
            for letter in letters:
                message = stored.get(letter.message.seq)
                if message is None or message.id != letter.message.id or not fits(message):
                    refused += 1
                    continue
                tried = replace(message, attempts=letter.message.attempts)
                journal.ledger.died(replace(letter, message=tried), None)
        return refused

    def is_taken(self, name: str) -> bool:
        """Whether a durable subscription, or a member of a group that is here, has this name."""
        return name in self._here()

    def belongs_to(self, name: str) -> list[str]:
        """What waits in the journal under a subscriber's name: the pattern of its cursor, the topics of its retries.

        It never waits: who subscribes hears what is published next. What is not written yet is given to nobody new.
        """
        if self._journal is None:
            return []
        reader = self._journal.reader
        topics = dict.fromkeys(each.message.topic for each in kept_for(reader, name))
        return [*_cursor(reader, name), *topics]

    async def _pattern(self, journal: Journal, name: str) -> str | None:
        """Of a durable subscription, or a member of a group that is here."""
        if found := await journal.in_thread(lambda reader: _cursor(reader, name)):
            return found[0]
        return next((inbox.pattern for inbox in self._broker.roster if inbox.name == name), None)

    async def replay(self, asked: Mapping[Key, Change]) -> dict[Key, TrunklineError]:
        """Give letters back to those who failed, each as its change says; those that stay, and why."""
        failed: dict[Key, TrunklineError] = {}
        async with self._written() as journal:
            for key, change in asked.items():
                try:
                    letter = await self._read(journal, key)
                    if letter is None:
                        raise missing(key)
                    pattern = await self._pattern(journal, letter.subscriber)
                    again = replace(letter, message=change(letter, pattern))
                    await self._wake(letter.subscriber, pattern)
                    self._broker.roster.dead_letters.replay_stored(again)
                except TrunklineError as error:
                    failed[key] = error
        return failed

    async def _wake(self, name: str, pattern: str | None) -> None:
        """See to it that somebody takes a letter back; raises ProtocolError if nobody does.

        A durable subscription that was not here since the hub began is opened for a moment: it has it when it comes.
        """
        if name in self._here():
            return
        if pattern is None:
            raise ProtocolError(
                "unknown",
                f"{name} takes nothing back from the hub: replay it where {name} runs, by bus.replay_dead(), "
                "or publish it again",
            )
        stand_in = self._broker.roster.free_name(f"{name} (for its letters)")
        stream = self._broker.subscribe(pattern, Delivery(name=stand_in, group=name, durable=True))
        await stream.aclose()

    async def remove(self, keys: Iterable[Key], may: May) -> set[Key]:
        """Throw letters away; which of them were there, and `may` says yes to."""
        gone: set[Key] = set()
        async with self._written() as journal:
            for key in keys:
                letter = await self._read(journal, key)
                if letter is not None and may(letter, await self._pattern(journal, letter.subscriber)):
                    if not self._broker.roster.dead_letters.remove(letter):
                        journal.ledger.removed(letter)
                    gone.add(key)
        return gone

    async def _read(self, journal: Journal, key: Key) -> DeadLetter | None:
        query = "SELECT letter FROM dead_letters WHERE subscriber = ? AND seq = ?"
        found = await journal.in_thread(lambda reader: reader.query(query, key))
        return readable(decode_letter, found[0][0], "a dead letter") if found else None


def _cursor(reader: Reader, name: str) -> list[str]:
    """The pattern of a durable subscription; none, if there is no such one."""
    return [pattern for (pattern,) in reader.query("SELECT pattern FROM cursors WHERE name = ?", (name,))]


def missing(key: Key) -> ProtocolError:
    return ProtocolError("unknown", f"there is no dead letter {key[1]} of {key[0]}: it was replayed, or removed")


def _place(text: str) -> tuple[int, int, str]:
    if not text:
        return -1, 0, ""
    try:
        at_ns, seq, subscriber = text.split(":", 2)
        place = int(at_ns), int(seq), subscriber
    except ValueError:
        place = (2**63, 0, "")
    if not all(-1 <= number < 2**63 for number in place[:2]):
        raise ProtocolError("malformed", f"no answer ended at {text[:80]!r}")
    return place
