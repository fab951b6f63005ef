"""zenoh in peer mode: two processes, connected directly over a unix socket. Each function runs in a worker.

A publisher waits if the subscriber is slow (`BLOCK`), so nothing is lost. A callback receives each message.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import zenoh

from benchmarks.durable import TOPIC, payloads
from benchmarks.processes import Line
from benchmarks.servers import Place, Server

POLL_S = 0.005
KEY = TOPIC.replace(".", "/")


@contextmanager
def _start(folder: Path) -> Iterator[Place]:
    """There is no server: the subscriber listens at this address."""
    yield Place(f"unixsock-stream/{folder}/zenoh.sock", os.getpid())


ZENOH = Server(_start)


def _settings(**endpoints: str) -> zenoh.Config:
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", "false")  # shared memory is for large payloads
    for way in ("listen", "connect"):
        config.insert_json5(f"{way}/endpoints", json.dumps([endpoints[way]] if way in endpoints else []))
    return config


def publish(line: Line, address: str, count: int) -> int:
    """Returns the time of the first publish."""
    messages = payloads(count)
    with zenoh.open(_settings(connect=address)) as session:
        publisher = session.declare_publisher(KEY, congestion_control=zenoh.CongestionControl.BLOCK)
        while not cast(Any, publisher.matching_status).matching:
            time.sleep(POLL_S)
        line.ready()
        began_ns = time.perf_counter_ns()
        for payload in messages:
            publisher.put(payload)
    return began_ns


def subscribe(line: Line, address: str, count: int) -> int:
    """Returns the time at which the last message was received."""
    received = threading.Event()
    ended_ns = 0
    left = count

    def take(sample: zenoh.Sample) -> None:
        nonlocal left, ended_ns
        left -= 1
        if not left:
            ended_ns = time.perf_counter_ns()
            received.set()

    with zenoh.open(_settings(listen=address)) as session:
        session.declare_subscriber(KEY, take)
        line.ready()
        received.wait()
    return ended_ns
