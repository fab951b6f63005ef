"""A bus on a hub keeps the contract of every broker: in virtual time, and over every transport."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from trunkline import Broker, ConnectionSettings, MemoryBroker, RecordingBroker, World
from trunkline.brokers.hub.broker import HubBroker
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.hub.settings import HubSettings
from trunkline.journal import Journal, JournalBroker
from trunkline.keys.store import KeyStore
from trunkline.testing import CONTRACT, Promise, simulate, world
from trunkline.testing.limits import rights_hold

SEEDS = range(5)
FRAME_BYTES = 2 * 1024 * 1024
"""Less than the largest batch of the contract."""
AT_ONCE = 4
OWNER = {"may": ["publish", "subscribe", "create", "administer"]}
GUEST = {"may": ["publish", "subscribe"], "on": ["allowed.>"]}
_places = itertools.count(1)


@asynccontextmanager
async def plain(world: World) -> AsyncIterator[Broker]:
    """A hub and one client of it, in one event loop."""
    async with Hub(MemoryBroker(world)) as hub:
        address = await hub.listen("pair:contract")
        async with HubBroker(address, world) as broker:
            await broker.connection.ready()
            yield broker


@asynccontextmanager
async def journaled(world: World) -> AsyncIterator[Broker]:
    with tempfile.TemporaryDirectory() as folder:
        engine = JournalBroker(Journal(folder, world=world, threaded=False), owns_journal=True)
        async with Hub(engine) as hub:
            address = await hub.listen("pair:contract")
            async with HubBroker(address, world) as broker:
                await broker.connection.ready()
                yield broker


@asynccontextmanager
async def recorded(world: World) -> AsyncIterator[Broker]:
    async with plain(world) as broker:
        yield RecordingBroker(broker)


HUBS: dict[str, Callable[[World], AbstractAsyncContextManager[Broker]]] = {
    "plain": plain,
    "journal": journaled,
    "recording": recorded,
}


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("make", HUBS.values(), ids=HUBS)
@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps(promise: Promise, make: Callable[[World], AbstractAsyncContextManager[Broker]]) -> None:
    for seed in SEEDS:
        simulate(lambda simulation: promise(lambda: make(world(simulation))), seed=seed)


# Over every transport: a hub with a journal and rules, in real time


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyStore:
    store = KeyStore(tmp_path_factory.mktemp("hub") / "keys")
    store.make_hub()
    for name in ("owner", "guest"):
        store.make_client(name)
    return store


class Place:
    """A hub at an address of one transport, and for identities by name a client of it."""

    def __init__(self, scheme: str, keys: KeyStore | None, folder: Path, *, guest_by_pair: bool = True) -> None:
        number = next(_places)
        self._keys = keys
        self._guest_by_pair = guest_by_pair
        self._folder = folder / str(number)
        self._folder.mkdir()
        files = "zmq+ipc" if scheme.startswith("zmq") else "unix"
        host = f"{scheme}://127.0.0.1:0"
        self._url = host if scheme.endswith("tcp") else f"{files}://{self._folder}/hub.sock"
        self._pair = f"pair:contract-{number}"
        self._address = ""

    def _by_pair(self, name: str) -> bool:
        """Without keys, all clients on sockets have one identity. A client on a pair has another one: "local"."""
        return self._keys is None and (name == "guest") == self._guest_by_pair

    def _who(self, name: str) -> str:
        return f"*:{name}" if self._keys is not None else "local" if self._by_pair(name) else "[!l]*"

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Broker]:
        rules = [{"who": self._who("owner"), **OWNER}, {"who": self._who("guest"), **GUEST}]
        engine = JournalBroker(Journal(self._folder / "journal"), owns_journal=True)
        settings = HubSettings(max_frame_bytes=FRAME_BYTES)
        async with Hub(engine, settings=settings, access=Access.load(rules)) as hub:
            await hub.listen(self._pair)
            self._address = await hub.listen(self._url, None if self._keys is None else str(self._keys.path))
            async with self._client("owner") as broker:
                await broker.connection.ready()
                yield broker

    def _client(self, name: str) -> HubBroker:
        bundle = None if self._keys is None else str(self._keys.bundle(name))
        how = ConnectionSettings(max_frame_bytes=FRAME_BYTES, keys=bundle, connect_s=30.0)
        return HubBroker(self._pair if self._by_pair(name) else self._address, client=name, connection=how)

    def guest(self, _: Broker) -> HubBroker:
        return self._client("guest")


@pytest.mark.parametrize("scheme", ["unix", "tcp", "tcp with TLS", "zmq+ipc", "zmq+tcp with CURVE"])
def test_keeps_over(scheme: str, keys: KeyStore, tmp_path: Path) -> None:
    name, _, encrypted = scheme.partition(" with ")

    async def keep(promise: Promise, turn: asyncio.Semaphore) -> None:
        async with turn:
            place = Place(name, keys if encrypted else None, tmp_path)
            await promise(place, place.guest)

    async def keep_all() -> list[BaseException]:
        turn = asyncio.Semaphore(AT_ONCE)
        tried = (asyncio.create_task(keep(promise, turn)) for promise in CONTRACT)
        results = await asyncio.gather(*tried, return_exceptions=True)
        return [each for each in results if each is not None]

    assert asyncio.run(keep_all()) == []


@pytest.mark.parametrize("scheme", ["unix", "zmq+ipc"])
def test_rules_hold_for_users_of_this_machine(scheme: str, tmp_path: Path) -> None:
    place = Place(scheme, None, tmp_path, guest_by_pair=False)
    asyncio.run(rights_hold(place, place.guest))
