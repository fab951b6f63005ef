"""The state of an actor that survives a restart.

The actor has `snapshot` and `restore`; the system keeps the last snapshot. The last snapshot is kept in memory. With a
journal behind the bus it is also published, on `_state.<address>`. A system that starts later requests the last message
of that topic.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from trunkline.brokers.broker import Feature
from trunkline.bus.bus import Bus
from trunkline.errors import TrunklineError
from trunkline.message import Message
from trunkline.topic import STATE_PREFIX

log = logging.getLogger("trunkline.actors")


class ActorState:
    """The last state of one actor."""

    def __init__(self, bus: Bus, address: str) -> None:
        self._bus = bus
        self._address = address
        self._topic = f"{STATE_PREFIX}{address}"
        self._stored = Feature.DURABLE in bus.broker.features
        """Whether the state outlives the process."""
        self._asked = False
        self._kept: Message | None = None
        self._unsaved = False
        self._saving: asyncio.Task[None] | None = None

    async def recall(self) -> Message | None:
        """The last state that was kept, by this process or an earlier one; None if there is none.

        Raises the errors of `bus.last`: a missing answer does not mean that there is no state.
        """
        if self._stored and not self._asked:
            self._kept = await self._bus.last(self._topic)
            self._asked = True
        return self._kept

    def keep(self, state: Any) -> None:
        """Remember the state after a message was handled. It is encoded now, so it may change afterwards."""
        self._kept = Message(topic=self._topic, payload=state)
        self._unsaved = True

    def save_soon(self) -> None:
        """Start publishing the state, if it has changed. Of the states that follow meanwhile, only the last is
        published.
        """
        if self._stored and self._unsaved and (self._saving is None or self._saving.done()):
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        while self._unsaved:
            assert self._kept is not None
            self._unsaved = False
            try:
                await self._bus.post(self._kept)
            except TrunklineError as error:
                self._unsaved = True
                log.error("the state of %s was not saved and will be missing after a restart: %s", self._address, error)
                return

    async def aclose(self) -> None:
        """Return when the last state is saved, or could not be saved, which is logged."""
        if self._saving is not None:
            await self._saving
        if self._stored:
            await self._save()
