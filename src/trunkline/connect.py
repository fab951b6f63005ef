"""From a URL to a bus: a table of schemes and brokers. All other schemes are transports to a hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from trunkline.brokers.broker import Broker
from trunkline.brokers.engine.broker import EngineBroker
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.hub.broker import HubBroker
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.memory import MemoryBroker
from trunkline.brokers.nats.broker import NatsBroker
from trunkline.brokers.redis.broker import RedisBroker
from trunkline.bus.blocking import BlockingBus
from trunkline.bus.bus import Bus
from trunkline.clock import World
from trunkline.errors import UnknownScheme, Unsupported, UsageError
from trunkline.hooks.hook import Hook, HookFunction
from trunkline.journal.broker import JournalBroker
from trunkline.journal.journal import Journal
from trunkline.settings import Settings
from trunkline.transports.addresses import meant
from trunkline.transports.runtime import default_url, hub_answers
from trunkline.transports.schemes import TRANSPORTS

log = logging.getLogger("trunkline.connection")

Make = Callable[[str, World, Settings], Broker]
MakeOnEngine = Callable[[str, World, Settings, str, EngineSettings | None], EngineBroker]

SCHEMES: dict[str, Make] = {"memory": lambda url, world, settings: MemoryBroker(world, settings)}


def _nats(url: str, world: World, settings: Settings, name: str, engine: EngineSettings | None) -> EngineBroker:
    return NatsBroker(url, world, settings, client=name, engine=engine)


def _redis(url: str, world: World, settings: Settings, name: str, engine: EngineSettings | None) -> EngineBroker:
    return RedisBroker(url, world, settings, client=name, engine=engine)


ENGINES: dict[str, MakeOnEngine] = {
    "nats": _nats,
    "tls": _nats,
    "redis": _redis,
    "rediss": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "redis+sentinel": _redis,
    "rediss+sentinel": _redis,
}
"""Schemes of NATS and Redis. The rest of such a URL has the format of that server."""
_LISTED_BY = {"nats": ("NATS", "nats server report connections"), "redis": ("Redis", "redis-cli client list")}
"""The command that lists the clients of a server."""


def is_engine(url: str) -> bool:
    """Whether a NATS or Redis server is at `url`."""
    return url.partition(":")[0] in ENGINES


def connect_engine(url: str, *, name: str, engine: EngineSettings | None = None) -> EngineBroker:
    """The NATS or Redis server at `url` without a bus on it, for tools. Use it with `async with`."""
    return ENGINES[url.partition(":")[0]](url, World(), Settings.load(), name, engine)


def connect(
    url: str | Broker | None = None,
    *,
    name: str | None = None,
    settings: Settings | None = None,
    hooks: Iterable[Hook | HookFunction] = (),
    world: World | None = None,
    journal: str | Path | Journal | None = None,
    connection: ConnectionSettings | EngineSettings | None = None,
    embed: bool = False,
) -> Bus:
    """Connect a bus to the broker at `url`, or to a broker object. Use it with `async with`.

    Without a `url`, the address is that in TRUNKLINE_HUB or in the settings, or else `memory:`.

    - `memory:` is inside this process.
    - `hub:` is the hub that `trunkline up` starts on this machine; `unix:///run/x.sock`, `tcp://host:7420`,
      `zmq+ipc:///run/x` and `zmq+tcp://host:7421` are hubs, too.
    - `nats://host:4222`, `tls://host:4222` is a NATS server.
    - `redis://host:6379`, `rediss://host:6379` is a Redis or Valkey server, `redis+sentinel://host/service` one that
      Sentinels watch.

    `connection` sets timeouts and limits. With `embed`, a hub is started in this process if none answers at the
    address. It ends with this bus, or with the last of several buses in one event loop that embed the same hub.

    `name` is the sender of its messages; without one it is derived from the program and its process, as in
    `agent.py-4711`. Settings, unless given, come from TRUNKLINE_* variables, or from the
    broker if that is given. With a `journal`, which is a directory or a Journal object, topics are durable.
    """
    if isinstance(url, Broker):
        return Bus(url, name=name, settings=settings, hooks=hooks)
    if url is not None and not isinstance(url, str):
        raise UsageError(f'connect takes an address such as "hub:" or "memory:", not {type(url).__name__}')
    settings = settings or Settings.load()
    url = address_of(url, settings, alone=journal is not None, embed=embed)
    scheme = url.partition(":")[0] if ":" in url else ""
    if scheme in SCHEMES:
        if embed:
            raise UsageError(f"{url} stays inside this process and needs no hub: leave out embed=True")
        if journal is not None:
            broker: Broker = _with_journal(journal, world, settings)
        else:
            broker = SCHEMES[scheme](url, world or World(), settings)
        return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)
    world = world or World()
    if scheme in ENGINES:
        if embed or journal is not None:
            raise UsageError(f"{scheme}: is an external server: it takes neither `embed` nor `journal`")
        if isinstance(connection, ConnectionSettings):
            raise UsageError(f"{scheme}: takes EngineSettings as `connection`, not ConnectionSettings")
        name = name or world.program()
        broker = ENGINES[scheme](url, world, settings, name, connection)
        return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)
    _check_scheme(url)
    if isinstance(connection, EngineSettings):
        raise UsageError("a hub takes ConnectionSettings as `connection`, not EngineSettings")
    return _at_hub(url, name or world.program(), settings, hooks, world, journal, connection, embed=embed)


def connect_hub(
    url: str, *, name: str, settings: Settings | None = None, connection: ConnectionSettings | None = None
) -> HubBroker:
    """The hub at `url` without a bus on it, for tools. Use it with `async with`.

    Raises UsageError if the URL is not that of a hub.
    """
    check_hub(url)
    return HubBroker(url, settings=settings or Settings.load(), client=name, connection=connection)


def check_hub(url: str) -> None:
    """Raise UsageError if `url` is not that of a hub."""
    if is_engine(url):
        scheme = url.partition(":")[0]
        server, listing = _LISTED_BY["redis" if scheme.startswith("redis") else "nats"]
        raise UsageError(
            f"this needs a hub, and {scheme}: is a {server} server: `{listing}` shows who is connected to it; "
            "trunkline channels, schemas, dead-letters, explain, ping and forget work there"
        )
    _check_scheme(url)


def address_of(url: str | None, settings: Settings, *, alone: bool = False, embed: bool = False) -> str:
    """The address to connect to: `url`, or the configured one, or `memory:`. `hub:` becomes the default socket.

    `alone`: without a `url` the result is `memory:`, whatever is configured.
    """
    if url is None and not alone:
        # Settings that a program builds itself often do not name the hub.
        url = settings.hub or Settings.load().hub or ("hub:" if embed else None)
    if url is None:
        if not alone:
            _hint()
        return "memory:"
    return default_url() if url in ("hub:", "hub") else url


@cache
def _hint() -> None:
    """Log a hint, once per process: a user who runs a hub may expect that it is used."""
    if hub_answers():
        log.warning(
            'a hub runs on this machine, and this bus does not use it: write connect("hub:") to use it,'
            ' or connect("memory:") to stay inside this process'
        )


def _check_scheme(url: str) -> None:
    if url.partition(":")[0] not in TRANSPORTS or ":" not in url:
        known = ["hub:", *(f"{scheme}:" for scheme in (*SCHEMES, *ENGINES, *TRANSPORTS))]
        raise UnknownScheme(url, known, f"{url}:" if url in SCHEMES else meant(url))


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
            raise Unsupported(url, "a journal here: start its hub with `trunkline up --journal DIRECTORY`")
        broker = HubBroker(url, world, settings, client=name, connection=connection)
        return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)
    # Imported only here: most clients do not run a hub.
    from trunkline.hub.embedded import Embedded

    inside = Embedded(url, (lambda: _with_journal(journal, world, settings)) if journal is not None else None, world)
    broker = HubBroker(url, world, settings, client=name, connection=connection, embed=inside)
    return Bus(broker, name=name, settings=settings, hooks=hooks, owns_broker=True)


def _with_journal(journal: str | Path | Journal, world: World | None, settings: Settings) -> JournalBroker:
    if isinstance(journal, Journal):
        return JournalBroker(journal, settings)
    return JournalBroker(Journal(journal, world=world), settings, owns_journal=True)


def connect_blocking(
    url: str | Broker | None = None,
    *,
    name: str | None = None,
    settings: Settings | None = None,
    hooks: Iterable[Hook | HookFunction] = (),
    world: World | None = None,
    journal: str | Path | Journal | None = None,
    connection: ConnectionSettings | EngineSettings | None = None,
    embed: bool = False,
) -> BlockingBus:
    """The blocking variant of `connect`, for threads, scripts and notebooks: `with connect_blocking() as bus`."""
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
