"""How much memory does the journal need to seal, join and read 2,000 incompressible messages of 1 MB?

Each step runs in its own process. The result is the highest memory use of a step, minus its use before the step, with
all modules imported and the journal open.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.harness import Case, Sample
from benchmarks.peak import Cost, Peak
from benchmarks.processes import Line, crew
from benchmarks.servers import directory
from trunkline import connect
from trunkline.journal import Journal, JournalSettings, Reader

MESSAGES = 2000
MESSAGE_BYTES = 1_000_000
SMALL = JournalSettings(seal=False, seal_bytes=24_000_000)
"""Settings that seal into files small enough to be joined."""
USUAL = JournalSettings(seal=False)


async def publish(line: Line, folder: Path, count: int) -> None:
    source = random.Random(1)
    with Journal(folder, USUAL) as journal:
        async with connect("memory:", journal=journal) as bus:
            for start in range(0, count, 8):
                many = [source.randbytes(MESSAGE_BYTES) for _ in range(min(8, count - start))]
                await bus.publish_many("large", many)
                line.ready()


async def subscribe(line: Line, folder: Path, count: int) -> Cost:
    with Journal(folder, USUAL) as journal:
        async with connect("memory:", journal=journal) as bus:
            peak = Peak("subscribe")
            async with bus.subscribe("large", name="x", durable=True, start="beginning") as stream:
                for _ in range(count):
                    message = await stream.recv()
                    assert message is not None
                    stream.ack(message)
                    line.ready()
            return peak.cost()


def seal(line: Line, folder: Path, count: int) -> Cost:
    with Journal(folder, SMALL) as journal:
        peak = Peak("seal")
        assert journal.seal(everything=True) == count
        return peak.cost()


def join(line: Line, folder: Path, count: int) -> Cost:
    with Journal(folder, USUAL) as journal:
        peak = Peak("join")
        journal.tender.join()
        return peak.cost()


def read(line: Line, folder: Path, count: int) -> Cost:
    with Reader(folder) as reader:
        peak = Peak("read")
        assert sum(1 for _ in reader.messages()) == count
        assert sum(batch.num_rows for batch in reader.arrow()) == count
        return peak.cost()


def costs(count: int) -> list[Cost]:
    """The cost of each step, in order."""
    found: list[Cost] = []
    with directory() as folder:
        for step in (publish, seal, join, subscribe, read):
            with crew(1).running() as (worker,):
                worker.begin(step, folder, count)
                found += [each for each in (worker.result().value,) if each is not None]
    return found


def most(count: int) -> Sample:
    found = costs(count)
    return Sample(max(each.mib for each in found), sum(each.took_s for each in found))


CASE = Case(
    name="journal-large",
    question="memory to seal, join and read 2,000 messages of 1 MB, the most of any step",
    unit="MiB",
    better="less",
    ours=most,
    limit=300.0,
    size=MESSAGES,
    fixed=True,
    rounds=1,
)
