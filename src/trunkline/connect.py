"""From a URL to a bus: which scheme is served by which broker, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from trunkline.brokers.broker import Broker
from trunkline.brokers.memory import MemoryBroker
from trunkline.bus.blocking import BlockingBus
from trunkline.bus.bus import Bus
from trunkline.clock import World
from trunkline.errors import UnknownScheme, Unsupported
from trunkline.hooks.hook import Hook
from trunkline.journal.broker import JournalBroker
from trunkline.journal.journal import Journal
from trunkline.settings import Settings

Make = Callable[[str, World, Settings], Broker]

SCHEMES: dict[str, Make] = {
    "memory": lambda url, world, settings: MemoryBroker(world, settings),
}


def connect(
    url: str | Broker = "memory:",
    *,
    name: str = "bus",
    settings: Settings | None = None,
    hooks: Iterable[Hook] = (),
    world: World | None = None,
    journal: str | Path | Journal | None = None,
) -> Bus:
    """A bus on the broker at `url`, or on a broker of your own. Use it with `async with`.

    `name` is the sender of what it publishes. Settings, unless given, come from TRUNKLINE_* variables, or from the
    broker if that is given. With a `journal`, a directory or one of your own, topics are durable.
    """
    if isinstance(url, Broker):
        return Bus(url, name=name, settings=settings, hooks=hooks)
    settings = settings or Settings.load()
    make = SCHEMES.get(url.partition(":")[0]) if ":" in url else None
    if make is None:
        raise UnknownScheme(url, [f"{scheme}:" for scheme in SCHEMES])
    if journal is not None:
        broker: Broker = _with_journal(url, journal, world, settings)
    else:
        broker = make(url, world or World(), settings)
    return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)


def _with_journal(url: str, journal: str | Path | Journal, world: World | None, settings: Settings) -> JournalBroker:
    if not url.startswith("memory:"):
        raise Unsupported(url, "a journal of its own: the one it has is where its hub runs")
    if isinstance(journal, Journal):
        return JournalBroker(journal, settings)
    return JournalBroker(Journal(journal, world=world), settings, owns_journal=True)


def connect_blocking(
    url: str | Broker = "memory:",
    *,
    name: str = "bus",
    settings: Settings | None = None,
    hooks: Iterable[Hook] = (),
    world: World | None = None,
    journal: str | Path | Journal | None = None,
) -> BlockingBus:
    """The same bus for threads, scripts and notebooks: `with connect_blocking() as bus`."""
    return BlockingBus(
        lambda: connect(url, name=name, settings=settings, hooks=hooks, world=world, journal=journal), name
    )
