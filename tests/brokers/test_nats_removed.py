"""Entries that JetStream removes before they are read are logged and counted, and have a fate."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import nats
import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.test_nats import buses, run, space, until
from trunkline.brokers.engine.adapter import EngineAdapter
from trunkline.bus.bus import Bus

DEADLINE_S = 60.0
REASON = "the engine removed it before it was read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def adapter_of(bus: Bus) -> EngineAdapter:
    found = bus.broker.adapter  # type: ignore[attr-defined]
    assert isinstance(found, EngineAdapter)
    return found


async def ask(server: NatsServer, what: str, **fields: Any) -> dict[str, Any]:
    """As an administrator would."""
    client = await nats.connect(server.url)
    try:
        answer = await client.request(f"$JS.API.{what}", json.dumps(fields).encode(), timeout=DEADLINE_S)
    finally:
        await client.close()
    found: dict[str, Any] = json.loads(answer.data)
    assert "error" not in found, found
    return found


async def keep_last(server: NatsServer, name: str, count: int) -> None:
    """Lower the limit of a stream, so that the oldest entries are removed."""
    config = (await ask(server, f"STREAM.INFO.{name}-messages"))["config"]
    await ask(server, f"STREAM.UPDATE.{name}-messages", **{**config, "max_msgs": count})


async def take(stream: tl.Stream, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        message = await stream.recv(timeout_s=DEADLINE_S)
        assert message is not None
        found.append(message.decode())
        stream.ack(message)
    return found


@pytest.mark.parametrize("options", [{"name": "d"}, {"group": "d"}], ids=["durable", "group"])
def test_what_was_removed_while_nobody_read(
    options: dict[str, Any], server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        name = space()
        async with buses(server, 1, namespace=name, durable=("t",)) as (bus,):
            async with bus.subscribe("t", durable=True, **options) as stream:
                await bus.publish("t", 0)
                assert await take(stream, 1) == [0]
            ids = list(await bus.publish_many("t", [1, 1, 1]))
            ids += [await bus.publish("t", number) for number in range(2, 10)]
            await keep_last(server, name, 3)
            async with bus.subscribe("t", durable=True, **options) as stream:
                assert await take(stream, 3) == [7, 8, 9]
                await until(lambda: adapter_of(bus).trimmed_entries > 0)
                account = stream.account()
                # The first of the six entries has three messages.
                assert (account.dropped, account.delivered, account.balanced) == (8, 3, True)
                assert adapter_of(bus).trimmed_entries == 6
                for removed in (ids[2], ids[3], ids[7]):
                    (outcome,) = (await bus.explain(removed)).outcomes
                    assert (outcome.fate, outcome.reason) == (tl.Fate.DROPPED, REASON)
                (outcome,) = (await bus.explain(ids[8])).outcomes
                assert outcome.fate is tl.Fate.DELIVERED

    run(test)
    assert "d: entries 2 to 7 of t were removed before they were read: raise max_age_s or max_bytes" in caplog.text


def test_what_is_purged_while_a_subscriber_is_full(server: NatsServer) -> None:
    async def test() -> None:
        name = space()
        async with (
            buses(server, 1, namespace=name, durable=("t",)) as (bus,),
            bus.subscribe("t", name="d", durable=True, capacity=2) as stream,
        ):
            for number in range(10):
                await bus.publish("t", number)
            first = await stream.recv(timeout_s=DEADLINE_S)
            assert first is not None
            await ask(server, f"STREAM.PURGE.{name}-messages")
            await bus.publish("t", 10)
            stream.ack(first)
            got = [first.decode()]
            while got[-1] != 10:
                got += await take(stream, 1)
            await until(lambda: len(got) + stream.account().dropped >= 11)
            assert got[:-1] == list(range(len(got) - 1))
            assert len(got) < 11
            assert stream.account().dropped == 11 - len(got)
            assert stream.account().balanced

    run(test)


@pytest.mark.parametrize("publisher", ["here", "elsewhere"])
def test_of_which_topic_they_were(publisher: str, server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """JetStream does not keep it. The publisher's process knows it; others log a bound. `explain` is exact."""

    async def test() -> None:
        name = space()
        async with buses(server, 2, namespace=name, durable=("*",), answer_s=DEADLINE_S) as (bus, other):
            async with bus.subscribe("t", name="d", durable=True) as stream:
                await bus.publish("t", 0)
                assert await take(stream, 1) == [0]
            source = bus if publisher == "here" else other
            ours = list(await source.publish_many("t", [1, 2, 3]))
            theirs = [await source.publish("u", number) for number in range(4)]
            ours.append(await source.publish("t", 4))
            kept = await source.publish("t", 5)
            await keep_last(server, name, 1)
            async with bus.subscribe("t", name="d", durable=True) as stream:
                assert await take(stream, 1) == [5]
                account = stream.account()
                assert account.balanced
                adapter = adapter_of(bus)
                found = (account.dropped, adapter.trimmed_entries, adapter.trimmed_at_most)
                assert found == ((4, 2, 2) if publisher == "here" else (0, 0, 6))
                for message_id in ours:
                    (outcome,) = (await source.explain(message_id)).outcomes
                    assert (outcome.subscriber, outcome.fate, outcome.reason) == ("d", tl.Fate.DROPPED, REASON)
                for message_id in theirs:
                    assert not (await source.explain(message_id)).outcomes
                (outcome,) = (await source.explain(kept)).outcomes
                assert outcome.fate is tl.Fate.DELIVERED

    run(test)
    bound = "" if publisher == "here" else "at least 0, at most 6 of the "
    assert f"d: {bound}entries 2 to 7 of t were removed before they were read: raise max_age_s" in caplog.text


def test_a_narrow_subscriber_that_is_full_when_its_topic_is_purged(server: NatsServer) -> None:
    """Fewer entries wait for it than it should still read: at least that many were removed."""

    async def test() -> None:
        name = space()
        async with (
            buses(server, 2, namespace=name, durable=("*",)) as (bus, other),
            bus.subscribe("t", name="d", durable=True, capacity=2) as stream,
        ):
            for number in range(10):
                await other.publish("t", number)
                await other.publish("u", number)
            first = await stream.recv(timeout_s=DEADLINE_S)
            assert first is not None
            await ask(server, f"STREAM.PURGE.{name}-messages")
            await other.publish("t", 10)
            stream.ack(first)
            got = [first.decode()]
            while got[-1] != 10:
                got += await take(stream, 1)
            adapter = adapter_of(bus)
            await until(lambda: adapter.trimmed_at_most > 0)
            assert got[:-1] == list(range(len(got) - 1))
            # One was published meanwhile, which makes up for one that is gone.
            assert 11 - len(got) - 1 <= adapter.trimmed_entries <= 11 - len(got) <= adapter.trimmed_at_most
            assert stream.account().dropped == adapter.trimmed_entries
            assert stream.account().balanced

    run(test)


def test_of_other_topics_nothing_is_said(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        name = space()
        async with buses(server, 1, namespace=name, durable=("*",)) as (bus,):
            async with bus.subscribe("t", name="d", durable=True) as stream:
                await bus.publish("t", 0)
                assert await take(stream, 1) == [0]
            for number in range(10):
                await bus.publish("u", number)
            await bus.publish("t", 1)
            await keep_last(server, name, 3)
            async with bus.subscribe("t", name="d", durable=True) as stream:
                assert await take(stream, 1) == [1]
                assert stream.account().dropped == adapter_of(bus).trimmed_at_most == 0

    caplog.set_level(logging.WARNING, "trunkline.connection")
    run(test)
    assert "removed" not in caplog.text
