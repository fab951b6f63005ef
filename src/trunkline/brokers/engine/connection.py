"""The connection to an engine: made when it is needed, and made again when it ends. Callers can wait for it."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from trunkline.brokers.broker import Feature
from trunkline.brokers.engine.driver import EngineDriver
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.clock import World
from trunkline.errors import EngineUnavailable, TrunklineError

log = logging.getLogger("trunkline.connection")

AGAIN_S = 0.25
"""The pause before an operation that failed at the engine is tried again."""


class EngineConnection(abc.ABC):
    def __init__(self, driver: EngineDriver, world: World, settings: EngineSettings) -> None:
        self.driver = driver
        self.world = world
        self.settings = settings
        self.name = driver.name
        self.url = driver.url
        self.live = False
        self.connect_s = settings.connect_s
        self.connects = 0
        self.on_connected: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._failure: TrunklineError | None = None
        self._logged = ""
        self._closed = False

    @abc.abstractmethod
    def _has_begun(self) -> None:
        """Called when a connection was made, before the callers that wait for it continue."""

    @abc.abstractmethod
    def _has_ended(self) -> None:
        """Called when the connection has ended."""

    @abc.abstractmethod
    def _close_consumers(self) -> None:
        """Called before the connection is closed."""

    @property
    def run(self) -> str:
        return self.driver.run

    @property
    def backlog(self) -> int:
        return self.driver.backlog

    def lacks(self, feature: Feature) -> bool:
        return self.connects > 0 and feature not in self.driver.features

    def open(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.ensure_future(self._run())

    async def ready(self) -> None:
        self.open()
        if self.live:
            return
        if self._closed:
            raise self._unavailable("the connection is closed")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self.connect_s):
                await waiter
        except TimeoutError:
            if isinstance(self._failure, EngineUnavailable):
                raise self._unavailable(self._failure.why) from self._failure
            raise self._unavailable(self.driver.why or "it does not answer") from self._failure

    def _unavailable(self, why: str) -> EngineUnavailable:
        return EngineUnavailable(self.name, self.url, why)

    async def _run(self) -> None:
        pause_s = 0.0
        # Client libraries may swallow the cancellation that `aclose` sends while they connect.
        while not self._closed:
            try:
                async with asyncio.timeout(self.connect_s):
                    await self.driver.connect()
                if self._closed:
                    return
            except TimeoutError:
                self._failed(self._unavailable(self.driver.why or "it does not answer"))
            except TrunklineError as error:
                self._failed(error)
            else:
                pause_s = 0.0
                self._connected()
                why = await self.driver.ended()
                self.live = False
                log.warning("the connection to %s ended: %s", self.url, why)
                self._logged = why
                self._has_ended()
            settings = self.settings
            pause_s = min(settings.max_backoff_s, max(settings.backoff_s, 2 * pause_s))
            await asyncio.sleep(pause_s * (1 - self.world.random.random() / 2))

    def _failed(self, error: TrunklineError) -> None:
        self._failure = error
        if not isinstance(error, EngineUnavailable):
            # Retrying cannot help, so waiting callers get the error now.
            self._fail_waiting(error)
        if str(error) != self._logged:
            # Logged once, not at every attempt.
            log.warning("%s; retrying", error)
            self._logged = str(error)

    def _connected(self) -> None:
        if self._logged:
            log.info("connected to %s", self.url)
        self._logged, self._failure = "", None
        self.live = True
        self.connects += 1
        self._has_begun()
        for listener in self.on_connected:
            listener()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _fail_waiting(self, error: TrunklineError) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._close_consumers()
        if self._tasks:
            # Entries that were given back and dead letters must still be stored.
            await asyncio.wait(self._tasks, timeout=self.connect_s)
        self.live = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_waiting(self._unavailable("the connection was closed"))
        await self.driver.aclose()

    def leave(self, role: str, work: Coroutine[Any, Any, None]) -> None:
        """Start giving back the entries of a subscriber.

        The next subscriber of its place in this process waits for that.
        """
        self._leaving[role] = self.start(work, f"the unread messages of {role or 'a subscriber'} are redelivered later")

    async def left(self, role: str) -> None:
        if (task := self._leaving.pop(role, None)) is not None:
            await asyncio.wait([task])

    async def settled(self) -> None:
        """Return when all work begun with `start` so far is done, or after `connect_s`."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self.connect_s)

    def start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run an operation on the engine in the background. Errors are logged."""

        async def run() -> None:
            try:
                await work
            except TrunklineError as error:
                log.warning("%s: %s", what, error)

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def insist(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an operation on the engine. Repeat it while the server is unavailable, until the connection is closed."""
        while True:
            try:
                await self.ready()
                return await work()
            except EngineUnavailable:
                if self._closed:
                    raise
                await asyncio.sleep(AGAIN_S)
