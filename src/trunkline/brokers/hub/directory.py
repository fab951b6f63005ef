"""The client's API for the directory of a hub: producers and consumers of channels, and schemas."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from trunkline.brokers.asked_directory import A, AskedDirectory
from trunkline.brokers.hub.connection import Answer, Connection
from trunkline.errors import HubError, HubRefused, HubUnavailable, ProtocolError
from trunkline.wire import control
from trunkline.wire.control import ChannelChanged

log = logging.getLogger("trunkline.connection")


class HubDirectory(AskedDirectory):
    """One for each connection: for the hub, all buses of an event loop are one client."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("the hub", connection.url)
        self._connection = connection
        self._hub = ""
        connection.listeners[ChannelChanged] = self._changed
        # Inserted first: messages that are published automatically must find their channel.
        connection.users.insert(0, self)

    @classmethod
    def of(cls, connection: Connection) -> HubDirectory:
        """The directory of this connection."""
        return next((user for user in connection.users if isinstance(user, cls)), None) or cls(connection)

    @property
    def closed(self) -> bool:
        return self._connection.closed

    # Asking

    async def _ask(self, request: control.Ask, kind: type[A]) -> A | None:
        limit_s = 0.0 if self._warned and not self._connection.live else self._connection.settings.connect_s
        try:
            async with asyncio.timeout(self._connection.settings.connect_s):
                answer = await self._answer(request, limit_s)
        except (HubUnavailable, TimeoutError) as error:
            self._warn(error)
            return None
        if not isinstance(answer, kind):
            raise ProtocolError("malformed", f"the hub answered with {type(answer).__name__}")
        return answer

    async def _answer(self, request: control.Ask, limit_s: float) -> control.Control:
        while True:
            await self._ready(limit_s)
            try:
                return await self._connection.ask(lambda number: replace(request, id=number))
            except HubUnavailable:
                # The connection ended in the meantime; there may soon be a new one.
                continue

    async def _ready(self, limit_s: float) -> None:
        try:
            await self._connection.ready(limit_s)
        except HubUnavailable:
            raise
        except HubError as error:
            # The hub refuses this client. This is treated as if there were no hub.
            raise HubUnavailable(self._connection.url, str(error)) from error

    # The connection

    def connected(self, welcome: control.Welcome) -> None:
        self._warned = False
        again = self._made.values() if welcome.hub != self._hub else ()
        self._hub = welcome.hub
        for request in (*again, *self._registered.values()):
            self._restore(request)

    def _restore(self, request: control.Ask) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, HubRefused):
                log.warning("the hub did not restore %s: %s", type(request).__name__, answer.text)

        self._connection.ask_soon(lambda number: replace(request, id=number), answered)

    def disconnected(self) -> None:
        return
