"""How many bytes per second go to each of four consumers, compared with a single consumer?

Frames have 16 MiB. The result is GB to each consumer per second of processor time of all processes together. Ours
writes a frame once for all consumers. ZeroMQ: `XPUB` to four subscribers, which copies the frame through a socket for
each.
"""

from __future__ import annotations

from functools import partial

from benchmarks.frame_peers import IPC, ZMQ_FANOUT
from benchmarks.frames import MIB, OURS, FrameSide, per_cpu_second
from benchmarks.harness import Case, Sample
from benchmarks.processes import Crew, crew
from benchmarks.servers import together

CONSUMERS = 4
FRAME_BYTES = 16 * MIB
ONE = "one consumer"
ZMQ = "ZeroMQ ipc, four subscribers"


def measure(count: int, side: FrameSide, workers: Crew) -> Sample:
    return per_cpu_second(count, side, workers, FRAME_BYTES)


_ALL = crew(1 + CONSUMERS)
_TWO = crew(2)
CASE = Case(
    name="memory-fanout",
    question="frames of 16 MiB to each of four processes, written once and read in place",
    unit="GB per CPU second",
    better="more",
    ours=partial(measure, side=OURS, workers=_ALL),
    peers={ONE: partial(measure, side=OURS, workers=_TWO), ZMQ: partial(measure, side=ZMQ_FANOUT, workers=_ALL)},
    target={ONE: 0.6},
    size=25,
    around=partial(together, _ALL, _TWO, IPC),
)
