"""Confirmations wait until the receivers of a message have continued. No later frame of the hub overtakes them."""

from __future__ import annotations

import asyncio

import pytest

from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.clock import World
from trunkline.testing import Simulation, simulate, world
from trunkline.wire import control, frames
from trunkline.wire.client import Phase
from trunkline.wire.frames import DeliverHead

BODY = memoryview(frames.deliver(DeliverHead(1, 7, "a", 1), bytes(20))[0] + bytes(20))


def frame(message: control.Control) -> memoryview:
    return memoryview(frames.control(control.write(message)))


TAKEN = frame(control.Taken(runs=[(1, 1, 5)], failures=[]))


class Client:
    """A live connection without a wire, and the events of its users, in order."""

    def __init__(self, world: World) -> None:
        self.heard: list[str] = []
        self.connection = Connection("unix:///none", "client", world, ConnectionSettings())
        connection = self.connection
        connection._loop = asyncio.get_running_loop()
        connection._ended, connection._greeted = asyncio.Event(), asyncio.Event()
        connection.protocol.phase = Phase.LIVE
        connection.listeners[control.Taken] = lambda taken: self.heard.append("taken")
        connection.listeners[control.TopicInfo] = lambda info: self.heard.append("topic")
        connection.protocol.deliver = lambda head, body: self.wake()
        connection.users.append(self)
        self._woken = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        self._woken.set_result(None)

    async def wait(self) -> None:
        await self._woken
        self.heard.append("woken")

    def connected(self, welcome: control.Welcome) -> None:
        raise AssertionError

    def disconnected(self) -> None:
        self.heard.append("disconnected")


def test_who_got_a_message_goes_on_before_confirmations_are_worked_on() -> None:
    async def main() -> None:
        client = Client(World())
        waiting = asyncio.create_task(client.wait())
        await asyncio.sleep(0)
        client.connection.received([BODY, TAKEN])
        assert client.heard == []
        await waiting
        await asyncio.sleep(0)
        assert client.heard == ["woken", "taken"]

    # In the order of a real event loop: the one of simulations draws lots.
    asyncio.run(main())


def test_handlers_of_what_came_first_run_before_the_rest_is_read() -> None:
    async def main(now: Simulation) -> None:
        client = Client(world(now))
        client.connection.arrived = lambda: client.heard.append("arrived")
        info = frame(control.TopicInfo(topic="a", heard=True, confirm=False, durable=False))
        client.connection.received([BODY, info])
        assert client.heard[:2] == ["arrived", "topic"]
        client.heard.clear()
        client.connection.protocol.deliver = lambda head, body: client.heard.append("delivered")
        client.connection.received([info, BODY])
        assert client.heard[-3:] == ["topic", "delivered", "arrived"], "in their order"

    simulate(main)


@pytest.mark.parametrize("apart", [True, False])
def test_nothing_overtakes_a_confirmation(apart: bool) -> None:
    async def main(now: Simulation) -> None:
        client = Client(world(now))
        info = frame(control.TopicInfo(topic="a", heard=True, confirm=False, durable=False))
        if apart:
            client.connection.received([TAKEN])
            client.connection.received([TAKEN, info])
        else:
            client.connection.received([TAKEN, TAKEN, info])
        assert client.heard == ["taken", "taken", "topic"]
        await asyncio.sleep(0)
        assert client.heard == ["taken", "taken", "topic"], "once"

    simulate(main)


def test_what_was_confirmed_before_the_end_is_confirmed() -> None:
    async def main(now: Simulation) -> None:
        client = Client(world(now))
        client.connection.received([TAKEN])
        client.connection.lost("cut")
        assert client.heard == ["taken", "disconnected"]

    simulate(main)
