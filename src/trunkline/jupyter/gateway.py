"""The gateway: a client that is connected to a kernel passes on requests from the bus."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trunkline.delivery.stream import Stream
from trunkline.errors import TrunklineError
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.message_types import CONTROL, SHELL, STDIN, TOPIC_PREFIX, token
from trunkline.jupyter.presence import Presence
from trunkline.jupyter.publisher import GATEWAY
from trunkline.jupyter.wire import KernelWire, Unreadable
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.jupyter")


class Gateway:
    """Sends messages from the bus to the kernel. Messages of the kernel are published by its client."""

    def __init__(self, kernel: Kernel, bus: Bus) -> None:
        self._kernel = kernel
        self._bus = bus
        self._wire = KernelWire(kernel.id, bus.broker.world.time_ns)
        self._presence = Presence(bus, kernel.id)
        self._streams: list[Stream] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.passed_on = 0
        self.refused = 0

    async def open(self) -> None:
        for socket in (SHELL, CONTROL, STDIN):
            pattern = f"{TOPIC_PREFIX}{token(self._kernel.id)}.{socket}.*"
            stream = await self._bus.subscribe(pattern).open()
            self._streams.append(stream)
            self._tasks.append(asyncio.get_running_loop().create_task(self._pass_on(socket, stream)))
        await self._presence.open()

    def describe(self) -> None:
        """Publish the kernel's description after it has answered."""
        language = self._kernel.info.get("language_info")
        self._presence.language = str(language.get("name", "")) if isinstance(language, dict) else ""

    async def _pass_on(self, socket: str, stream: Stream) -> None:
        async for message in stream:
            if message.headers and GATEWAY in message.headers:
                continue
            await self._send(socket, message)

    async def _send(self, socket: str, message: Message) -> None:
        try:
            request = self._wire.read(socket, message.payload)
            if request.msg_type == "interrupt_request" and self._kernel.life is not None:
                # Not every kernel supports this message. The owner of the process can interrupt it in another way.
                await self._kernel.life.interrupt()
                self._kernel.answer(request, "interrupt_reply", {"status": "ok"})
            else:
                await self._kernel.link.send(request)
            self.passed_on += 1
        except (Unreadable, TrunklineError) as error:
            self.refused += 1
            log.warning("a message of %s on %s cannot be sent to the kernel: %s", message.sender, message.topic, error)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._presence.aclose()
        for stream in self._streams:
            await stream.aclose()
        self._streams.clear()
