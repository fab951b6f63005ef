"""The model of the page: the newest snapshot, an hour of history, and the queries of views and tests.

It polls the hub a few times a second while the page is open in a browser, and not otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from trunkline.actors.health import ActorHealth
from trunkline.brokers.hub.broker import HubBroker
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.store import KeptDeadLetter
from trunkline.bus.bus import Bus
from trunkline.clock import World
from trunkline.connect import connect, connect_hub
from trunkline.dashboard.looks import channels_in_use, roll_call
from trunkline.dashboard.page.model.executions import KernelExecution, executions_in, requests_to, topics_of
from trunkline.dashboard.page.model.history import TrafficHistory
from trunkline.dashboard.page.model.journal import JournalHistory
from trunkline.dashboard.page.model.letters import LetterGroup, group_letters
from trunkline.dashboard.page.model.life import MessageLife, make_life
from trunkline.dashboard.page.model.requests import RequestRow
from trunkline.dashboard.page.model.search import MAX_FOUND, MessageQuery, MessagesFound
from trunkline.dashboard.page.model.tail import LiveTail
from trunkline.dashboard.page.model.topology import TopologyGraph, topology_of
from trunkline.dashboard.problems import Problem, problems
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.errors import TrunklineError, UsageError
from trunkline.journal.records import OrphanRecord
from trunkline.jupyter.presence import SharedKernel, shared_kernels
from trunkline.memory.survey import MemorySurvey, survey
from trunkline.message import ELIDED, Message
from trunkline.spark.pipeline.status import Status
from trunkline.topic import matches
from trunkline.wire.control import ChannelInfo, LetterFailure, SchemaInfo
from trunkline.wire.snapshot import HubSnapshot

EVERY_S = 0.4
"""The time between two snapshots."""
ATTENTION_S = 2.0
"""The page counts as open for this long after the last call of `look`."""
ANSWER_S = 5.0
CONNECT_S = 1.0
ROWS = 1000
MAX_LETTERS = 20_000
LETTERS_S = 10.0
"""The longest time between two reads of dead letters.

