"""Repeated round trips of a frame of 4 KiB: ours and ZeroMQ. Each function runs in a worker.

The two sides take turns: one waits while the other works. The times are those of whole round trips, in nanoseconds.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import zmq
import zmq.asyncio

from benchmarks.frame_peers import IPC
from benchmarks.frames import FrameSide
from benchmarks.processes import Line
from trunkline import memory

FRAME = np.dtype((np.uint8, (4096,)))
POLL_S = 0.005


def _picture() -> Any:
    return np.zeros(FRAME.shape, np.uint8)


# Ours, with a channel for each direction


def ping(line: Line, place: str, count: int) -> list[int]:
    frame, times = _picture(), []
    with memory.producer(f"{place}.there", schema=FRAME) as out:
        line.ready()
        while not out.metrics().consumers:
            out.serve(POLL_S)
        with memory.consumer(f"{place}.back") as incoming:
            for _ in range(count):
                began = time.perf_counter_ns()
                out.send(frame)
                incoming.recv()
                times.append(time.perf_counter_ns() - began)
    return times


def pong(line: Line, place: str, count: int) -> None:
    frame = _picture()
    with memory.producer(f"{place}.back", schema=FRAME) as out, memory.consumer(f"{place}.there") as incoming:
        for _ in range(count):
            incoming.recv()
            out.send(frame)


async def ping_async(line: Line, place: str, count: int) -> list[int]:
    frame, times = _picture(), []
    async with memory.producer(f"{place}.there", schema=FRAME) as out:
        line.ready()
        while not out.metrics().consumers:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        async with memory.consumer(f"{place}.back") as incoming:
            for _ in range(count):
                began = time.perf_counter_ns()
                await out.send(frame)
                await incoming.recv()
                times.append(time.perf_counter_ns() - began)
    return times


async def pong_async(line: Line, place: str, count: int) -> None:
    frame = _picture()
    async with memory.producer(f"{place}.back", schema=FRAME) as out, memory.consumer(f"{place}.there") as incoming:
        for _ in range(count):
            await incoming.recv()
            await out.send(frame)


# ZeroMQ, with a socket for both


def zmq_ping(line: Line, address: str, count: int) -> list[int]:
    frame, times = _picture(), []
    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.bind(address)
        line.ready()
        for _ in range(count):
            began = time.perf_counter_ns()
            pair.send(frame)
            pair.recv()
            times.append(time.perf_counter_ns() - began)
    return times


def zmq_pong(line: Line, address: str, count: int) -> None:
    frame = _picture()
    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.connect(address)
        for _ in range(count):
            pair.recv()
            pair.send(frame)


async def zmq_ping_async(line: Line, address: str, count: int) -> list[int]:
    frame, times = _picture(), []
    with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.bind(address)
        line.ready()
        for _ in range(count):
            began = time.perf_counter_ns()
            await pair.send(frame)
            await pair.recv()
            times.append(time.perf_counter_ns() - began)
    return times


async def zmq_pong_async(line: Line, address: str, count: int) -> None:
    frame = _picture()
    with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.connect(address)
        for _ in range(count):
            await pair.recv()
            await pair.send(frame)


OURS = FrameSide(ping, pong)
OURS_ASYNC = FrameSide(ping_async, pong_async)
ZMQ = FrameSide(zmq_ping, zmq_pong, IPC)
ZMQ_ASYNC = FrameSide(zmq_ping_async, zmq_pong_async, IPC)
