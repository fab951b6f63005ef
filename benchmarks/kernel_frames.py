"""Simulated frames of a kernel, for requests that are known to a router."""

from __future__ import annotations

import asyncio
import json

from trunkline.clock import World
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.router import KernelRouter
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import DELIMITER, KernelWire

SESSION = "session"


class KernelScene:
    """A router with a number of open requests, and the frames of its kernel."""

    def __init__(self, requests: int) -> None:
        self.world, self.settings = World(), KernelSettings()
        self.wire = KernelWire("bench", self.world.time_ns)
        self.router = KernelRouter("bench", SESSION, self.world, self.settings)
        now_s = asyncio.get_running_loop().time()
        self.executions = [
            Execution(f"request-{number}", self.world, self.settings, sent_at_s=now_s, keeper=self.router)
            for number in range(requests)
        ]
        for execution in self.executions:
            self.router.register(execution, "shell", now_s, 300.0)
        self._numbers = 0

    def stream(self, request_id: str, text: str = "a line of output\n") -> list[bytes]:
        """The frames of a message on stdout."""
        self._numbers += 1
        header = {"msg_id": f"said-{self._numbers}", "msg_type": "stream", "session": "kernel", "username": "kernel"}
        parent = {"msg_id": request_id, "session": SESSION, "msg_type": "execute_request"}
        content = {"name": "stdout", "text": text}
        return [b"stream", DELIMITER, b"", *(json.dumps(part).encode() for part in (header, parent, {}, content))]