If one is added and another removed, their number stays the same, and the change is seen only then.
"""
ROLL_CALL_S = 0.5
MAX_EXECUTIONS = 30
MAX_OF_KERNEL = 2000
"""The most messages that are read of a kernel. Each printed line is a message."""
STEP_S = 10
"""The time step of the history that is read from a journal."""
READ_ONLY = "the page shows a journal without its hub: start `trunkline page --hub URL` to change anything"


class PageModel:
    """`async with PageModel(hub=URL)`, or `PageModel(journal=DIRECTORY)` for history alone."""

    def __init__(self, *, hub: str | None = None, journal: Path | None = None, world: World | None = None) -> None:
        if (hub is None) == (journal is None):
            raise UsageError("the page shows a hub or a journal: pass one of them")
        self.world = world or World()
        self.place = hub if hub is not None else str(journal)
        self.snapshot: HubSnapshot | None = None
        self.trouble = ""
        """The reason why there is no newer snapshot; empty if there is no problem."""
        self.version = 0
        """Incremented with each snapshot, and when an error changes `trouble`."""
        self.asked = 0
        """The number of snapshots that were requested."""
        self.history = TrafficHistory()
        self.journal = JournalHistory(journal) if journal is not None else None
        self._hub = hub
        self._broker: HubBroker | None = None
        self._bus: Bus | None = None
        self.tail: LiveTail | None = None
        self._looked = asyncio.Event()
        self._looked_at_s = -ATTENTION_S
        self._task: asyncio.Task[None] | None = None
        self._recalled = False
        self._groups: tuple[list[LetterGroup], int, float] = [], 0, -LETTERS_S
        self._stack = contextlib.AsyncExitStack()

    @property
    def live(self) -> bool:
        """Whether the model shows a hub, not only a journal."""
        return self._hub is not None

    async def __aenter__(self) -> Self:
        if self._hub is not None:
            how = ConnectionSettings(connect_s=CONNECT_S)
            self._broker = await self._stack.enter_async_context(
                connect_hub(self._hub, name="trunkline page", connection=how)
            )
            self._bus = await self._stack.enter_async_context(connect(self._broker, name="trunkline page"))
            self.tail = LiveTail(self._bus)
            self._stack.push_async_callback(self.tail.aclose)
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="page: snapshots")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stack.aclose()

    # Snapshots

    def look(self) -> HubSnapshot | None:
        """The newest snapshot. Each call keeps the polling of the hub active for ATTENTION_S."""
        self._looked_at_s = asyncio.get_running_loop().time()
        self._looked.set()
        return self.snapshot

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._looked.wait()
            began_s = loop.time()
            await self.refresh()
            if loop.time() - self._looked_at_s > ATTENTION_S:
                self._looked.clear()
            # The pause is at least as long as the last request took, so a slow hub is polled less often.
            await asyncio.sleep(max(EVERY_S, loop.time() - began_s))

    async def refresh(self) -> None:
        """Request one snapshot now. An error is stored in `trouble`."""
        self.asked += 1
        began_ns = self.world.time_ns()
        try:
            async with asyncio.timeout(ANSWER_S):
                snapshot = await self._take_snapshot()
        except TimeoutError:
            self._fail(f"{self.place} does not answer")
        except (TrunklineError, OSError) as error:
            self._fail(str(error))
        else:
            self.snapshot, self.trouble = snapshot, ""
            if self.live:
                self.history.add(snapshot, (self.world.time_ns() - began_ns) / 1e9)
            self.version += 1
            if self.journal is None and snapshot.journal:
                # If the journal is readable on this machine, the page can show more than the hub alone provides.
                self.journal = JournalHistory.there(Path(snapshot.journal))
            if self.journal is not None and not self._recalled:
                self._recalled = True
                self.history.recall(await self.journal.accepted(snapshot.at_ns if self.live else None, STEP_S), STEP_S)

    async def _take_snapshot(self) -> HubSnapshot:
        if self._broker is not None:
            return await self._broker.snapshot(ROWS)
        assert self.journal is not None
        return await self.journal.snapshot(self.world.time_ns())

    def _fail(self, why: str) -> None:
        if why != self.trouble:
            self.trouble = why
            self.version += 1

    def problems(self) -> list[Problem]:
        return [] if self.snapshot is None or not self.live else problems(self.snapshot)

    # Messages

    async def find_messages(self, query: MessageQuery, limit: int = MAX_FOUND) -> MessagesFound:
        """Messages from the journal, or without one, from the live tail. Raises UsageError."""
        query.check()
        if self.journal is not None:
            return await self.journal.find(query, limit)
        seen = [] if self.tail is None else self.tail.newest(2000)
        return MessagesFound([each for each in seen if query.fits(each)], len(seen), False)

    async def life_of(self, message_id: str) -> MessageLife:
        """All that is known about a message. Raises HubUnavailable if there is neither a hub nor a journal."""
        message, outcomes, note = None, [], ""
        letters: Sequence[DeadLetter] = ()
        if self._bus is not None:
            explained = await self._bus.explain(message_id)
            message, outcomes, note = explained.message, list(explained.outcomes), explained.note
            letters = [each.letter for each in await self._letters(message_id)]
        if self.journal is not None:
            stored = await self.journal.records_of(message_id)
            known = {each.subscriber for each in outcomes}
            outcomes += [each for each in stored.outcomes if each.subscriber not in known]
            message = stored.message or message
            return make_life(message_id, message, outcomes, letters or stored.letters, stored.conversation, note)
        if self.tail is not None and (message is None or message.encoding == ELIDED):
            message = self.tail.find(message_id) or message
        return make_life(message_id, message, outcomes, letters, (), note)

    # Dead letters

    async def letter_groups(self) -> list[LetterGroup]:
        """Dead letters by cause. They are read again when their number has changed, at most once a second."""
        now_s = asyncio.get_running_loop().time()
        count = -1 if self.snapshot is None else self.snapshot.dead_letters
        known, known_count, known_s = self._groups
        if now_s - known_s > (LETTERS_S if count == known_count >= 0 else 1.0):
            known = group_letters(await self._letters(brief=True))
            self._groups = known, count, now_s
        return known

    async def letter(self, message_id: str, subscriber: str) -> KeptDeadLetter | None:
        """One dead letter in full, with its payload, attempts and traceback; None if it no longer exists."""
        found = [each for each in await self._letters(message_id) if each.letter.subscriber == subscriber]
        return found[0] if found else None

    async def _letters(self, message_id: str | None = None, *, brief: bool = False) -> list[KeptDeadLetter]:
        if self._broker is not None:
            return await self._broker.dead_letters.find(message_id=message_id, limit=MAX_LETTERS, brief=brief)
        assert self.journal is not None
        found = await self.journal.letters()
        return [KeptDeadLetter(each, True, False) for each in found if message_id in (None, each.message.id)]

    async def replay(self, letters: Sequence[KeptDeadLetter], payload: object = None) -> list[LetterFailure]:
        """Redeliver dead letters to the subscribers that failed. A given `payload` replaces that of a single letter."""
        changes = (
            {} if payload is None else {"payload": payload, "content_type": letters[0].letter.message.content_type}
        )
        failures = await self._changing().dead_letters.replay([each.letter for each in letters], **changes)
        await self._changed()
        return failures

    async def drop(self, letters: Sequence[KeptDeadLetter]) -> int:
        """Delete dead letters. Returns how many were deleted."""
        kept = self._changing().dead_letters
        for each in letters:
            kept.removed(each.letter)
        left = {each.letter.key for each in await kept.find(limit=MAX_LETTERS, brief=True)}
        await self._changed()
        return sum(each.letter.key not in left for each in letters)

    async def _changed(self) -> None:
        self._groups = [], 0, -LETTERS_S
        await self.refresh()

    def _changing(self) -> HubBroker:
        if self._broker is None:
            raise UsageError(READ_ONLY)
        return self._broker

    # Other queries

    async def channels(self) -> list[ChannelInfo]:
        """The channels with their producers and consumers."""
        return [] if self._broker is None else await channels_in_use(self._broker)

    async def schemas(self, name: str = "") -> list[SchemaInfo]:
        """The last version of each schema, or all versions of the schema `name`."""
        return [] if self._broker is None else await self._broker.directory.schemas(name) or []

    async def schema(self, name: str, version: str) -> SchemaInfo | None:
        return None if self._broker is None else await self._broker.directory.get_schema(name, version)

    async def schema_for(self, message: Message) -> SchemaInfo | None:
        """The schema that a message names, or else the schema of the channel of its topic."""
        if self._broker is None:
            return None
        hash = message.schema or ""
        if not hash:
            known = await self._broker.directory.channels() or []
            mine = [each for each in known if each.schema_hash and matches(each.pattern, message.topic)]
            hash = mine[0].schema_hash if mine else ""
        return await self._broker.directory.get_schema(hash=hash) if hash else None

    async def actors(self) -> list[ActorHealth]:
        """All actors that answer within ROLL_CALL_S, those with the fullest mailboxes first."""
        return [] if self._bus is None else await roll_call(self._bus, ROLL_CALL_S)

    async def kernels(self) -> list[SharedKernel]:
        return [] if self._bus is None else await shared_kernels(self._bus)

    async def executions(self, kernel_id: str) -> list[KernelExecution]:
        """The recent executions, the newest first. Without a journal: those seen while a view was open."""
        if self.tail is not None and self.journal is None:
            self.tail.want(ATTENTION_S)
        # Requests are searched on their own: an execution with more output than the limit is still listed.
        asked = await self.find_messages(MessageQuery(topic=requests_to(kernel_id)), MAX_EXECUTIONS)
        found = await self.find_messages(MessageQuery(topic=topics_of(kernel_id)), MAX_OF_KERNEL)
        messages = {each.seq: each for each in (*asked.messages, *found.messages)}
        return executions_in(messages[seq] for seq in sorted(messages))

    async def memory(self) -> MemorySurvey:
        """The shared memory of all processes on this machine."""
        return await asyncio.to_thread(survey)

    async def delays_ms(self) -> tuple[float, float, float] | None:
        """The median and the 95th and 99th percentiles of recent delivery times. None without a journal."""
        return None if self.journal is None else await self.journal.delays_ms()

    async def requests(self) -> list[RequestRow]:
        """The recent requests, the newest first."""
        return [] if self.journal is None else await self.journal.requests()

    async def pipeline(self) -> Status | None:
        """The status of the pipeline; None if there is no warehouse at its default place beside the journal."""
        return None if self.journal is None else await self.journal.pipeline()

    def report(self) -> Path | None:
        """The report in the warehouse; None if there is none."""
        return None if self.journal is None else self.journal.report()

    async def orphans(self) -> list[OrphanRecord]:
        return [] if self.journal is None else await self.journal.orphans()

    async def topology(self) -> TopologyGraph | None:
        if self.snapshot is None:
            return None
        senders = await self.journal.senders() if self.journal is not None else {}
        if self.tail is not None and not senders:
            self.tail.want(ATTENTION_S)
            senders = self.tail.senders()
        return topology_of(self.snapshot, senders, self.history.topic_rate)
