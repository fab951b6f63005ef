"""Real kernels for the benchmarks: a kernel that both sides use, and recorded messages of a kernel."""

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
"""The manager of the kernel of the current case, under the key `manager`."""


@contextmanager
def one_kernel() -> Iterator[None]:
    """A python3 kernel that runs until the end of the block."""
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
    """Record the messages of a kernel on iopub for a number of requests.

    Returns the key of the session, the frames of each message, and the ids of the requests.
    """
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
        # After the first message, none is lost. A second subscriber does not always get one, so a message is requested.
        while not socket.poll(500):
            client.kernel_info()
        while socket.poll(500):
            socket.recv_multipart()
        frames: list[list[bytes]] = []
        code = f"for n in range({lines}): print('line', n, flush=True)\ndisplay('shown')\n'a result'"
        asked = []
        for _ in range(requests):
            # One after another: with too many requests at once, a kernel silently drops messages.
            asked.append(client.execute(code))
            idle = False
            while not idle:
                got = socket.recv_multipart()
                frames.append(got)
                idle = b'"execution_state": "idle"' in got[-1] or b'"execution_state":"idle"' in got[-1]
        socket.close()
        client.stop_channels()
        return key, frames, asked
