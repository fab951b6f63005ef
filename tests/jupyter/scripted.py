"""A kernel that plays back the frames of a real one, in virtual time: late, early, twice, or never."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trunkline.clock import World
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.link import KernelReceiver
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import DELIMITER, KernelMessage, KernelWire, Unreadable
from trunkline.testing.simulate import Simulation

PLACE = Path(__file__).with_name("recorded.json")
KEY = b"a key"

Frames = list[bytes]


@cache
def recorded() -> dict[str, Any]:
    return json.loads(PLACE.read_text())  # type: ignore[no-any-return]


@cache
def said(request: str) -> tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]:
    """The kernel's messages for the execution, or for kernel_info: socket, header, content."""
    executed = recorded()["execute_request"]
    found = []
    for socket, parts in recorded()["frames"]:
        frames = [base64.b64decode(part) for part in parts]
        _, header, parent, _, content = frames[frames.index(DELIMITER) + 1 :][:5]
        above = json.loads(parent).get("msg_id")
        if above and (above == executed) == (request == "execute_request"):
            found.append((socket, json.loads(header), json.loads(content)))
    return tuple(found)


@dataclass
class Faults:
    """Possible faults between the kernel and the client."""

    drop: Callable[[], bool] = lambda: False
    twice: Callable[[], bool] = lambda: False
    delay_s: Callable[[], float] = lambda: 0.001


@dataclass
class ScriptedLink:
    """Like a kernel on sockets: iopub messages before our subscription is live are lost silently."""

    world: World
    chance: random.Random
    faults: Faults = field(default_factory=Faults)
    live_after_s: float = 0.0
    """When the subscription is live."""
    up_after_s: float = 0.0
    """When the kernel answers at all."""
    welcomes: bool = True
    wire: KernelWire = field(init=False)
    client: KernelReceiver | None = None
    sent: list[KernelMessage] = field(default_factory=list)
    numbers: int = 0
    muted: bool = False
    deaf: bool = False
    """It answers nothing from now on."""

    def __post_init__(self) -> None:
        self.wire = KernelWire("k1", self.world.time_ns, KEY)
        self._opened_s = 0.0
        self._last_s: dict[str, float] = {}

    async def open(self, client: KernelReceiver) -> None:
        self.client = client
        loop = asyncio.get_running_loop()
        self._opened_s = loop.time()
        if self.welcomes:
            at_s = max(self.live_after_s, self.up_after_s)
            loop.call_later(at_s, self.say, "iopub", "iopub_welcome", {"subscription": ""}, {})

    async def send(self, message: KernelMessage) -> None:
        self.sent.append(message)
        if self.deaf:
            return
        loop = asyncio.get_running_loop()
        at_s = max(self._opened_s + self.up_after_s, loop.time())
        loop.call_at(at_s, self._answer, message)

    def _answer(self, request: KernelMessage) -> None:
        for socket, header, content in said(request.msg_type):
            where = request.socket if socket == "shell" else socket
            changed = (
                {**content, "code": request.content.get("code")} if header["msg_type"] == "execute_input" else content
            )
            if header["msg_type"] == "stream" and "mark" in request.metadata:
                changed = {**content, "text": f"{request.metadata['mark']}\n"}
            self._later(where, header["msg_type"], changed, request)

    def _later(self, socket: str, msg_type: str, content: dict[str, Any], request: KernelMessage) -> None:
        """In the order of the socket, each with its own pause."""
        loop = asyncio.get_running_loop()
        # Strictly later than the one before: what is due at the same moment comes in any order.
        at_s = max(self._last_s.get(socket, 0.0) + 1e-6, loop.time() + self.faults.delay_s())
        self._last_s[socket] = at_s
        above = {name: getattr(request.header, name) for name in request.header.__struct_fields__}
        loop.call_at(at_s, self.say, socket, msg_type, content, above)

    def say(self, socket: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        if self.muted or (socket == "iopub" and loop.time() < self._opened_s + self.live_after_s):
            return
        frames = self.frames(msg_type, content, parent)
        if self.faults.drop():
            return
        for _ in range(2 if self.faults.twice() else 1):
            self.receive(socket, frames)

    def frames(self, msg_type: str, content: dict[str, Any], parent: dict[str, Any], **header: Any) -> Frames:
        self.numbers += 1
        head = {
            "msg_id": f"k1_{self.numbers}",
            "msg_type": msg_type,
            "session": "k1",
            "username": "kernel",
            "date": "2026-11-16T10:00:00Z",
            "version": "5.4",
            **header,
        }
        parts = [json.dumps(each).encode() for each in (head, parent, {}, content)]
        return [b"topic", DELIMITER, self.wire.sign(parts), *parts]

    def receive(self, socket: str, frames: Frames) -> None:
        assert self.client is not None
        try:
            message = self.wire.unpack(socket, frames)
        except Unreadable as error:
            self.client.count_fault(error.fault, str(error))
        else:
            self.client.take([message])

    async def aclose(self) -> None:
        self.muted = True


def world_of(simulation: Simulation) -> World:
    return World(simulation.time_ns, simulation.uuid7, simulation.random)


def kernel_of(simulation: Simulation, link: ScriptedLink | None = None, **settings: Any) -> tuple[Kernel, ScriptedLink]:
    """A kernel's client on a scripted link, not opened yet."""
    world = world_of(simulation)
    link = link or ScriptedLink(world, simulation.random)
    return Kernel("k1", link, session=world.uuid7(), world=world, settings=KernelSettings(**settings)), link
