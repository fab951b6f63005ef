"""The link to a kernel that is shared on a bus. Topics take the place of its sockets."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trunkline.delivery.options import DeliveryOptions
from trunkline.delivery.stream import Stream
from trunkline.errors import TrunklineError
from trunkline.jupyter.link import KernelReceiver
from trunkline.jupyter.message_types import SOCKETS, TOPIC_PREFIX, token
from trunkline.jupyter.wire import Fault, KernelMessage, KernelWire, Unreadable
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.jupyter")


class BusLink:
    """A link with a `name` or a `start` has a durable subscription: it continues where it ended, or begins at `start`.

    A durable subscription without a name is deleted when the link is closed.
    """

    def __init__(
        self, bus: Bus, kernel_id: str, session: str, *, name: str | None = None, start: int | str | None = None
    ) -> None:
        self.wire = KernelWire(kernel_id, bus.broker.world.time_ns)
        self._bus = bus
        self._pattern = f"{TOPIC_PREFIX}{token(kernel_id)}.>"
        self._session = session
        self._durable = name is not None or start is not None
        self._passing = name is None
        self._name = name or f"kernel-{kernel_id}-{session}"
        self._start = "end" if start is None else start
        self._stream: Stream | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, client: KernelReceiver) -> None:
        if self._stream is not None:
            return
        options: DeliveryOptions = {}
        if self._durable:
            options = {"name": self._name, "durable": True, "start": self._start}
        self._stream = await self._bus.subscribe(self._pattern, **options).open()
        self._task = asyncio.get_running_loop().create_task(self._receive(self._stream, client))

    async def _receive(self, stream: Stream, client: KernelReceiver) -> None:
        async for batch in stream.batches():
            messages = [message for each in batch if (message := self._read(each, client)) is not None]
            if messages:
                client.take(messages)
            if self._durable:
                for each in batch:
                    stream.ack(each)
        client.lost("its bus was closed")

    def _read(self, message: Message, client: KernelReceiver) -> KernelMessage | None:
        tokens = message.topic.split(".")
        if len(tokens) != 4 or tokens[2] not in SOCKETS:
            return None
        try:
            read = self.wire.read(tokens[2], message.decode(bytes) if message.encoding else message.payload)
        except (Unreadable, TrunklineError) as error:
            client.count_fault(Fault.MALFORMED, f"on {message.topic}: {error}")
            return None
        # Requests of this client arrive here, too.
        return None if read.header.session == self._session else read

    async def send(self, message: KernelMessage) -> None:
        await self._bus.post(message.plain(self._bus.name, None))

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None
            if self._durable and self._passing:
                await self._bus.forget_durable(self._name)
