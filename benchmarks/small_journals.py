"""Small journals for the cases of the pipeline. All messages are sealed. Each journal is created once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trunkline as tl
from benchmarks.durable import payloads
from benchmarks.servers import Server, directory
from trunkline.journal import Journal


@contextmanager
def _journals(folder: Path) -> Iterator[Path]:
    with directory() as place:
        yield place


JOURNALS = Server(_journals)


def sealed_journal(place: Path, count: int) -> Path:
    """A journal with `count` messages that were delivered to a subscriber. It is created once."""
    journal = place / f"{count}"
    if not journal.exists():
        with Journal(journal) as owned:
            asyncio.run(_publish(owned, count))
            owned.seal(everything=True)
    return journal


async def _publish(journal: Journal, count: int) -> None:
    async with tl.connect("memory:", name="shop", journal=journal) as bus, bus.subscribe(">") as heard:
        for first in range(0, count, 100):
            await bus.publish_many("orders.placed", payloads(min(100, count - first)))
            for _ in range(min(100, count - first)):
                await heard.recv()
