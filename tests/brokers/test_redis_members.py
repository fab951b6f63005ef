"""Members of groups and durable subscriptions on Redis: entries of dead members, failures, fates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.holders import holding, said
from tests.brokers.redis_buses import adapter_of, bus_at, driver_of, opened, run
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub.hubs import until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path) as running:
        yield running


def test_what_a_dead_member_held_goes_to_the_others(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, lease_s=1.0) as bus:
            with holding(server.url, group="g") as output:
                assert await said(output, 1) == ["ready"]
                await bus.publish_many("t", [1, 2, 3])
                assert await said(output, 3) == ["1", "2", "3"]
            got: list[int] = []

            @bus.on("t", group="g", durable=True)
            async def take(number: int) -> None:
                got.append(number)

            await opened(bus)
            await bus.publish("t", 4)
            await until(lambda: sorted(got) == [1, 2, 3, 4], "what the dead one held was taken over")
            await until(lambda: _pending(server, "g") == 0, "all of it was acknowledged")

    run(test())


def _pending(server: RedisServer, group: str) -> int:
    return int(server.cli("XPENDING", "{tl}:s:t", group).splitlines()[0])


def test_a_living_member_keeps_what_it_works_on(server: RedisServer) -> None:
    """It takes several leases: the lease is renewed."""

    async def test() -> None:
        async with (
            bus_at(server, "a", lease_s=0.6) as one,
            bus_at(server, "b", lease_s=0.6) as other,
            one.subscribe("t", group="g", durable=True, lease_s=600) as slow,
        ):
            await one.publish("t", 1)
            message = await slow.recv()
            async with other.subscribe("t", group="g", durable=True) as idle:
                loop = asyncio.get_running_loop()
                began = loop.time()
                await until(lambda: loop.time() - began > 2.0, "three leases have passed")
                assert idle.depth == 0
                assert message is not None
                assert slow.ack(message)
                await until(lambda: _pending(server, "g") == 0, "it was acknowledged")
                assert idle.depth == 0

    run(test())


def test_a_durable_name_has_one_subscriber_at_a_time(server: RedisServer) -> None:
    """Another process is refused. After the first is killed, the next one takes over at once, with all its entries."""

    async def test() -> None:
        # A lease of an hour: what is taken over does not wait for it.
        async with bus_at(server, lease_s=3600.0) as bus:
            with holding(server.url, name="d", lease_s=3600.0) as output:
                assert await said(output, 1) == ["ready"]
                await bus.publish_many("t", [1, 2])
                assert await said(output, 2) == ["1", "2"]
                with pytest.raises(tl.DuplicateName, match="'d' already exists"):
                    await bus.subscribe("t", name="d", durable=True).open()
            await until(lambda: "trunkline-" not in _others(server, bus), "the server has noticed its death")
            async with bus.subscribe("t", name="d", durable=True) as stream:
                got = [message.decode() for _ in range(2) if (message := await stream.recv()) is not None]
                assert got == [1, 2]
                with pytest.raises(tl.DuplicateName):
                    await bus.subscribe("t", name="d", durable=True).open()

    run(test())


def _others(server: RedisServer, bus: tl.Bus) -> str:
    mine = f"name=trunkline-{driver_of(bus).me} "
    return "\n".join(line for line in server.cli("CLIENT", "LIST").splitlines() if mine not in line)


def test_a_durable_subscription_keeps_its_pattern(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server) as bus:
            async with bus.subscribe("t", name="d", durable=True):
                pass
            with pytest.raises(tl.InvalidSettings, match=r"is on 't', not on 'u': use another name, or forget"):
                await bus.subscribe("u", name="d", durable=True).open()
            assert await bus.forget_durable("d")
            assert not await bus.forget_durable("d")
            async with bus.subscribe("u", name="d", durable=True):
                pass

    run(test())


def test_messages_of_one_batch_end_one_by_one(server: RedisServer) -> None:
    """One is acknowledged, one fails twice and then succeeds, one is a dead letter with its attempts and traceback."""

    async def test() -> None:
        handled: list[int] = []
        tries: dict[int, int] = {}
        async with bus_at(server, lease_s=1.0) as bus:

            @bus.on("t", group="g", durable=True, retry=tl.Retry(attempts=3, delay_s=0.05))
            async def work(number: int) -> None:
                tries[number] = tries.get(number, 0) + 1
                if number == 2 and tries[number] < 3:
                    raise ValueError("not yet")
                if number == 3 and tries[number] < 4:
                    raise KeyError("never")
                handled.append(number)

            await opened(bus)
            await bus.publish_many("t", [1, 2, 3, 4])
            await until(lambda: sorted(handled) == [1, 2, 4] and len(bus.dead_letters) == 1, "three are handled")
            assert tries == {1: 1, 2: 3, 3: 3, 4: 1}
            await until(lambda: _pending(server, "g") == 0, "the batch is acknowledged")
            (letter,) = bus.dead_letters
            assert letter.subscriber == "g"
            assert letter.message.decode() == 3
            assert len(letter.attempts) == 3
            assert "KeyError: 'never'" in letter.traceback
            explained = await bus.explain(letter.message.id)
            assert [outcome.fate for outcome in explained.outcomes] == [tl.Fate.DEAD]

    run(test())


def test_a_dead_letter_goes_back_to_the_one_that_failed(server: RedisServer) -> None:
    """From another process, after a restart of the server, only to the group that failed."""

    async def test() -> None:
        async with bus_at(server, "a") as bus, bus_at(server, "b") as other:
            fails = True
            got: list[tuple[str, int]] = []

            @bus.on("t", group="g", durable=True, retry=tl.Retry(attempts=1))
            async def work(number: int) -> None:
                if fails:
                    raise ValueError("broken")
                got.append(("g", number))

            @bus.on("t", group="h", durable=True)
            async def beside(number: int) -> None:
                got.append(("h", number))

            await opened(bus)
            await adapter_of(other).ready()
            await bus.publish_many("t", [1, 2])
            await until(lambda: len(bus.dead_letters) == 2 and len(got) == 2, "both died at one, not at the other")
            await until(lambda: server.cli("HLEN", "{tl}:k:dead") == "2", "the letters are stored")
            server.restart()
            await until(lambda: adapter_of(bus).connects == adapter_of(other).connects == 2, "both are back")
            fails = False
            replayed = await other.replay_dead(subscriber="g")
            assert replayed.count == 2
            await until(lambda: len(got) == 4, "they came back")
            assert sorted(got) == [("g", 1), ("g", 2), ("h", 1), ("h", 2)]
            await until(lambda: server.cli("HLEN", "{tl}:k:dead") == "0", "the letters are gone")

    run(test())


def test_explain_asks_every_process_and_the_server(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, "a", durable=("t",)) as publisher, bus_at(server, "b") as subscriber:
            async with publisher.subscribe("t", name="absent", durable=True):
                pass
            async with (
                subscriber.subscribe("t", name="plain") as plain,
                subscriber.subscribe("t", group="g", durable=True) as member,
            ):
                message_id = await publisher.publish("t", 1)
                assert await plain.recv() is not None
                held = await member.recv()
                explained = await publisher.explain(message_id)
                fates = {outcome.subscriber: outcome.fate for outcome in explained.outcomes}
                assert fates["plain"] is tl.Fate.DELIVERED
                assert fates["absent"] is tl.Fate.IN_FLIGHT
                assert tl.Fate.IN_FLIGHT in {fate for name, fate in fates.items() if name not in ("plain", "absent")}
                assert held is not None
                member.ack(held)
            plain_id = await publisher.publish("u", 1)
            assert (await publisher.explain(plain_id)).outcomes == ()

    run(test())


def test_a_group_that_is_not_durable_ends_with_its_last_member(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, "a") as bus, bus_at(server, "b") as other:
            async with bus.subscribe("t", group="g") as one:
                async with other.subscribe("t", group="g"):
                    await bus.publish("t", 1)
                await bus.publish("t", 2)
                got = {message.decode() for _ in range(2) if (message := await one.recv()) is not None}
                assert got == {1, 2}
            await bus.flush()
            await until(lambda: server.cli("HKEYS", "{tl}:places") == "", "the place is removed")
            assert server.cli("KEYS", "*:q:*") == ""
            await bus.publish("t", 3)
            async with bus.subscribe("t", group="g") as again:
                await bus.publish("t", 4)
                message = await again.recv()
                assert message is not None
                assert message.decode() == 4

    run(test())


def test_a_place_that_nobody_keeps_alive_is_removed(server: RedisServer) -> None:
    """Its member was killed. Durable places stay."""

    async def test() -> None:
        async with bus_at(server, lease_s=0.5) as bus:
            for kind, role in (("e", "gone"), ("d", "stays")):
                server.cli("HSET", "{tl}:places", role, f"{kind}|t")
                server.cli("XGROUP", "CREATE", f"{{tl}}:q:{role}", role, "0", "MKSTREAM")
            await adapter_of(bus).ready()
            await until(lambda: server.cli("HKEYS", "{tl}:places") == "stays", "it is removed")
            assert server.cli("KEYS", "*:q:*") == "{tl}:q:stays"

    run(test())
