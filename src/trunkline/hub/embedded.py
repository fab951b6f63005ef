"""An embedded hub: started in this process by a client that found none, and closed with that client."""

from __future__ import annotations

import logging
from collections.abc import Callable

from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.hub.hub import Hub

log = logging.getLogger("trunkline.hub")


class Embedded:
    """A callable that starts a hub at `url`. If another process was faster, its hub is used."""

    def __init__(self, url: str, journal: Callable[[], MemoryBroker] | None, world: World) -> None:
        self.has_journal = journal is not None
        self._url = url
        self._journal = journal
        self._world = world
        self._hub: Hub | None = None

    async def start(self) -> None:
        if self._hub is not None:
            return
        hub = Hub(self._journal() if self._journal is not None else None, world=self._world)
        try:
            await hub.listen(self._url)
        except OSError as error:
            await hub.aclose()
            log.info("no hub was started at %s: %s", self._url, error)
            return
        self._hub = hub

    async def aclose(self) -> None:
        if self._hub is not None:
            hub, self._hub = self._hub, None
            await hub.aclose()
