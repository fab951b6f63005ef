"""From a URL to a bus: which scheme is served by which broker, in one table; the others are those of a hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from trunkline.brokers.broker import Broker
from trunkline.brokers.hub.broker import HubBroker
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.memory import MemoryBroker
from trunkline.bus.blocking import BlockingBus
from trunkline.bus.bus import Bus
from trunkline.clock import World
from trunkline.errors import UnknownScheme, Unsupported, UsageError
from trunkline.hooks.hook import Hook, HookFunction
from trunkline.journal.broker import JournalBroker
from trunkline.journal.journal import Journal
from trunkline.settings import Settings
from trunkline.transports.schemes import TRANSPORTS

Make = Callable[[str, World, Settings], Broker]

SCHEMES: dict[str, Make] = {"memory": lambda url, world, settings: MemoryBroker(world, settings)}


def connect(
    url: str | Broker = "memory:",
    *,
    name: str | None = None,
    settings: Settings | None = None,
    hooks: Iterable[Hook | HookFunction] = (),
    world: World | None = None,
    journal: str | Path | Journal | None = None,
    connection: ConnectionSettings | None = None,
    embed: bool = False,
) -> Bus:
    """A bus on the broker at `url`, or on a broker of your own. Use it with `async with`.

    `memory:` is inside this process; `unix:///run/x.sock`, `tcp://host:7420`, `zmq+ipc:///run/x`, `zmq+tcp://host:7421`
    is a hub. `connection` sets its timeouts and limits. With `embed`, one is started in this process if none answers
    there; it ends with this bus.

    `name` is the sender of what it publishes; without one it is derived from the program and its process, as in
    `agent.py-4711`. Settings, unless given, come from TRUNKLINE_* variables, or from the
    broker if that is given. With a `journal`, a directory or one of your own, topics are durable.
    """
    if isinstance(url, Broker):
        return Bus(url, name=name, settings=settings, hooks=hooks)
    settings = settings or Settings.load()
    scheme = url.partition(":")[0] if ":" in url else ""
    if scheme in SCHEMES:
        if embed:
            raise UsageError(f"{url} is inside this process: there is no hub to embed")
        if journal is not None:
            broker: Broker = _with_journal(journal, world, settings)
        else:
            broker = SCHEMES[scheme](url, world or World(), settings)
        return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)
    _check_scheme(url)
    world = world or World()
    return _at_hub(url, name or world.program(), settings, hooks, world, journal, connection, embed=embed)


def connect_hub(
    url: str, *, name: str, settings: Settings | None = None, connection: ConnectionSettings | None = None
) -> HubBroker:
    """The hub at `url` without a bus on it, for tools. Use it with `async with`."""
    _check_scheme(url)
    return HubBroker(url, settings=settings or Settings.load(), client=name, connection=connection)


def _check_scheme(url: str) -> None:
    if url.partition(":")[0] not in TRANSPORTS or ":" not in url:
        raise UnknownScheme(url, [f"{known}:" for known in (*SCHEMES, *TRANSPORTS)])


def _at_hub(
    url: str,
    name: str,
    settings: Settings,
    hooks: Iterable[Hook | HookFunction],
    world: World,
    journal: str | Path | Journal | None,
    connection: ConnectionSettings | None,
    *,
    embed: bool,
) -> Bus:
    if not embed:
        if journal is not None:
            raise Unsupported(url, "a journal of its own: the one it has is where its hub runs")
        broker = HubBroker(url, world, settings, client=name, connection=connection)
        return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)
    # Only here: most who connect to a hub are none.
    from trunkline.hub.embedded import Embedded

    inside = Embedded(url, lambda: _with_journal(journal, world, settings) if journal is not None else None, world)
    broker = HubBroker(url, world, settings, client=name, connection=connection, embed=inside)
    return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)


def _with_journal(journal: str | Path | Journal, world: World | None, settings: Settings) -> JournalBroker:
    if isinstance(journal, Journal):
        return JournalBroker(journal, settings)
    return JournalBroker(Journal(journal, world=world), settings, owns_journal=True)


def connect_blocking(
    url: str | Broker = "memory:",
    *,
    name: str | None = None,
    settings: Settings | None = None,
    hooks: Iterable[Hook | HookFunction] = (),
    world: World | None = None,
    journal: str | Path | Journal | None = None,
    connection: ConnectionSettings | None = None,
    embed: bool = False,
) -> BlockingBus:
    """The same bus for threads, scripts and notebooks: `with connect_blocking() as bus`."""
    return BlockingBus(
        lambda: connect(
            url,
            name=name,
            settings=settings,
            hooks=hooks,
            world=world,
            journal=journal,
            connection=connection,
            embed=embed,
        ),
        name or (world or World()).program(),
    )
