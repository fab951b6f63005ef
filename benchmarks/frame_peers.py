"""The peers of shared-memory channels: a bare ring, ZeroMQ over a unix socket, ezmsg. Each function runs in a worker.

The work of each peer for a frame:

- The ring: one `memcpy` into the next slot of a ring in shared memory, with as many slots as our channel. The same
  process reads it. There is no wake-up, no waiting and no accounting.
- ZeroMQ: `send(copy=False)` passes the picture without a copy. The kernel copies it into a socket and from there into
  the memory of the receiver. One receiver uses `PULL`, several use `SUB`.
- ezmsg: pickles the message, with the array out of band, into a buffer in shared memory, and notifies the receivers
  through a socket. They make a copy (`recv`) or read in place (`recv_zero_copy`), and acknowledge through the socket.
  Both ends use asyncio.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from ezmsg.core.graphcontext import GraphContext

from benchmarks.frames import QUEUE, WARM_UP, Counted, FrameSide, look, picture
from benchmarks.processes import Line
from benchmarks.servers import Place, Server, pid_of, process

SPARE = 5
"""The slots of our channel in addition to its queue, with one consumer."""
POLL_S = 0.005


# A bare ring


def copy_round(line: Line, place: str, frame_bytes: int, count: int, receivers: int) -> int:
    """Sends and reads the frames. The other worker does nothing, and its end time is 0."""
    source = picture(frame_bytes)
    slots = QUEUE + SPARE
    ring = np.frombuffer(mmap.mmap(-1, slots * frame_bytes), np.uint8).reshape(slots, frame_bytes)
    line.ready()
    began_ns = 0
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            line.ready()
            began_ns = time.perf_counter_ns()
        slot = ring[number % slots]
        slot[:] = source
        look(slot)
    return began_ns - time.perf_counter_ns()


def nothing(line: Line, place: str, frame_bytes: int, count: int) -> int:
    line.ready()
    return 0


RING = FrameSide(copy_round, nothing)


# ZeroMQ


@contextmanager
def _socket_file(folder: Path) -> Iterator[Place]:
    yield Place(f"ipc://{folder}/frames.ipc", 0)


def zmq_send(line: Line, address: str, frame_bytes: int, count: int, receivers: int) -> int:
    source = picture(frame_bytes)
    with zmq.Context() as context, context.socket(zmq.PUSH if receivers == 1 else zmq.XPUB) as out:
        out.set_hwm(QUEUE)
        if receivers > 1:
            # Wait for the slowest subscriber instead of dropping messages for which it has no room.
            out.setsockopt(zmq.XPUB_NODROP, 1)
            out.setsockopt(zmq.XPUB_VERBOSE, 1)
        out.bind(address)
        line.ready()
        for _ in range(receivers if receivers > 1 else 0):
            assert out.recv() == b"\x01"
        began_ns = 0
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                line.ready()
                began_ns = time.perf_counter_ns()
            out.send(source, copy=False)
        # If this end closed now, the receiver would not get all messages that are still in the socket.
        line.stop.wait()
    return began_ns


def zmq_take(line: Line, address: str, frame_bytes: int, count: int) -> int:
    return _zmq_take(line, address, count, zmq.PULL)


def zmq_subscribe(line: Line, address: str, frame_bytes: int, count: int) -> int:
    return _zmq_take(line, address, count, zmq.SUB)


def _zmq_take(line: Line, address: str, count: int, kind: int) -> int:
    counted = Counted(line, count)
    with zmq.Context() as context, context.socket(kind) as out:
        out.set_hwm(QUEUE)
        if kind == zmq.SUB:
            out.subscribe(b"")
        out.connect(address)
        while True:
            look(out.recv(copy=False).buffer)
            if not counted.note():
                return time.perf_counter_ns()


IPC = Server(_socket_file)
ZMQ = FrameSide(zmq_send, zmq_take, IPC)
ZMQ_FANOUT = FrameSide(zmq_send, zmq_subscribe, IPC)


# ezmsg


@contextmanager
def _serve(folder: Path) -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ezmsg.core", "serve", "--address", f"127.0.0.1:{port}"]
    with process(command, folder / "ezmsg.log", "Servers running") as ready:
        yield Place(str(port), pid_of(ready))


async def ezmsg_send(line: Line, port: str, frame_bytes: int, count: int, receivers: int) -> int:
    source = picture(frame_bytes)
    async with GraphContext(("127.0.0.1", int(port))) as context:
        out = await context.publisher("frames", buf_size=frame_bytes + 4096, num_buffers=QUEUE)
        line.ready()
        # It has a channel for its own process from the start. There is no event for the others.
        while len(out._channels) < 1 + receivers:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        began_ns = 0
        for number in range(WARM_UP + count):
            if number == WARM_UP:
                line.ready()
                began_ns = time.perf_counter_ns()
            await out.broadcast(source)
        await out.sync()
    return began_ns


async def ezmsg_copy(line: Line, port: str, frame_bytes: int, count: int) -> int:
    counted = Counted(line, count)
    async with GraphContext(("127.0.0.1", int(port))) as context:
        incoming: Any = await context.subscriber("frames")
        while True:
            look(await incoming.recv())
            if not counted.note():
                return time.perf_counter_ns()


async def ezmsg_take(line: Line, port: str, frame_bytes: int, count: int) -> int:
    counted = Counted(line, count)
    async with GraphContext(("127.0.0.1", int(port))) as context:
        incoming: Any = await context.subscriber("frames")
        while True:
            async with incoming.recv_zero_copy() as frame:
                look(frame)
                # The memory cannot be closed while a view of it exists.
                del frame
            if not counted.note():
                return time.perf_counter_ns()


GRAPH = Server(_serve)
EZMSG = FrameSide(ezmsg_send, ezmsg_copy, GRAPH)
EZMSG_IN_PLACE = FrameSide(ezmsg_send, ezmsg_take, GRAPH)
