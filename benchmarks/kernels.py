"""Real kernels for the benchmarks: one that both sides talk to, and what such a one said, recorded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.manager import KernelManager

RUNNING: dict[str, Any] = {}
"""The kernel of the case that runs: its manager, by the name it is needed under."""


@contextmanager
def one_kernel() -> Iterator[None]:
    """A python3 kernel for as long as a case takes."""
    with tempfile.TemporaryDirectory() as folder:
        manager = KernelManager(kernel_name="python3", connection_file=os.fspath(Path(folder) / "kernel-bench.json"))
        manager.start_kernel(stderr=-3)
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.stop_channels()
        RUNNING["manager"] = manager
        try:
            yield
        finally:
            RUNNING.clear()
            manager.shutdown_kernel(now=True)


def record(requests: int, lines: int) -> tuple[str, list[list[bytes]], list[str]]:
    """What a kernel says on iopub to so many requests: its key, the frames of each message, the ids of the requests."""
    with one_kernel():
        manager: KernelManager = RUNNING["manager"]
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        key = client.session.key.decode()
        client.iopub_channel.stop()
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(f"{manager.transport}://{manager.ip}:{manager.iopub_port}")
        # Nothing is lost once something was heard. A second subscriber is not always welcomed, so it is asked for.
        while not socket.poll(500):
            client.kernel_info()
        while socket.poll(500):
            socket.recv_multipart()
        frames: list[list[bytes]] = []
        code = f"for n in range({lines}): print('line', n, flush=True)\ndisplay('shown')\n'a result'"
        asked = []
        for _ in range(requests):
            # One after the other: of too much at once a kernel drops some, without a word.
            asked.append(client.execute(code))
            idle = False
            while not idle:
                got = socket.recv_multipart()
                frames.append(got)
                idle = b'"execution_state": "idle"' in got[-1] or b'"execution_state":"idle"' in got[-1]
        socket.close()
        client.stop_channels()
        return key, frames, asked
