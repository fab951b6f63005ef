"""Consumers of a channel in shared memory: blocking, and for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from trunkline.clock import World
from trunkline.errors import InvalidSettings, StreamEmpty
from trunkline.memory.errors import ProducerGone
from trunkline.memory.frame import Frame
from trunkline.memory.metrics import ConsumerMetrics
from trunkline.memory.receiver import FrameReceiver
from trunkline.memory.registration import BusWithDirectory, ConsumerRegistration
from trunkline.memory.settings import Wants
from trunkline.memory.watch import RECHECK_S


class BlockingFrameConsumer:
    """Receives frames in a thread. Only one thread may use it at a time."""

    def __init__(self, receiver: FrameReceiver, world: World) -> None:
        self._receiver = receiver
        self._world = world
        self.channel = receiver.channel
        self.name = receiver.name

    def recv(self, timeout_s: float | None = None) -> Frame:
        """The next frame. Waiting costs no processor time.

        Raises StreamEmpty after `timeout_s`; ProducerGone when the producer has left and its frames are received, after
        which the next call waits for another producer; SlotsHeld, CutOff, FrameDamaged.
        """
        ends_ns = None if timeout_s is None else self._world.time_ns() + int(timeout_s * 1e9)
        while (frame := self._receiver.take()) is None:
            if (gone := self._receiver.gone()) is not None:
                raise gone
            left_s = None if ends_ns is None else (ends_ns - self._world.time_ns()) / 1e9
            if left_s is not None and left_s <= 0:
                raise StreamEmpty(self.channel)
            self._receiver.wait(left_s)
        return frame

    def __iter__(self) -> Iterator[Frame]:
        """Iterate over frames until the producer closes the channel. Raises ProducerGone if it died."""
        while True:
            try:
                yield self.recv()
            except ProducerGone as gone:
                if gone.died:
                    raise
                return

    def metrics(self) -> ConsumerMetrics:
        return self._receiver.metrics()

    def close(self) -> None:
        """Release all frames. Raises BufferError if views are in use: they stay valid."""
        self._receiver.close()


class FrameConsumer:
    """Receives frames in an event loop, which watches one descriptor: no thread, no polling.

    One task may use it at a time.
    """

    def __init__(self, receiver: FrameReceiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._rechecking: asyncio.TimerHandle | None = None
        self.channel = receiver.channel
        self.name = receiver.name
        self._loop.add_reader(receiver.fileno(), self._wake)

    def _wake(self) -> None:
        self._receiver.see(waited=False)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def recv(self, timeout_s: float | None = None) -> Frame:
        """As `BlockingFrameConsumer.recv`. A cancelled call has taken no frame."""
        ends_s = None if timeout_s is None else self._loop.time() + timeout_s
        while (frame := self._receiver.take()) is None:
            if (gone := self._receiver.gone()) is not None:
                raise gone
            if self._rechecking is None:
                self._rechecking = self._loop.call_later(RECHECK_S, self._recheck)
            self._waiter = self._loop.create_future()
            if ends_s is None:
                await self._waiter
                continue
            try:
                async with asyncio.timeout_at(ends_s):
                    await self._waiter
            except TimeoutError:
                raise StreamEmpty(self.channel) from None
        return frame

    def _recheck(self) -> None:
        self._rechecking = None
        if self._waiter is not None and not self._waiter.done():
            self._receiver.see(waited=True)
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Iterate over frames until the producer closes the channel. Raises ProducerGone if it died."""
        while True:
            try:
                frame = await self.recv()
            except ProducerGone as gone:
                if gone.died:
                    raise
                return
            yield frame
            del frame

    def metrics(self) -> ConsumerMetrics:
        return self._receiver.metrics()

    def detach(self) -> None:
        """Stop watching the channel in the event loop."""
        self._loop.remove_reader(self._receiver.fileno())
        if self._rechecking is not None:
            self._rechecking.cancel()


class OpenConsumer:
    """The result of `consumer(…)`: `with` opens it for a thread, `async with` for an event loop."""

    def __init__(
        self, channel: str, make: Callable[[str], FrameReceiver], bus: BusWithDirectory | None, world: World
    ) -> None:
        self._make = make
        self._world = world
        self._registration = ConsumerRegistration(bus, channel, world)
        self._watching: FrameConsumer | None = None

    def __enter__(self) -> BlockingFrameConsumer:
        registration = self._registration
        registration.check(blocking=True)
        registration.end = receiver = self._make(registration.wait(registration.discover()) or "")
        try:
            registration.wait(registration.enter())
        except BaseException:
            receiver.shut()
            raise
        self._registration.count()
        return BlockingFrameConsumer(receiver, self._world)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._registration.uncount()
        try:
            self._registration.wait(self._registration.leave())
        finally:
            _end(self._registration.end, kind)

    async def __aenter__(self) -> FrameConsumer:
        self._registration.check(blocking=False)
        self._registration.end = receiver = self._make(await self._registration.discover())
        try:
            await self._registration.enter()
        except BaseException:
            receiver.shut()
            raise
        self._registration.count()
        self._watching = FrameConsumer(receiver)
        return self._watching

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._watching is not None
        self._watching.detach()
        self._registration.uncount()
        try:
            await self._registration.leave()
        finally:
            _end(self._registration.end, kind)


def _end(receiver: FrameReceiver, error: type[BaseException] | None) -> None:
    if error is None:
        receiver.close()
    else:
        # The views stay valid. The error of the block takes precedence.
        receiver.shut()


def consumer(
    channel: str,
    *,
    schema: Any = None,
    version: str = "",
    wants: Wants | str = Wants.ALL,
    name: str = "",
    bus: BusWithDirectory | None = None,
    world: World | None = None,
) -> OpenConsumer:
    """Attach to a channel, by its name: `with tl.memory.consumer("camera") as frames`, or `async with`.

    With a schema, the channel must have the same one; error messages use `version` as its name. Without a schema, that
    of the channel is used. With a bus, the channel is looked up at its hub, and the consumer is registered there;
    without a hub it is found directly.

    Entering raises NoProducer, LayoutMismatch, TooManyConsumers, SharedMemoryFull, HubRefused.
    """
    world = world or World()
    try:
        wanted = Wants(wants)
    except ValueError:
        raise InvalidSettings(f"wants must be one of {', '.join(Wants)}, not {wants!r}") from None

    def make(shm_name: str) -> FrameReceiver:
        return FrameReceiver(channel, shm_name, schema=schema, version=version, wants=wanted, name=name, world=world)

    return OpenConsumer(channel, make, bus, world)
