"""How fast are messages of a kernel verified, decoded and routed to their requests, with 100 open requests?

The frames of a real kernel are recorded once. The peer does the same as every client of jupyter_client:
`Session.deserialize`, and a lookup of the parent in a dict.
"""

from __future__ import annotations

import asyncio
import time
from functools import cache

from jupyter_client.session import Session

from benchmarks.harness import Case, Sample
from benchmarks.kernels import record
from trunkline.clock import World
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.router import KernelRouter
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import KernelWire

REQUESTS = 100
LINES = 50
DRAIN = 250
"""The number of messages that are taken from the socket at once."""
DESERIALIZE = "Session.deserialize and a dict"


@cache
def recorded() -> tuple[str, list[list[bytes]], list[str]]:
    return record(REQUESTS, LINES)


async def ours(count: int) -> Sample:
    key, frames, asked = recorded()
    done, took_s = 0, 0.0
    while done < count:
        world, settings = World(), KernelSettings()
        wire = KernelWire("bench", world.time_ns, key.encode())
        routing = KernelRouter("bench", "session", world, settings)
        loop = asyncio.get_running_loop()
        executions = [Execution(request, world, settings, sent_at_s=loop.time()) for request in asked]
        for execution in executions:
            routing.register(execution, "shell", loop.time(), 300.0)
        began = time.perf_counter()
        for first in range(0, len(frames), DRAIN):
            routing.route([wire.unpack("iopub", each) for each in frames[first : first + DRAIN]], loop.time())
        took_s += time.perf_counter() - began
        done += len(frames)
        assert all(len(execution.partial().stdout.splitlines()) == LINES for execution in executions)
        routing.close()
    return Sample(done / took_s, took_s)


def deserialize(count: int) -> Sample:
    key, frames, asked = recorded()
    done, took_s = 0, 0.0
    while done < count:
        session = Session(key=key.encode())
        requests: dict[str, list[object]] = {request: [] for request in asked}
        began = time.perf_counter()
        for each in frames:
            _, parts = session.feed_identities(each)
            message = session.deserialize(parts)
            requests[message["parent_header"]["msg_id"]].append(message)
        took_s += time.perf_counter() - began
        done += len(frames)
        assert all(len(messages) > LINES for messages in requests.values())
    return Sample(done / took_s, took_s)


CASE = Case(
    name="jupyter-route",
    question="what a kernel said, checked, read, and given to one of 100 open requests",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={DESERIALIZE: deserialize},
    target={DESERIALIZE: 5.0},
    size=5000,
)
