"""How many bytes go from one process to another, written once and read in place?

There are cases for frames of 1 MiB and of 16 MiB. The result is GB per second of processor time of both processes.
Other cases measure GB per second of elapsed time, which needs an idle machine. frames.py describes the work of sender
and receiver, frame_peers.py that of the peers.

ezmsg is measured twice: `recv`, the default in its units, makes a copy; `recv_zero_copy` reads in place. With 16 MiB,
the time is that of the copy for every side that copies once. No such side can be several times faster than another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.frame_peers import EZMSG, EZMSG_IN_PLACE, GRAPH, IPC, RING, ZMQ
from benchmarks.frames import MIB, OURS, FrameSide, per_cpu_second, per_second
from benchmarks.harness import Case
from benchmarks.processes import crew
from benchmarks.servers import together

MEMCPY = "memcpy round a ring"
IPC_NAME = "ZeroMQ ipc"
EZMSG_NAME = "ezmsg recv"
EZMSG_IN_PLACE_NAME = "ezmsg recv_zero_copy"
SIDES: Mapping[str, FrameSide] = {
    MEMCPY: RING,
    IPC_NAME: ZMQ,
    EZMSG_NAME: EZMSG,
    EZMSG_IN_PLACE_NAME: EZMSG_IN_PLACE,
}


def _case(
    name: str, mib: int, target: Mapping[str, float], aim: Mapping[str, float] = {}, *, wall: bool = False
) -> Case:
    workers = crew(2)
    rate = per_second if wall else per_cpu_second
    sides = SIDES if not wall else {IPC_NAME: ZMQ}
    return Case(
        name=name,
        question=f"frames of {mib} MiB to another process, written once and read in place",
        unit="GB/s" if wall else "GB per CPU second",
        better="more",
        ours=partial(rate, side=OURS, crew=workers, frame_bytes=mib * MIB),
        peers={peer: partial(rate, side=side, crew=workers, frame_bytes=mib * MIB) for peer, side in sides.items()},
        target=target,
        aim=aim,
        size=400 // mib,
        around=partial(together, workers, IPC, GRAPH),
    )


CASE = _case(
    "memory-bandwidth",
    1,
    {MEMCPY: 0.5, IPC_NAME: 1.5, EZMSG_NAME: 1.5, EZMSG_IN_PLACE_NAME: 1.5},
    {EZMSG_NAME: 3.0, EZMSG_IN_PLACE_NAME: 3.0},
)
LARGE = _case(
    "memory-bandwidth-16mib",
    16,
    {MEMCPY: 0.9, IPC_NAME: 1.5, EZMSG_NAME: 1.8},
    {EZMSG_NAME: 3.0, EZMSG_IN_PLACE_NAME: 1.0},
)
WALL = _case("memory-bandwidth-wall", 1, {IPC_NAME: 3.0}, wall=True)
WALL_LARGE = _case("memory-bandwidth-wall16mib", 16, {IPC_NAME: 3.0}, wall=True)
