"""NATS keeps the contract of every broker: on a real server, with everything stored, and without JetStream."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator

import pytest

from tests.brokers.engine_servers import NatsServer
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.nats.broker import NatsBroker
from trunkline.testing import CONTRACT, Promise

_spaces = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("bare"), jetstream=False) as running:
        yield running


def space() -> str:
    """An unused namespace."""
    return f"t{next(_spaces)}-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps(promise: Promise, server: NatsServer) -> None:
    how = EngineSettings(namespace=space(), durable=(">",), synced=True, connect_s=30.0)
    asyncio.run(promise(lambda: Connected(server, how)))


@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps_without_jetstream(promise: Promise, bare: NatsServer) -> None:
    how = EngineSettings(namespace=space(), connect_s=30.0)
    asyncio.run(promise(lambda: Connected(bare, how)))


class Connected(NatsBroker):
    """A broker that is connected when the trial begins, so that its features are known."""

    def __init__(self, server: NatsServer, how: EngineSettings) -> None:
        super().__init__(server.url, engine=how)

    async def __aenter__(self) -> Connected:
        await self.adapter.ready()
        return self
