"""What an actor remembers over a restart: it gives `snapshot` and `restore`, and the system keeps the last one.

In this process the last one is at hand. With a journal behind the bus it is also published, on `_state.<address>`, and
a system that starts later finds it there: by a durable subscription of which only the last is not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from trunkline.brokers.broker import Feature
from trunkline.bus.bus import Bus
from trunkline.delivery.stream import Stream
from trunkline.errors import StreamEmpty, TrunklineError
from trunkline.message import Message

log = logging.getLogger("trunkline.actors")

PREFIX: Final = "_state."
PATIENCE_S: Final = 0.2
"""What was kept is there at once, or there is none."""


class Memory:
    """The last state of one actor."""

    def __init__(self, bus: Bus, address: str) -> None:
        self._bus = bus
        self._topic = f"{PREFIX}{address}"
        self._name = f"state of {address}"
        self._stream: Stream | None = None
        self._held: Message | None = None
        self._kept: Message | None = None
        self._unsaved = False
        self._saving: asyncio.Task[None] | None = None

    async def recall(self) -> Message | None:
        """What was kept last, by this process or one before it; None if nothing was."""
        if Feature.DURABLE not in self._bus.broker.features:
            return self._kept
        if self._stream is None:
            options: dict[str, Any] = {"name": self._name, "durable": True, "start": "beginning", "lease_s": 1e9}
            self._stream = await self._bus.subscribe(self._topic, **options).open()
            while True:
                try:
                    message = await self._stream.recv(PATIENCE_S)
                except StreamEmpty:
                    break
                self._hold(message)
            self._kept = self._held
        return self._kept

    def keep(self, state: Any) -> None:
        """The actor has handled something, and this is what it knows now; written as it is, whatever becomes of it."""
        self._kept = Message(topic=self._topic, payload=state)
        self._unsaved = True

    def save_soon(self) -> None:
        """Have it written, without waiting for that. What comes meanwhile is written together."""
        if self._stream is not None and self._unsaved and (self._saving is None or self._saving.done()):
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        while self._unsaved:
            self._unsaved = False
            try:
                assert self._kept is not None
                await self._bus.post(self._kept)
            except TrunklineError as error:
                log.warning("the %s could not be kept: %s", self._name, error)
                return
            self._let_go()

    def _let_go(self) -> None:
        """Of those that are kept only the last counts."""
        assert self._stream is not None
        while (message := self._stream.take()) is not None:
            self._hold(message)

    def _hold(self, message: Message | None) -> None:
        assert self._stream is not None
        if message is not None:
            if self._held is not None:
                self._stream.ack(self._held)
            self._held = message

    async def aclose(self) -> None:
        if self._saving is not None:
            await self._saving
        if self._unsaved and self._stream is not None:
            await self._save()
        if self._stream is not None:
            self._let_go()
            await self._stream.aclose()
            self._stream = None
            self._held = None
