"""Control and heartbeats through a hub with rules, with and without the right, over TLS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.guests import Guest, hub_of, make_keys
from tests.hub.hubs import until
from tests.hub.test_rights_attacks import bus_of, code
from trunkline import BusCommand, BusState, Health, Message, MessageType, columns
from trunkline.hub.access import Access, AccessRule, Action
from trunkline.hub.hub import Hub
from trunkline.wire import control, frames
from trunkline.wire.frames import PublishHead

RULES: list[Any] = [
    {"who": "cert:owner", "may": ["publish", "subscribe"], "on": ["orders.>", "_to.owner"]},
    {"who": "cert:admin", "may": ["administer"], "on": ["_to.>"]},
    {"who": "cert:admin", "may": ["subscribe"], "on": ["_heartbeat.>"]},
    {"who": "cert:elsewhere", "may": ["publish", "subscribe"]},
    {"who": "cert:data", "may": ["publish", "subscribe"], "on": ["data.>"]},
]
"""Who is controlled, who may administer endpoints, who may use every topic and administers nothing, the attacker."""
WAIT_S = 30.0
ME = "cert:me"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def play(keys: Path, tmp_path: Path) -> Callable[..., None]:
    def run(act: Callable[[Hub, Callable[..., Any]], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(120), hub_of(tmp_path, keys, RULES) as hub:
                await act(hub, lambda name: Guest.come(hub, keys, name))

        asyncio.run(main())

    return run


def beating(hub: Hub, keys: Path, name: str) -> tl.Bus:
    """As `bus_of`, with a heartbeat."""
    return tl.Bus(bus_of(hub, keys, name).broker, name=name, settings=tl.Settings(heartbeat_s=0.02), owns_broker=True)


async def there(bus: tl.Bus) -> None:
    """Until the hub has the bus's own subscriptions."""
    assert isinstance(bus.broker, tl.HubBroker)
    await bus.broker.ping()


async def cut(hub: Hub, *buses: tl.Bus) -> None:
    """Disconnect them, and wait until they are connected again."""
    cut_off = list(hub.sessions.values())
    for session in cut_off:
        session.wire.abort()
    await until(lambda: len(hub.sessions) == len(buses) and not {*hub.sessions.values()} & {*cut_off}, "they are back")
    for bus in buses:
        await there(bus)


def command(topic: str, number: int, reply_to: str | None = None) -> bytes:
    """A frame with a CONTROL message that requests a drain."""
    message = Message(
        id=f"c{number}", topic=topic, payload="drain", type=MessageType.CONTROL, request_id="r", reply_to=reply_to
    )
    return frames.publish(PublishHead(number, topic, 1, urgent=True), columns.pack_batch([message]))


