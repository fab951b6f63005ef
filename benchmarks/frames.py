"""Frames from one process to others in shared memory: how sides are measured, and ours. Functions run in workers.

All sides do the same. The sender has a picture in its own memory and sends it repeatedly. A receiver reads one byte of
each page: every page is mapped and read, but reading costs little compared with writing. The first frames touch pages
for the first time, and are not measured. No frame may be lost: the sender waits for slow receivers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Sample
from benchmarks.processes import Crew, Line, results
from benchmarks.servers import Place, Server
from trunkline import memory

QUEUE = 8
"""The number of frames that may wait for a receiver, for all sides."""
WARM_UP = 24
"""More than the number of slots of any side, so that each slot has been written and read once."""
PAGE = 4096
VALUE = 7
MIB = 1 << 20

Work = Callable[..., Any]


@dataclass(frozen=True)
class FrameSide:
    """The functions of the sender and of the receivers. Their arguments are a line, a place, and those of the case."""

    sends: Work
    takes: Work
    server: Server[Place] | None = None

    @contextmanager
    def place(self) -> Iterator[str]:
        """The address of the server, or the name of a channel only for this measurement."""
        if self.server is None:
            yield f"bench.frames.{os.getpid()}"
            return
        with self.server.running() as place:
            yield place.address


@dataclass(frozen=True)
class Carried:
    """The elapsed time, and the processor time of all processes."""

    took_s: float
    cpu_s: float


def carry(side: FrameSide, crew: Crew, frame_bytes: int, count: int) -> Carried:
    """The first worker sends `count` frames to all the others."""
    with side.place() as place, crew.running() as (sender, *receivers):
        sender.begin(side.sends, place, frame_bytes, count, len(receivers))
        sender.ready()
        for receiver in receivers:
            receiver.begin(side.takes, place, frame_bytes, count)
        taken = results(receivers)
        sender.stop()
        sent = sender.result()
    took_s = (max(each.value for each in taken) - sent.value) / 1e9
    return Carried(took_s, sent.cpu_s + sum(each.cpu_s for each in taken))


def per_cpu_second(count: int, side: FrameSide, crew: Crew, frame_bytes: int) -> Sample:
    """GB to each receiver per second of processor time of all processes together."""
    carried = carry(side, crew, frame_bytes, count)
    return Sample(count * frame_bytes / carried.cpu_s / 1e9, carried.took_s)


def per_second(count: int, side: FrameSide, crew: Crew, frame_bytes: int) -> Sample:
    """GB to each receiver per second."""
    carried = carry(side, crew, frame_bytes, count)
    return Sample(count * frame_bytes / carried.took_s / 1e9, carried.took_s)


def picture(frame_bytes: int) -> Any:
    return np.full(frame_bytes, VALUE, np.uint8)


def look(frame: Any) -> None:
    """Read one byte of each page."""
    seen = np.frombuffer(frame, np.uint8)[::PAGE]
    assert seen.min() == VALUE, "not what was sent"


class Counted:
    """Counts the frames of a receiver. Its processor time is measured from the end of the warm-up frames."""

    def __init__(self, line: Line, count: int) -> None:
        self._line = line
        self.left = WARM_UP + count
        self._cold = WARM_UP

    def note(self) -> bool:
        """Count one frame. Returns whether there are more to come."""
        self.left -= 1
        self._cold -= 1
        if not self._cold:
            self._line.ready()
        return self.left > 0


# Ours


def send(line: Line, channel: str, frame_bytes: int, count: int, receivers: int) -> int:
    """Returns the time at which the first measured frame was sent."""
    source = picture(frame_bytes)
    settings = memory.ChannelSettings(consumers=receivers, stuck_s=60.0)
    schema = np.dtype((np.uint8, (frame_bytes,)))
    with memory.producer(channel, schema=schema, capacity=QUEUE, settings=settings) as frames:
        line.ready()
        while len(frames.metrics().consumers) < receivers:
            frames.serve(1.0)
        began_ns = 0
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                line.ready()
                began_ns = time.perf_counter_ns()
            frames.send(source)
    return began_ns


def take(line: Line, channel: str, frame_bytes: int, count: int) -> int:
    """Returns the time at which the last frame was read."""
    counted = Counted(line, count)
    with memory.consumer(channel, wants="every") as frames:
        while True:
            with frames.recv() as frame:
                look(frame.data)
            if not counted.note():
                return time.perf_counter_ns()


OURS = FrameSide(send, take)
