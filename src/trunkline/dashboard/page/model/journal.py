"""Reading of a journal for the page: in a thread, without the lock, while another process writes to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from trunkline.cli.pipeline import warehouse_of
from trunkline.dashboard.page.model.history import HOUR_S, percentiles
from trunkline.dashboard.page.model.requests import RequestRow, requests_in
from trunkline.dashboard.page.model.search import MessageQuery, MessagesFound, find_messages, related
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Outcome
from trunkline.journal import records
from trunkline.journal.database import FILE
from trunkline.journal.dead_letters import letters_in
from trunkline.journal.rates import accepted_over_time, delivery_delays_ns
from trunkline.journal.reader import Reader
from trunkline.journal.records import OrphanRecord
from trunkline.journal.stats import stats
from trunkline.message import Message
from trunkline.spark.pipeline.status import Status, status
from trunkline.wire.snapshot import HubSnapshot, SubscriberSnapshot, TopicSnapshot

T = TypeVar("T")
FOREVER = 2**62
REPORT = "report.html"
"""The file in the warehouse to which `trunkline pipeline report --output` must write the report for the page."""
MAX_SAMPLE = 2000
MAX_RECENT = 20_000
SECOND_NS = 1_000_000_000


class MessageRecords(msgspec.Struct, frozen=True):
    """All data of a journal about one message."""

    message: Message | None = None
    outcomes: list[Outcome] = []
    letters: list[DeadLetter] = []
    conversation: list[Message] = []


class JournalHistory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def there(cls, directory: Path) -> JournalHistory | None:
        """None if the journal is on another machine, or this process may not read it."""
        return cls(directory) if os.access(directory / FILE, os.R_OK) else None

    async def _read(self, question: Callable[[Reader], T]) -> T:
        def work() -> T:
            with Reader(self.directory) as reader:
                return question(reader)

        return await asyncio.to_thread(work)

    async def find(self, query: MessageQuery, limit: int) -> MessagesFound:
        return await self._read(lambda reader: find_messages(reader, query, limit))

    async def records_of(self, message_id: str) -> MessageRecords:
        def look(reader: Reader) -> MessageRecords:
            message = reader.find(message_id)
            if message is None:
                return MessageRecords()
            letters = [each for each in letters_in(reader) if each.message.id == message_id]
            return MessageRecords(message, reader.outcomes(message), letters, related(reader, message))

        return await self._read(look)

    async def letters(self) -> list[DeadLetter]:
        return await self._read(lambda reader: list(letters_in(reader)))

    async def accepted(self, until_ns: int | None, step_s: int) -> dict[int, float]:
        """Messages of the hour before `until_ns`, or of the last hour of the journal, by number of the time step."""

        def look(reader: Reader) -> dict[int, float]:
            end_ns = records.last_accepted_ns(reader) if until_ns is None else until_ns
            return accepted_over_time(reader, end_ns - HOUR_S * SECOND_NS, step_s * SECOND_NS)

        return await self._read(look)

    async def delays_ms(self) -> tuple[float, float, float]:
        """The time from commit to fate of the newest deliveries: the median and the 95th and 99th percentiles."""
        found = await self._read(lambda reader: delivery_delays_ns(reader, MAX_SAMPLE))
        return percentiles([delay / 1e6 for delay in found])

    async def requests(self) -> list[RequestRow]:
        """The requests among the newest messages, the newest first."""

        def look(reader: Reader) -> list[RequestRow]:
            last = reader.last()
            return requests_in(reader.messages(first=max(1, last - MAX_RECENT), last=last))

        return await self._read(look)

    async def pipeline(self) -> Status | None:
        warehouse = warehouse_of(self.directory, None)
        return await asyncio.to_thread(status, self.directory, warehouse) if warehouse.is_dir() else None

    def report(self) -> Path | None:
        path = warehouse_of(self.directory, None) / REPORT
        return path if path.is_file() else None

    async def orphans(self) -> list[OrphanRecord]:
        """All orphans, the newest first."""
        return (await self._read(lambda reader: records.orphans(reader, 0, FOREVER)))[::-1]

    async def senders(self) -> dict[str, set[str]]:
        """The topics of each sender among the newest messages."""

        def look(reader: Reader) -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for each in reader.tail(">", MAX_SAMPLE):
                found.setdefault(each.sender, set()).add(each.topic)
            return found

        return await self._read(look)

    async def snapshot(self, at_ns: int) -> HubSnapshot:
        """The journal in the form of a hub snapshot: without clients, and with counts of stored messages."""
        found = await asyncio.to_thread(stats, self.directory)
        return HubSnapshot(
            at_ns=at_ns,
            hub=found.identity or "",
            since_ns=0,
            listening=[],
            published=found.messages + found.sealed_messages,
            last=found.last,
            journal=found.directory,
            dead_letters=sum(found.dead_letters.values()),
            orphans=found.orphans,
            subscribers=[
                SubscriberSnapshot(
                    name=each.name, pattern=each.pattern, connected=False, durable=True, behind=each.behind
                )
                for each in found.cursors
            ],
            subscribers_total=len(found.cursors),
            topics=[TopicSnapshot(topic=each.topic, published=each.messages) for each in found.topics],
            topics_total=len(found.topics),
        )
