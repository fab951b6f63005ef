"""Redis and Valkey keep the contract of every broker, on real servers, with everything stored."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator

import pytest

from tests.brokers.redis_servers import KINDS, RedisServer
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.redis.broker import RedisBroker
from trunkline.testing import CONTRACT, Promise

_spaces = itertools.count(1)


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps(promise: Promise, server: RedisServer) -> None:
    how = EngineSettings(namespace=space(), durable=(">",), connect_s=30.0)
    asyncio.run(promise(lambda: RedisBroker(server.url, engine=how)))


def space() -> str:
    """An unused namespace."""
    return f"t{next(_spaces)}-{uuid.uuid4().hex[:8]}"
