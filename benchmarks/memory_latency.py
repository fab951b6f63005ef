"""How long does a frame of 4 KiB take to a consumer in another process that waits for it? The p50, one way.

The result is half of a round trip: each process answers a frame with a frame, and waits. Both sides send an array.
Ours: `send` copies it into a slot. The consumer is woken and reads it there. There is a channel for each direction.
ZeroMQ: a pair of sockets over ipc, through the I/O threads of both ends. The receiver gets its own copy.
Both ends run in an event loop, uvloop, with `zmq.asyncio` for ZeroMQ. Blocking calls are a separate case.
"""

from __future__ import annotations

from functools import partial

from benchmarks import lone_frames
from benchmarks.frame_peers import IPC
from benchmarks.frames import FrameSide
from benchmarks.harness import Case, Sample
from benchmarks.processes import Crew, crew, results
from benchmarks.servers import together
from benchmarks.traffic import quantile

ZMQ = "ZeroMQ ipc"


def latency(count: int, side: FrameSide, crew: Crew) -> Sample:
    with side.place() as place, crew.running() as (sender, receiver):
        sender.begin(side.sends, place, count)
        sender.ready()
        receiver.begin(side.takes, place, count)
        sent, _ = results([sender, receiver])
        whole = quantile(sent.value, 50)
        return Sample(whole.value / 2, whole.took_s)


def _case(name: str, how: str, sides: tuple[FrameSide, FrameSide], target: float, aim: float) -> Case:
    workers = crew(2)
    ours, peer = sides
    return Case(
        name=name,
        question=f"a frame of 4 KiB to a process that waits for it, {how}, p50",
        unit="µs",
        better="less",
        ours=partial(latency, side=ours, crew=workers),
        peers={ZMQ: partial(latency, side=peer, crew=workers)},
        target={ZMQ: target},
        aim={ZMQ: aim},
        size=1000,
        around=partial(together, workers, IPC),
    )


CASE = _case("memory-latency", "asyncio", (lone_frames.OURS_ASYNC, lone_frames.ZMQ_ASYNC), 1 / 0.75, 1 / 0.5)
BLOCKING = _case("memory-latency-blocking", "blocking", (lone_frames.OURS, lone_frames.ZMQ), 1.0, 1.2)
