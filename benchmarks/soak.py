"""`python -m benchmarks.soak --minutes 60`: does the memory of a hub with a journal, and of its clients, stay constant?

The traffic is mixed: requests, a group, a durable group, a durable subscription that falls behind, and subscriptions,
topics and clients that come and go. The journal seals and removes messages many times an hour. The first quarter is
warm-up with three times the rate: after it, histories and accounts, which are bounded, are full. The growth is the
median RSS of the last tenth compared with that of the tenth after the warm-up. Ctrl-C or SIGTERM ends the run early,
with the same summary.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import signal
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import cast

import msgspec

from benchmarks.hub_memory import resident_bytes
from benchmarks.hubs import arrive
from benchmarks.processes import Line, Worker, WorkerError, crew, results
from benchmarks.servers import directory
from trunkline import Retry, connect
from trunkline.errors import StreamEmpty
from trunkline.hub.hub import Hub
from trunkline.hub.serve import prepare_process
from trunkline.journal import Journal, JournalBroker
from trunkline.journal.settings import JournalSettings, Retention, Sync

MINUTES = 60.0
RATE = 90.0
SAMPLE_S = 10.0
SAY_S = 30.0
LEAST_SAMPLES = 20
MAX_GROWTH = 0.02
FASTER = 3
NAMES = ("hub", "worker 1", "worker 2", "publisher", "visitor")
JOURNAL = JournalSettings(
    durable=("stored.>",),
    recorded=("jobs.>",),
    sync=Sync.SYSTEM,
    seal_rows=5000,
    seal_age_s=45.0,
    tend_s=5.0,
    replaced_s=60.0,
    retention=(Retention(topics=">", max_age_s=120.0, even_unread=True),),
)
ROUND_MESSAGES = 27
"""The messages of one round of the publisher and one visit together, including answers."""
REQUESTS, JOBS, STORED, VISITED = 6, 5, 5, 3
FAILS_EVERY = 50
AUDIT_EVERY, AUDITED = 20, 20


class Memory(msgspec.Struct, frozen=True):
    """The RSS of one process in MiB: at the start, after the warm-up, at the end."""

    start: float
    warm: float
    end: float
    growth: float

    @property
    def level(self) -> bool:
        return self.growth < MAX_GROWTH


class Summary(msgspec.Struct, frozen=True):
    minutes: float
    messages: int
    processes: dict[str, Memory]
    samples: dict[str, list[float]]

    @property
    def level(self) -> bool:
        return all(each.level for each in self.processes.values())


# In the workers


async def serve(line: Line, folder: str) -> int:
    """Run the hub until stopped. Returns the number of messages that its clients published."""
    _only_errors()
    prepare_process()
    broker = JournalBroker(Journal(Path(folder) / "journal", JOURNAL), owns_journal=True)
    async with Hub(broker) as hub:
        await hub.listen(_address(folder))
        line.ready()
        await asyncio.to_thread(line.stop.wait)
        return hub.published


async def work(line: Line, folder: str) -> None:
    """A client that answers requests, and shares jobs and stored messages. Some jobs fail at the first attempt."""
    _only_errors()
    async with connect(_address(folder)) as bus:
        numbers = itertools.count(1)

        @bus.on("ask.price", group="pricing")
        async def price(number: int) -> int:
            return number

        @bus.on("jobs.*", group="work", retry=Retry(delay_s=0.01))
        async def job(payload: bytes) -> None:
            if next(numbers) % FAILS_EVERY == 0:
                raise ValueError("this one fails the first time")

        @bus.on("stored.*", group="billing", durable=True)
        async def bill(payload: bytes) -> None: ...

        await arrive(bus)
        line.ready()
        await asyncio.to_thread(line.stop.wait)


async def publish(line: Line, folder: str, pause_s: float, warm_s: float) -> None:
    """Publish rounds of requests, jobs and stored messages, at a higher rate for the first `warm_s`."""
    _only_errors()
    async with connect(_address(folder)) as bus:
        await arrive(bus)
        line.ready()
        warm_until = time.monotonic() + warm_s
        async for number in _rounds(line, lambda: pause_s / (FASTER if time.monotonic() < warm_until else 1)):
            for _ in range(REQUESTS):
                assert await bus.request("ask.price", number, reply=int) == number
            for each in range(JOBS):
                await bus.publish(f"jobs.{(number + each) % 20}", bytes(100 + number % 400))
            for each in range(STORED):
                await bus.publish(f"stored.{(number + each) % 10}", bytes(100 + number % 400))


async def visit(line: Line, folder: str, pause_s: float) -> None:
    """Clients, one after another: each publishes to itself on a new topic, sends a request, and disconnects."""
    _only_errors()
    line.ready()
    async for number in _rounds(line, lambda: pause_s):
        async with connect(_address(folder), name=f"visitor-{number}") as bus:
            async with bus.subscribe(f"visits.{number}") as stream:
                for _ in range(VISITED):
                    await bus.publish(f"visits.{number}", bytes(200))
                for _ in range(VISITED):
                    await stream.recv()
            assert await bus.request("ask.price", number, reply=int) == number
            if number % AUDIT_EVERY == 0:
                async with bus.subscribe("stored.*", name="audit", durable=True) as stream:
                    # At the end of the run, nothing more is published.
                    with suppress(StreamEmpty):
                        for _ in range(AUDITED):
                            if (message := await stream.recv(timeout_s=5.0)) is not None:
                                stream.ack(message)


async def _rounds(line: Line, pause_s: Callable[[], float]) -> AsyncIterator[int]:
    """Yields a number every `pause_s()` until stopped. A round that takes longer delays the next."""
    for number in itertools.count(1):
        if line.stop.is_set():
            return
        due_s = time.monotonic() + pause_s()
        yield number
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))


def _only_errors() -> None:
    logging.getLogger("trunkline").setLevel(logging.ERROR)


def _address(folder: str) -> str:
    return f"unix://{folder}/hub.sock"


# In the measuring process


def soak(minutes: float, rate: float, stop: threading.Event, note: Callable[[str], None]) -> Summary:
    """Run the traffic until the time is over or `stop` is set. Raises WorkerError."""
    pause_s = ROUND_MESSAGES / rate
    length_s = minutes * 60
    with directory() as folder, crew(len(NAMES)).running() as workers:
        hub, *clients, publisher, visitor = workers
        place = str(folder)
        _start(hub, serve, place)
        for each in clients:
            _start(each, work, place)
        _start(publisher, publish, place, pause_s, length_s / 4)
        _start(visitor, visit, place, pause_s)
        began = said = time.monotonic()
        note(f"soaking for {minutes:g} min, about {rate:g} messages a second; RSS in MiB")
        samples: list[list[float]] = [_resident(workers)]
        while (passed_s := time.monotonic() - began) < length_s:
            if stop.wait(min(SAMPLE_S, length_s / LEAST_SAMPLES, length_s - passed_s)):
                break
            by_number = {worker.fileno(): worker for worker in workers}
            for number in wait(by_number, 0):
                # The worker has failed: `hear` raises its error.
                raise WorkerError(f"a worker has ended too early: {by_number[cast(int, number)].hear()}")
            samples.append(_resident(workers))
            if time.monotonic() - said >= SAY_S:
                said = time.monotonic()
                note(f"{(said - began) / 60:6.1f} min  {_row(samples[-1])}")
        minutes = (time.monotonic() - began) / 60
        # In this order, because visitor and publisher need the clients, and all of them need the hub.
        for group in ([visitor, publisher], clients):
            for each in group:
                each.stop()
            results(group)
        hub.stop()
        return summarize(minutes, hub.result().value, samples)


def _start(worker: Worker, function: Callable[..., object], *arguments: object) -> None:
    worker.begin(function, *arguments)
    worker.ready()


def _resident(workers: Sequence[Worker]) -> list[float]:
    return [resident_bytes(worker.pid) / 2**20 for worker in workers]


def _row(mib: Sequence[float]) -> str:
    return "".join(f"{name} {each:.1f}  " for name, each in zip(NAMES, mib, strict=True))


def summarize(minutes: float, messages: int, samples: Sequence[Sequence[float]]) -> Summary:
    by_name = dict(zip(NAMES, map(list, zip(*samples, strict=True)), strict=True))
    return Summary(minutes, messages, {name: _memory(mib) for name, mib in by_name.items()}, by_name)


def _memory(mib: list[float]) -> Memory:
    tenth = max(1, len(mib) // 10)
    warmed = len(mib) // 4
    warm = statistics.median(mib[warmed : warmed + tenth])
    end = statistics.median(mib[-tenth:])
    return Memory(mib[0], warm, end, end / warm - 1)


def table(summary: Summary) -> str:
    lines = [f"{summary.minutes:.1f} minutes, {summary.messages:,} messages; RSS in MiB"]
    lines.append(f"  {'':12}{'start':>9}{'warm':>9}{'end':>9}{'growth':>9}")
    for name, each in summary.processes.items():
        verdict = "" if each.level else f"  more than {MAX_GROWTH:.0%}"
        lines.append(f"  {name:12}{each.start:9.1f}{each.warm:9.1f}{each.end:9.1f}{each.growth:9.1%}{verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if each process grew by less than 2 % after the warm-up, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N", help=f"{MINUTES:g} by default")
    parser.add_argument("--rate", type=float, default=RATE, metavar="N", help=f"messages a second, about; {RATE:g}")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all samples")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        note = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
        summary = soak(options.minutes, options.rate, stop, note)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print(msgspec.json.encode(summary).decode() if options.json else table(summary))
    return 0 if summary.level else 1


if __name__ == "__main__":
    sys.exit(main())