def test_who_administers_an_endpoint_controls_its_bus(keys: Path, play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        async with bus_of(hub, keys, "owner") as owner, bus_of(hub, keys, "admin") as admin:
            await there(owner)
            assert (await admin.ping("owner", timeout_s=WAIT_S)).name == "owner"
            assert (await admin.control("owner", BusCommand.PAUSE, timeout_s=WAIT_S)).state is BusState.PAUSED
            assert owner.stats().state is BusState.PAUSED
            with pytest.raises(tl.RequestTimeout):
                await admin.ping("nobody", timeout_s=0.2)
            await cut(hub, owner, admin)
            assert (await admin.control("owner", BusCommand.RESUME, timeout_s=WAIT_S)).state is BusState.OPEN
            assert (await admin.control("owner", BusCommand.DRAIN, timeout_s=WAIT_S)).state is BusState.DRAINING
            await until(lambda: owner.health().state is BusState.CLOSED, "it is drained")

    play(act)


def test_nobody_else_controls_it(keys: Path, play: Callable[..., None]) -> None:
    """Neither by a rule for publishing, nor by a link, a reply topic, or its own name."""

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        async with bus_of(hub, keys, "owner") as owner, bus_of(hub, keys, "elsewhere") as elsewhere:
            await there(owner)
            for stranger in (elsewhere, owner):
                with pytest.raises(tl.NotAllowed):
                    await stranger.control("owner", BusCommand.DRAIN, timeout_s=WAIT_S)
            for number, name in enumerate(("data", "elsewhere"), 1):
                attacker = await come(name)
                for topic in ("_control.owner", "_control", "_control.nobody"):
                    attacker.send(command(topic, number))
                    (failure,) = (await attacker.hear(control.Taken)).failures
                    assert failure.code == "forbidden"
                    number += 10
                attacker.send(command("data.x", number, reply_to="_control.owner"))
                (failure,) = (await attacker.hear(control.Taken)).failures
                assert failure.code == "forbidden"
                link = await attacker.ask(control.Link, pattern="data.x", topic="_control.owner")
                assert code(link) == "forbidden"
                inquiry = await attacker.ask(control.Topic, topic="_control.owner")
                assert code(inquiry) == "forbidden"
            assert owner.health().state is BusState.OPEN

    play(act)


def test_who_has_no_rule_for_it_does_not_see_what_a_bus_is_told(keys: Path, play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        attacker = await come("data")
        wide = ("_control.owner", "_control.>", "_control.*", "_control", "*.owner", "*.>", ">")
        for number, pattern in enumerate((*wide, "_heartbeat.owner", "_heartbeat.>", "_heartbeat.*"), 1):
            assert code(await attacker.subscribe(number, pattern)) == "forbidden"
            assert code(await attacker.ask(control.Link, pattern=pattern, topic="data.x")) == "forbidden"
        assert code(await attacker.ask(control.Last, topic="_control.owner")) == "forbidden"
        async with (
            bus_of(hub, keys, "owner") as owner,
            bus_of(hub, keys, "admin") as admin,
            bus_of(hub, keys, "elsewhere") as monitor,
            monitor.subscribe(">", name="everything") as everything,
        ):
            await there(owner)
            await admin.ping("owner", timeout_s=WAIT_S)
            seen = await everything.recv(WAIT_S)
            assert seen is not None
            assert seen.topic == "_control.owner", "who may subscribe to everything may see it"

    play(act)


def test_heartbeats_are_those_of_who_may_be_the_endpoint(keys: Path, play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        attacker = await come("data")
        (failure,) = (await attacker.publish("_heartbeat.owner", 1, b"made up")).failures
        assert failure.code == "forbidden"
        async with bus_of(hub, keys, "admin") as admin, admin.subscribe("_heartbeat.>") as beats:
            async with beating(hub, keys, "data") as silent, beating(hub, keys, "owner"):
                first = await beats.recv(WAIT_S)
                assert first is not None
                assert (first.topic, first.decode(Health).state) == ("_heartbeat.owner", BusState.OPEN)
                await silent.publish("data.x", 1)
            states = []
            while (beat := await beats.recv(WAIT_S)) is not None:
                assert beat.sender == "owner"
                states.append(beat.decode(Health).state)
                if states[-1] is BusState.CLOSED:
                    break

    play(act)


def test_a_bus_that_may_not_be_controlled_goes_on_without(
    keys: Path, play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged at the level of debug, also after a reconnection."""

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        async with bus_of(hub, keys, "data") as bus, bus.subscribe("data.>") as messages:
            await bus.publish("data.x", 1)
            assert await messages.recv(WAIT_S) is not None
            await cut(hub, bus)
            await bus.publish("data.x", 2)
            assert await messages.recv(WAIT_S) is not None
            await bus.flush()

    with caplog.at_level(logging.DEBUG, "trunkline.connection"):
        play(act)
    about = [record for record in caplog.records if "_control.data" in record.getMessage()]
    assert [record.levelno for record in about] == [logging.DEBUG]


def rule(*on: str, may: tuple[Action, ...]) -> Access:
    return Access([AccessRule(who=ME, may=may, on=on)])


@pytest.mark.parametrize(
    ("on", "may", "action", "pattern", "allowed"),
    [
        ("_to.a", Action.ADMINISTER, Action.PUBLISH, "_control.a", True),
        ("_to.a", Action.ADMINISTER, Action.PUBLISH, "_control.b", False),
        ("_to.a", Action.ADMINISTER, Action.PUBLISH, "_control.a.b", False),
        ("_to.>", Action.ADMINISTER, Action.PUBLISH, "_control.a.b", True),
        ("_to.>", Action.ADMINISTER, Action.PUBLISH, "_control.>", False),
        ("_to.>", Action.ADMINISTER, Action.PUBLISH, "_control.*", False),
        ("_to.>", Action.ADMINISTER, Action.PUBLISH, "_control", False),
        (">", Action.ADMINISTER, Action.PUBLISH, "_control.>", True),
        (">", Action.ADMINISTER, Action.PUBLISH, "_control", True),
        (">", Action.ADMINISTER, Action.SUBSCRIBE, "_control.a", False),
        (">", Action.PUBLISH, Action.PUBLISH, "_control.a", False),
        ("_control.>", Action.PUBLISH, Action.PUBLISH, "_control.a", False),
        ("_control.a", Action.ADMINISTER, Action.PUBLISH, "_control.a", False),
        ("_to.a", Action.SUBSCRIBE, Action.SUBSCRIBE, "_control.a", True),
        ("_to.a", Action.SUBSCRIBE, Action.SUBSCRIBE, "_control.>", False),
        ("_to.>", Action.SUBSCRIBE, Action.SUBSCRIBE, "_control.>", True),
        ("_to.a", Action.PUBLISH, Action.SUBSCRIBE, "_control.a", False),
        (">", Action.SUBSCRIBE, Action.SUBSCRIBE, "_control.>", True),
        ("_to.a", Action.SUBSCRIBE, Action.PUBLISH, "_heartbeat.a", True),
        ("_to.a", Action.SUBSCRIBE, Action.SUBSCRIBE, "_heartbeat.a", True),
        ("_to.a", Action.PUBLISH, Action.PUBLISH, "_heartbeat.a", False),
        ("_to.a", Action.SUBSCRIBE, Action.PUBLISH, "_heartbeat.b", False),
        ("_to.a", Action.SUBSCRIBE, Action.CREATE, "_heartbeat.a", False),
        ("_heartbeat.>", Action.SUBSCRIBE, Action.SUBSCRIBE, "_heartbeat.>", True),
        ("_heartbeat.>", Action.SUBSCRIBE, Action.PUBLISH, "_heartbeat.a", False),
    ],
)
def test_what_control_and_heartbeats_need(on: str, may: Action, action: Action, pattern: str, allowed: bool) -> None:
    assert rule(on, may=(may,)).may(ME, action, pattern) is allowed
