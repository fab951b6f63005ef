"""How many messages per second can an actor send to an actor in another process, through a hub in a third process?

Messages have 100 bytes and are sent one by one. The peer is Ray, if it is installed. Only its last call is awaited.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from functools import partial
from typing import Any

from benchmarks.durable import payloads
from benchmarks.harness import Case, Sample
from benchmarks.hubs import UNIX, arrive, hub_on
from benchmarks.peers import rate as per_second
from benchmarks.processes import Line, crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, rate
from trunkline import connect
from trunkline.actors import Actor, ActorSystem

RAY = "Ray .remote()"


class Counter(Actor):
    def __init__(self, count: int, done: asyncio.Future[int]) -> None:
        self._left = count
        self._done = done

    async def receive(self, payload: bytes) -> None:
        self._left -= 1
        if not self._left:
            self._done.set_result(time.perf_counter_ns())


async def tell(line: Line, address: str, count: int) -> int:
    """Returns the time at which the first message was sent."""
    messages = payloads(count)
    async with connect(address) as bus, ActorSystem(bus, "source") as system:
        counter = system.ref("sink.counter")
        await arrive(bus)
        line.ready()
        began_ns = time.perf_counter_ns()
        for payload in messages:
            await counter.tell(payload)
        await bus.flush()
    return began_ns


async def count_all(line: Line, address: str, count: int) -> int:
    """Returns the time at which the last message was handled."""
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with connect(address) as bus, ActorSystem(bus, "sink") as system:
        await system.spawn(Counter, count, done, name="counter", overflow="block")
        await arrive(bus)
        line.ready()
        return await done


def ray_calls(count: int) -> Sample:
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    class RayCounter:
        def __init__(self) -> None:
            self.count = 0

        def receive(self, payload: bytes) -> None:
            self.count += 1

        def total(self) -> int:
            return self.count

    counter = ray.remote(RayCounter).remote()
    ray.get(counter.total.remote())
    began = time.perf_counter()
    for payload in payloads(count):
        counter.receive.remote(payload)
    assert ray.get(counter.total.remote()) == count
    return per_second(count, began)


_CREW = crew(2)
_HUB = hub_on(UNIX)
CASE = Case(
    name="actors-processes",
    question="an actor tells one in another process, through a hub, 100 bytes",
    unit="messages/s",
    better="more",
    ours=partial(rate, pair=Pair(_HUB, tell, count_all), crew=_CREW),
    peers={RAY: ray_calls} if importlib.util.find_spec("ray") else {},
    target={RAY: 3.0},
    absent={} if importlib.util.find_spec("ray") else {RAY: "Ray is not installed: pip install '.[ray]'"},
    size=10_000,
    around=partial(together, _CREW, _HUB),
)
