"""Attacks on a running hub over raw connections, and checks that the hub is still healthy."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trunkline as tl
from tests.hub.attacks import framed
from tests.hub.hub_process import RunningHub
from trunkline.wire import control
from trunkline.wire.frames import LENGTH, Kind, open_deliver

MAX_GROWTH_BYTES = 200 * 1024 * 1024
DEADLINE_S = 60.0
COMPLAINT = re.compile(r"(ERROR|CRITICAL) (trunkline\.hub|asyncio)|Traceback")
"""That a client gave up on a message, or left with some, is no fault of the hub."""
RULES = (
    {"who": "uid:*", "may": ["publish", "subscribe", "create", "administer"]},
    {"who": "anonymous", "may": ["publish", "subscribe", "create"], "on": ["attack.>"]},
    {"who": "anonymous", "may": ["administer"]},
)
"""Attackers come by TCP, and may do everything where nobody else is."""


class Line:
    """An attacker's connection: raw bytes out, and the frames of the hub."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.seqs: list[int] = []
        """Of what was delivered."""

    @classmethod
    async def open(cls, hub: RunningHub) -> Line:
        (address,) = (address for address in hub.addresses if address.startswith("tcp:"))
        parts = urlsplit(address)
        assert parts.hostname is not None
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(map(framed, frames)))

    async def hear(self) -> dict[str, Any]:
        """The next control message of the hub. Raises EOFError at the end of the connection."""
        while True:
            try:
                (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                frame = await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise EOFError from error
            if frame[0] == Kind.CONTROL:
                told: dict[str, Any] = json.loads(frame[1:])
                return told
            if frame[0] == Kind.DELIVER:
                self.seqs.append(open_deliver(memoryview(frame))[0].first)

    async def hear_answer(self, number: int) -> dict[str, Any]:
        while True:
            told = await self.hear()
            if told.get("re") == number:
                return told

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def stats_of(bus: tl.Bus) -> dict[str, Any]:
    assert isinstance(bus.broker, tl.HubBroker)
    answer = await bus.broker.connection.ask(lambda number: control.Stats(id=number))
    assert isinstance(answer, control.StatsAnswer)
    return answer.stats


async def healthy(hub: RunningHub, bus: tl.Bus, others: int = 1) -> dict[str, Any]:
    """Nothing is left of former clients, and no internal error occurred. Returns the hub's own counters."""
    async with asyncio.timeout(DEADLINE_S):
        while (stats := await stats_of(bus))["clients"] > 1 + others:
            # It answers after everything it had heard before: asking again gives it time.
            continue
    assert stats["counts"].get("internal_errors", 0) == 0, hub.logged()
    complaints = [line for line in hub.logged().splitlines() if COMPLAINT.match(line)]
    assert not complaints, complaints
    assert stats["waiting"] == 0
    assert hub.alive
    return stats


def listen(tmp_path: Path) -> tuple[str, str]:
    return f"unix://{tmp_path / 'hub.sock'}", "tcp://127.0.0.1:0"
