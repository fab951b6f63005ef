"""The dead letters in a journal: read in pages, redelivered to the subscribers that failed, removed.

A letter that is redelivered is no longer a dead letter. It waits as a retry until it has its fate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from trunkline.brokers.store import Change
from trunkline.delivery.dead_letters import Choice, DeadLetter, Key
from trunkline.delivery.options import Delivery
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscribers import Subscribers
from trunkline.errors import ProtocolError, TrunklineError
from trunkline.journal.journal import Journal
from trunkline.journal.kept import kept_for
from trunkline.journal.ledger import decode_letter, readable
from trunkline.journal.reader import Reader
from trunkline.message import Message
from trunkline.topic import matches

SCANNED = 10_000
"""The maximum number of letters examined for one page.

A query for rare letters can get an empty page, and continues.
"""


class DeadLetterRow(msgspec.Struct, frozen=True):
    """The columns of a letter, without its body."""

    at_ns: int
    subscriber: str
    seq: int
    topic: str
    size: int

    @property
    def place(self) -> str:
        return f"{self.at_ns}:{self.seq}:{self.subscriber}"


def letters_in(reader: Reader) -> Iterator[DeadLetter]:
    """All dead letters that can be read, oldest first."""
    for (data,) in reader.query("SELECT letter FROM dead_letters ORDER BY at_ns"):
        if (letter := _letter(data)) is not None:
            yield letter


class JournalDeadLetters:
    def __init__(self, journal: Journal, served: Subscribers, subscribe: Callable[[str, Delivery], Stream]) -> None:
        self._journal = journal
        self._served = served
        self._subscribe = subscribe
        self._turn = asyncio.Lock()
        """Serializes access, so that readers see earlier replays, and no letter is replayed twice."""

    def restore(self, most: int) -> None:
        """Load the last letters of earlier runs."""
        query = "SELECT letter FROM (SELECT at_ns, letter FROM dead_letters ORDER BY at_ns DESC LIMIT ?) ORDER BY at_ns"
        for (data,) in self._journal.reader.query(query, (most,)):
            if (letter := _letter(data)) is not None:
                self._served.dead_letters.restore(letter)

    @asynccontextmanager
    async def _written(self) -> AsyncIterator[None]:
        """Exclusive access to the dead letters, after all earlier changes were written to the journal."""
        async with self._turn:
            await self._journal.flush()
            yield

    async def page(
        self, choice: Choice, limit: int, max_bytes: int, after: str, may_see: Callable[[str], bool]
    ) -> tuple[list[tuple[DeadLetter, bool]], str]:
        async with self._written():
            rows = await self._journal.in_thread(lambda reader: _rows(reader, choice, after))
            wanted = [row for row in rows if matches(choice.topic, row.topic) and may_see(row.topic)]
            picked, size = 0, 0
            for row in wanted:
                size += row.size
                if picked and (size > max_bytes or picked >= limit):
                    break
                picked += 1
            letters = [await self._read((row.subscriber, row.seq)) for row in wanted[:picked]]
            durable = await self._journal.in_thread(lambda reader: reader.query("SELECT name FROM cursors"))
        names = {name for (name,) in durable}
        last = wanted[picked - 1] if picked < len(wanted) else rows[-1] if len(rows) == SCANNED else None
        more = "" if last is None else last.place
        takes = self._served.takes_back
        found = [(each, each.subscriber in names or takes(each.subscriber)) for each in letters if each is not None]
        return found, more

    async def take(self, letters: Sequence[DeadLetter], fits: Callable[[Message], bool]) -> int:
        # The fate and the attempts come from the client. The message itself comes from the journal.
        refused = 0
        async with self._written():
            numbers = [letter.message.seq for letter in letters]
            stored = {each.seq: each for each in await self._journal.in_thread(lambda reader: reader.some(numbers))}
            for letter in letters:
                message = stored.get(letter.message.seq)
                if message is None or message.id != letter.message.id or not fits(message):
                    refused += 1
                    continue
                tried = replace(message, attempts=letter.message.attempts)
                self._journal.ledger.died(replace(letter, message=tried), None)
        return refused

    def waiting_for(self, name: str) -> list[str]:
        # This does not wait for pending writes: a new subscriber gets only later messages.
        reader = self._journal.reader
        topics = dict.fromkeys(each.message.topic for each in kept_for(reader, name))
        return [*_cursor(reader, name), *topics]

    async def replay(self, changes: Mapping[Key, Change]) -> dict[Key, TrunklineError]:
        failed: dict[Key, TrunklineError] = {}
        async with self._written():
            for key, change in changes.items():
                try:
                    letter = await self._read(key)
                    if letter is None:
                        raise missing(key)
                    pattern = await self._pattern(letter.subscriber)
                    again = replace(letter, message=change(letter, pattern))
                    await self._wake(letter.subscriber, pattern)
                    self._served.dead_letters.replay_stored(again)
                except TrunklineError as error:
                    failed[key] = error
        return failed

    async def remove(self, keys: Iterable[Key], may: Callable[[DeadLetter, str | None], bool]) -> set[Key]:
        gone: set[Key] = set()
        async with self._written():
            for key in keys:
                letter = await self._read(key)
                if letter is not None and may(letter, await self._pattern(letter.subscriber)):
                    if not self._served.dead_letters.remove(letter):
                        self._journal.ledger.removed(letter)
                    gone.add(key)
        return gone

    async def _wake(self, name: str, pattern: str | None) -> None:
        """Make sure that a subscriber can take a redelivered letter; raises ProtocolError if there is none.

        A durable subscription that was not opened in this process is opened briefly, so that it gets its letter when it
        connects.
        """
        if self._served.takes_back(name):
            return
        if pattern is None:
            raise ProtocolError(
                "unknown",
                f"the hub cannot redeliver to {name}: call bus.replay_dead() in the process of {name}, "
                "or publish it again",
            )
        stand_in = self._served.free_name(f"{name} (for its letters)")
        await self._subscribe(pattern, Delivery(name=stand_in, group=name, durable=True)).aclose()

    async def _pattern(self, name: str) -> str | None:
        """The pattern of a durable subscription, or of a connected group."""
        if found := await self._journal.in_thread(lambda reader: _cursor(reader, name)):
            return found[0]
        return next((inbox.pattern for inbox in self._served if inbox.name == name), None)

    async def _read(self, key: Key) -> DeadLetter | None:
        query = "SELECT letter FROM dead_letters WHERE subscriber = ? AND seq = ?"
        found = await self._journal.in_thread(lambda reader: reader.query(query, key))
        return _letter(found[0][0]) if found else None


def _letter(data: bytes) -> DeadLetter | None:
    return readable(decode_letter, data, "a dead letter")


def _rows(reader: Reader, choice: Choice, after: str) -> list[DeadLetterRow]:
    clauses, values = ["(at_ns, seq, subscriber) > (?, ?, ?)"], [*_place(after)]
    for column, wanted in (("subscriber", choice.subscriber), ("cause", choice.cause), ("id", choice.message_id)):
        if wanted is not None:
            clauses.append(f"{column} = ?")
            values.append(str(wanted))
    found = reader.query(
        f"SELECT at_ns, subscriber, seq, topic, length(letter) FROM dead_letters WHERE {' AND '.join(clauses)}"
        f" ORDER BY at_ns, seq, subscriber LIMIT {SCANNED}",
        tuple(values),
    )
    return [DeadLetterRow(*row) for row in found]


def _cursor(reader: Reader, name: str) -> list[str]:
    """The pattern of a durable subscription; None if it does not exist."""
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
        raise ProtocolError("malformed", f"{text[:80]!r} is not the end of a page of dead letters")
    return place
