"""`trunkline record`: keep topics of a NATS or Redis server, or of a hub, in a journal, exactly once.

The recorder is a durable subscriber. It acknowledges a message after it is on disk. If the recorder dies between the
two steps, the engine redelivers the message. Each message is recorded with its sequence number in the engine's store; a
redelivered message whose number is among the last in the journal is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from trunkline.bus.bus import Bus
from trunkline.cli import show
from trunkline.cli.options import AsJson
from trunkline.connect import connect
from trunkline.delivery.stream import Stream
from trunkline.hub.serve import run, until_signal
from trunkline.journal.journal import Journal
from trunkline.message import Message
from trunkline.topic import EVERYTHING, validate_pattern

SOURCE = "recorded-from"
"""The header of a recorded message: the identity of the store that it comes from, and its number there."""
AT_ONCE = 1000
MAX_UNACKNOWLEDGED = 10_000
LOOK_BACK = 4 * MAX_UNACKNOWLEDGED
"""How many recorded sequence numbers are remembered. This is more than can be in flight unacknowledged."""


class Recorder:
    """Writes messages from a bus to an open journal."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus = bus
        self._journal = journal
        self._name = f"recorder-{journal.identity}"
        tail = journal.reader.tail(EVERYTHING, LOOK_BACK)
        self._known = dict.fromkeys(key for each in tail if (key := (each.headers or {}).get(SOURCE)))
        self.recorded = 0
        self.repeated = 0
        """Messages that were redelivered and already recorded."""

    async def run(self, patterns: Iterable[str]) -> None:
        """Record until cancelled. The first run also records earlier messages that the server still stores."""
        async with asyncio.TaskGroup() as group:
            for pattern in patterns:
                group.create_task(self._record(pattern))

    async def _record(self, pattern: str) -> None:
        name = f"{self._name} {pattern}"
        async with self._bus.subscribe(
            pattern, name=name, durable=True, start="beginning", capacity=MAX_UNACKNOWLEDGED
        ) as stream:
            async for batch in stream.batches(AT_ONCE):
                await self._keep(stream, batch)

    async def _keep(self, stream: Stream, batch: Sequence[Message]) -> None:
        source = getattr(getattr(self._bus.broker, "adapter", None), "run", "") or self._bus.broker.name
        fresh: list[Message] = []
        for message in batch:
            key = f"{source}/{message.seq}"
            if key in self._known:
                self.repeated += 1
                continue
            self._known[key] = None
            fresh.append(replace(message, headers={**(message.headers or {}), SOURCE: key}))
        # A row of the journal has one topic. All of them share a commit.
        await asyncio.gather(
            *(self._journal.append(list(same)) for _, same in groupby(fresh, key=lambda each: each.topic))
        )
        for message in batch:
            stream.ack(message)
        self.recorded += len(fresh)
        for _ in range(len(self._known) - LOOK_BACK):
            del self._known[next(iter(self._known))]


def record(
    url: Annotated[str, typer.Argument(help="Where the topics are: nats://…, redis://…, or a hub.", metavar="URL")],
    patterns: Annotated[
        list[str], typer.Argument(help="Topics: * is one token, > the rest, as in 'orders.>'.", metavar="PATTERN")
    ],
    journal: Annotated[Path, typer.Option(help="The directory of the journal. It is created if it does not exist.")],
    json: AsJson = False,
) -> None:
    """Keep topics of a server in a journal, exactly once, until Ctrl-C or SIGTERM."""
    for pattern in patterns:
        validate_pattern(pattern)

    async def work() -> None:
        with Journal(journal) as kept:
            async with connect(url, name="trunkline record") as bus:
                recorder = Recorder(bus, kept)
                if not json:
                    show.notice(f"recording {', '.join(patterns)} into {journal}; Ctrl-C ends it")
                try:
                    await recorder.run(patterns)
                finally:
                    if json:
                        show.json({"recorded": recorder.recorded, "repeated": recorder.repeated})

    run(until_signal(work()))
