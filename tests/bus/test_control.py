"""Health, heartbeats and control of a bus by messages, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from buses import until

import trunkline as tl
from trunkline import BusCommand, BusState, Health, Message, MessageType
from trunkline.journal import Journal, JournalBroker, JournalSettings
from trunkline.journal.settings import TopicStorage
from trunkline.testing import Simulation, simulate, world

pytestmark = pytest.mark.usefixtures("both_ways")

NS = 1_000_000_000


def together(act: Callable[[tl.Bus, tl.Bus], Awaitable[None]], *, name: str = "agent2", **settings: Any) -> None:
    """Two buses at one broker: the requester, and the responder."""

    async def main(simulation: Simulation) -> None:
        broker = tl.MemoryBroker(world(simulation))
        async with tl.Bus(broker, name="boss") as boss:
            async with tl.Bus(broker, name=name, settings=tl.Settings(**settings)) as agent:
                await act(boss, agent)
            assert not agent._closing._notices._tasks
        assert all(account.balanced for account in boss.accounts().values())

    simulate(main)


def test_ping_tells_how_a_bus_is() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        started_ns = agent.health().since_ns

        @agent.on("fails", name="fails", retry=tl.Retry(attempts=1))
        async def fails(message: Message) -> None:
            raise ValueError

        await agent.publish("fails")
        await asyncio.sleep(2)
        health = await boss.ping("agent2")
        assert (health.name, health.state, health.handlers, health.dead_letters) == ("agent2", BusState.OPEN, 1, 1)
        assert health.total_messages == 1
        assert (health.since_ns, health.at_ns - started_ns) == (started_ns, 2 * NS)
        assert health.pending == 0
        assert boss.stats().open_requests == 0
        assert (await agent.ping("agent2")).name == "agent2", "a bus may ask itself"

    together(act)


def test_paused_handlers_finish_what_they_have_and_take_nothing_new() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        begun: list[int] = []
        done: list[int] = []

        @agent.on("jobs", concurrency=2)
        async def work(number: int) -> None:
            begun.append(number)
            await asyncio.sleep(1)
            done.append(number)

        idle: list[int] = []
        agent.handle("idle", lambda number: idle.append(number))
        await boss.publish_many("jobs", range(5))
        await asyncio.sleep(0.5)
        health = await boss.control("agent2", BusCommand.PAUSE)
        assert health.state is agent.stats().state is agent.health().state is BusState.PAUSED
        paused_ns = health.since_ns
        await asyncio.sleep(10)
        assert sorted(begun) == sorted(done) == [0, 1]
        await boss.publish("idle", 7)
        await agent.publish("jobs", 5)
        assert (await boss.control("agent2", BusCommand.PAUSE)).since_ns == paused_ns, "pausing twice is fine"
        with pytest.raises(tl.RequestTimeout):
            await boss.request("jobs", 6, timeout_s=3)
        await asyncio.sleep(10)
        assert (sorted(begun), idle) == ([0, 1], [])
        assert agent.pending() == 6
        assert (await boss.control("agent2", BusCommand.RESUME)).state is BusState.OPEN
        assert (await boss.control("agent2", BusCommand.RESUME)).state is BusState.OPEN, "so is resuming twice"
        await agent.quiet()
        await until(lambda: idle)
        assert sorted(done) == [0, 1, 2, 3, 4, 5, 6]
        assert agent.stats().state is BusState.OPEN

    together(act)


def test_a_full_inbox_of_a_paused_handler_follows_its_policy() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        seen: list[int] = []

        @agent.on("jobs", name="jobs", capacity=2, overflow="drop_oldest")
        async def work(number: int) -> None:
            seen.append(number)

        assert agent.pause().state is BusState.PAUSED
        for number in range(5):
            await boss.publish("jobs", number)
            await asyncio.sleep(1)
        assert agent.accounts()["jobs"].dropped == 3
        agent.resume()
        await agent.quiet()
        assert seen == [3, 4]

    together(act)


def test_a_handler_registered_while_paused_waits_too() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        agent.pause()
        seen: list[str] = []
        agent.handle("late", seen.append)
        await boss.publish("late", "x")
        await asyncio.sleep(5)
        assert not seen
        agent.resume()
        await until(lambda: seen == ["x"])

    together(act)


def test_drain_answers_finishes_the_work_and_closes() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        done: list[int] = []

        @agent.on("jobs")
        async def work(number: int) -> None:
            await asyncio.sleep(1)
            done.append(number)
            await agent.publish("done", number)

        agent.pause()
        await boss.publish_many("jobs", range(3))
        async with boss.subscribe("done") as results:
            assert (await boss.control("agent2", BusCommand.DRAIN)).state is BusState.DRAINING
            await asyncio.sleep(0.5)
            assert (await boss.ping("agent2")).state is BusState.DRAINING
            assert (await boss.control("agent2", BusCommand.DRAIN)).state is BusState.DRAINING
            with pytest.raises(tl.RequestFailed, match="BusClosed"):
                await boss.control("agent2", BusCommand.PAUSE)
            with pytest.raises(tl.BusClosed):
                await agent.publish("more")
            await until(lambda: agent.health().state is BusState.CLOSED)
            assert [results.try_recv().decode() for _ in range(3)] == done == [0, 1, 2], "also what a pause held back"
        with pytest.raises(tl.BusClosed):
            agent.pause()
        assert agent.resume().state is BusState.CLOSED
        with pytest.raises(tl.RequestTimeout):
            await boss.ping("agent2", timeout_s=1)
        assert await agent.aclose() == []

    together(act)


def test_a_bus_may_drain_itself() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        assert (await agent.control("agent2", BusCommand.DRAIN)).state is BusState.DRAINING
        await until(lambda: agent.health().state is BusState.CLOSED)

    together(act, drain_s=0.0)


def test_nobody_of_that_name() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        with pytest.raises(tl.RequestTimeout, match=r"nobody subscribes to .*_control\.nobody"):
            await boss.ping("nobody", timeout_s=1)
        with pytest.raises(tl.InvalidTopic):
            await boss.ping("not a name")
        with pytest.raises(tl.UsageError, match="ping, pause, resume, drain"):
            await boss.control("agent2", "fly")  # type: ignore[arg-type]

    together(act)


@pytest.mark.parametrize("name", ["my agent", "a..b", "*", "x" * 250])
def test_a_bus_whose_name_is_no_topic_cannot_be_controlled(name: str) -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        await asyncio.sleep(30)
        assert agent.health().name == name
        assert agent.pause().state is BusState.PAUSED

    together(act, name=name, heartbeat_s=1.0)


@pytest.mark.parametrize(
    ("payload", "fields", "error"),
    [
        ("fly", {}, "InvalidPayload"),
        (b"\xc1\xff", {}, "InvalidPayload"),
        (b"pause", {"content_type": "text/x"}, "InvalidPayload"),
        ({"command": "pause"}, {}, "InvalidPayload"),
        ("pause", {"type": MessageType.REQUEST}, "UsageError"),
        ("pause", {"type": MessageType.PUBLISH}, "UsageError"),
    ],
)
def test_what_is_no_command_is_answered_with_an_error(payload: object, fields: dict[str, Any], error: str) -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        asked: Any = {"type": MessageType.CONTROL, **fields}
        with pytest.raises(tl.RequestFailed, match=error):
            await boss.request("_control.agent2", payload, timeout_s=5, **asked)
        assert agent.health().state is BusState.OPEN

    together(act)


def test_control_messages_built_by_hand() -> None:
    """Without `reply_to` there is no answer. An answer that arrives here is not a command, and is not answered."""

    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        await boss.post(Message(type=MessageType.CONTROL, recipient="agent2", payload="pause"))
        await until(lambda: agent.health().state is BusState.PAUSED)
        for kind in (MessageType.RESPONSE, MessageType.ERROR, MessageType.ACK):
            await boss.post(Message(type=kind, topic="_control.agent2", payload="resume", request_id="r"))
        await asyncio.sleep(1)
        assert agent.health().state is BusState.PAUSED
        assert not len(boss.orphans)
        assert not len(agent.orphans)

    together(act)


def test_a_tap_for_control_changes_nothing_for_other_topics() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        await boss.publish("orders")
        assert boss.stats().unrouted == 1
        assert not boss.broker.has_subscribers("_control.other")
        assert boss.broker.has_subscribers("_control.agent2")
        lane = boss.broker.lane("orders")
        assert lane.plain == ()
        await boss.ping("agent2")
        assert boss.broker.lane("orders") is lane
        assert boss.stats().unrouted == 1

    together(act)


def test_hooks_that_change_payloads_are_undone_for_commands() -> None:
    async def main(simulation: Simulation) -> None:
        broker = tl.MemoryBroker(world(simulation))

        def squeeze() -> tl.hooks.Compress:
            return tl.hooks.Compress(min_bytes=1)

        async with (
            tl.Bus(broker, name="boss", hooks=[squeeze()]) as boss,
            tl.Bus(broker, name="agent2", hooks=[squeeze()]),
        ):
            assert (await boss.control("agent2", BusCommand.PAUSE)).state is BusState.PAUSED

    simulate(main)


# Heartbeats


def test_the_setting_is_off_unless_set() -> None:
    assert tl.Settings().heartbeat_s is None
    assert tl.Settings.load(environ={"TRUNKLINE_HEARTBEAT_S": "2.5"}).heartbeat_s == 2.5
    with pytest.raises(tl.InvalidSettings):
        tl.Settings(heartbeat_s=0.0)


def _never(message: Message) -> Message:
    raise tl.Refused("nothing leaves here")


def test_heartbeats_tell_who_lives_until_the_end() -> None:
    async def main(simulation: Simulation) -> None:
        broker = tl.MemoryBroker(world(simulation))
        async with tl.Bus(broker, name="monitor") as monitor, monitor.subscribe("_heartbeat.>") as beats:
            refused = tl.hooks.each(_never)
            async with tl.Bus(broker, name="a", settings=tl.Settings(heartbeat_s=10.0), hooks=[refused]) as agent:
                await asyncio.sleep(15)
                agent.pause()
                await asyncio.sleep(10)
                assert (agent.stats().total_messages, agent.stats().unrouted, agent.history()) == (0, 0, [])
                assert agent.stats().total_refused == 0
            seen = [beats.try_recv() for _ in range(beats.depth)]
            assert {(each.type, each.topic, each.sender) for each in seen} == {
                (MessageType.HEARTBEAT, "_heartbeat.a", "a")
            }
            health = [each.decode(Health) for each in seen]
            assert [each.state for each in health] == ["open", "open", "paused", "closed"]
            assert [(each.at_ns - health[0].at_ns) // NS for each in health] == [0, 10, 20, 25]
            await asyncio.sleep(100)
            assert not beats.depth, "they stop with the bus"

    simulate(main)


def test_a_slow_subscriber_holds_up_neither_heartbeats_nor_the_end() -> None:
    async def main(simulation: Simulation) -> None:
        broker = tl.MemoryBroker(world(simulation))
        async with tl.Bus(broker, name="monitor") as monitor:
            async with monitor.subscribe("_heartbeat.>", name="slow", capacity=1) as slow:
                async with tl.Bus(broker, name="a", settings=tl.Settings(heartbeat_s=10.0)):
                    await asyncio.sleep(100)
                    began = simulation.now()
                assert simulation.now() - began <= 1.0
                account = slow.account()
                assert account.dropped >= 4
                assert account.in_flight == 1
            assert monitor.accounts()[""].balanced

    simulate(main)


def test_without_the_setting_nothing_is_published() -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        async with boss.subscribe(">") as everything:
            await asyncio.sleep(100)
            await agent.aclose()
            assert not everything.depth

    together(act)


def test_a_bus_hears_its_own_heartbeats_and_closes_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def act(boss: tl.Bus, agent: tl.Bus) -> None:
        states: list[str] = []

        @agent.on("_heartbeat.agent2")
        async def beat(health: Health) -> None:
            states.append(health.state)

        await asyncio.sleep(3.5)
        assert await agent.aclose() == []
        assert states == ["open"] * 4

    with caplog.at_level(logging.WARNING):
        together(act, heartbeat_s=1.0)
    assert not caplog.records


# The journal


def test_control_and_heartbeats_are_recorded_and_never_waited_for(tmp_path: Path) -> None:
    keeps = JournalSettings().keeps
    assert keeps("_control.agent2") is keeps("_heartbeat.agent2") is keeps("_reply.x") is TopicStorage.RECORDED
    assert keeps("orders") is TopicStorage.DURABLE

    async def main() -> None:
        broker = JournalBroker(Journal(tmp_path / "journal"), owns_journal=True)
        async with (
            broker,
            tl.Bus(broker, name="boss") as boss,
            tl.Bus(broker, name="agent2", settings=tl.Settings(heartbeat_s=0.01)) as agent,
            boss.subscribe("_heartbeat.>") as beats,
        ):
            assert (await boss.control("agent2", BusCommand.PAUSE, timeout_s=30)).state is BusState.PAUSED
            message = await beats.recv(30)
            assert message is not None
            assert message.decode(Health).name == "agent2"
            await boss.publish("orders", 1)
            await agent.aclose()

    asyncio.run(main())

    async def again() -> None:
        """A replay repeats published messages, but no commands to a bus."""
        async with tl.connect(name="agent2") as bus, bus.subscribe(">") as seen:
            replayed = await bus.replay(tmp_path / "journal")
            assert replayed.count == 1
            assert seen.try_recv().topic == "orders"
            assert bus.health().state is BusState.OPEN

    asyncio.run(again())


# The blocking face


def test_the_blocking_bus_has_the_same() -> None:
    with tl.connect_blocking(name="calm", settings=tl.Settings(heartbeat_s=0.01)) as bus:
        assert bus.pause().state is BusState.PAUSED
        assert bus.ping("calm", timeout_s=30).state is BusState.PAUSED
        assert bus.resume().state is BusState.OPEN
        with bus.subscribe("_heartbeat.calm") as beats:
            message = beats.recv(30)
            assert message is not None
            assert message.decode(Health).state is BusState.OPEN
        assert bus.control("calm", BusCommand.DRAIN, timeout_s=30).state is BusState.DRAINING
    assert bus.bus.health().state is BusState.CLOSED
