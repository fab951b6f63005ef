"""Producers of a channel in shared memory: blocking, and for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from trunkline.clock import World
from trunkline.memory.about import ChannelAbout
from trunkline.memory.frame import Loan
from trunkline.memory.layout import layout_of
from trunkline.memory.metrics import ChannelMetrics
from trunkline.memory.registration import BusWithDirectory, ProducerRegistration
from trunkline.memory.sender import FrameSender
from trunkline.memory.settings import ChannelSettings
from trunkline.memory.watch import RECHECK_S
from trunkline.wire.control import BufferPolicy, Config


class LoanBlock:
    """The context manager that `loan()` returns."""

    # Not a generator, which would take a tenth of the time of a small frame.
    __slots__ = ("_loan", "_sender", "_wait")

    def __init__(self, sender: FrameSender, wait: Callable[[], None]) -> None:
        self._sender = sender
        self._wait = wait

    def __enter__(self) -> Loan:
        self._wait()
        self._loan = self._sender.loan()
        return self._loan

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._sender.end(self._loan, kind)


class BlockingFrameProducer:
    """Sends frames from a thread. Only one thread may use it at a time."""

    def __init__(self, sender: FrameSender, world: World) -> None:
        self._sender = sender
        self._world = world
        self.channel = sender.about.channel

    def loan(self) -> LoanBlock:
        """`with camera.loan() as loan: loan.data[:] = image` writes in place, and sends at the end of the block.

        After an error in the block, the slot is released and nothing is sent. Waits for at most `stuck_s` while a
        consumer that wants every frame has no room. Raises BufferError, and sends nothing, if a view of the slot is in
        use.
        """
        return LoanBlock(self._sender, self._wait)

    def send(self, value: Any) -> None:
        """Copy a value into a slot and send it, as `loan` does. Raises InvalidPayload, and MessageTooLarge."""
        if not self._sender.ready():
            self._wait()
        self._sender.send(value)

    def _wait(self) -> None:
        if self._sender.ready():
            return
        since_ns = self._world.time_ns()
        while not self._sender.ready():
            self._sender.wait(self._sender.patience_s(since_ns))
            self._sender.cut_off(since_ns)

    def serve(self, timeout_s: float = 0.0) -> None:
        """Connect new consumers, and give them the last frame. Sending does this, too; call it if you rarely send."""
        ends_ns = self._world.time_ns() + int(timeout_s * 1e9)
        while not self._sender.wait(max(0.0, (ends_ns - self._world.time_ns()) / 1e9)):
            if self._world.time_ns() >= ends_ns:
                return

    def metrics(self) -> ChannelMetrics:
        return self._sender.metrics()

    def close(self) -> None:
        self._sender.close()


class FrameProducer:
    """Sends frames from an event loop. New consumers get the last frame at once."""

    def __init__(self, sender: FrameSender, world: World) -> None:
        self._sender = sender
        self._world = world
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self.channel = sender.about.channel
        self._loop.add_reader(sender.fileno(), self._wake)

    def _wake(self) -> None:
        self._sender.wait(0)
        self._moved.set()

    @asynccontextmanager
    async def loan(self) -> AsyncIterator[Loan]:
        """As `BlockingFrameProducer.loan`. If it is cancelled while it waits or in the block, nothing is sent."""
        await self._wait()
        loan = self._sender.loan()
        try:
            yield loan
        except BaseException as error:
            self._sender.end(loan, type(error))
            raise
        self._sender.end(loan, None)

    async def send(self, value: Any) -> None:
        """Copy a value into a slot and send it, as `loan` does. Raises InvalidPayload, and MessageTooLarge."""
        if not self._sender.ready():
            await self._wait()
        self._sender.send(value)

    async def _wait(self) -> None:
        if self._sender.ready():
            return
        since_ns = self._world.time_ns()
        while not self._sender.ready():
            self._moved.clear()
            try:
                async with asyncio.timeout(min(self._sender.patience_s(since_ns), RECHECK_S)):
                    await self._moved.wait()
            except TimeoutError:
                self._sender.wait(0)
                self._sender.cut_off(since_ns)

    def metrics(self) -> ChannelMetrics:
        return self._sender.metrics()


class OpenProducer:
    """The result of `producer(…)`: `with` opens it for a thread, `async with` for an event loop."""

    def __init__(
        self, channel: str, make: Callable[[], FrameSender], bus: BusWithDirectory | None, world: World
    ) -> None:
        self._make = make
        self._world = world
        self._registration = ProducerRegistration(bus, channel, world)

    def __enter__(self) -> BlockingFrameProducer:
        self._registration.check(blocking=True)
        self._registration.end = sender = self._make()
        try:
            self._registration.wait(self._registration.enter())
        except BaseException:
            sender.close()
            raise
        self._registration.count()
        return BlockingFrameProducer(sender, self._world)

    def __exit__(self, *_: object) -> None:
        self._registration.uncount()
        try:
            self._registration.wait(self._registration.leave())
        finally:
            self._registration.end.close()

    async def __aenter__(self) -> FrameProducer:
        self._registration.check(blocking=False)
        self._registration.end = sender = self._make()
        try:
            await self._registration.enter()
        except BaseException:
            sender.close()
            raise
        self._registration.count()
        return FrameProducer(sender, self._world)

    async def __aexit__(self, *_: object) -> None:
        sender = self._registration.end
        asyncio.get_running_loop().remove_reader(sender.fileno())
        self._registration.uncount()
        try:
            await self._registration.leave()
        finally:
            sender.close()


def producer(
    channel: str,
    *,
    schema: Any,
    policy: BufferPolicy | str = BufferPolicy.RING_BUFFER,
    capacity: int = 10,
    page_size: int = 4096,
    settings: ChannelSettings = ChannelSettings(),
    bus: BusWithDirectory | None = None,
    world: World | None = None,
) -> OpenProducer:
    """Make a channel in shared memory: `with tl.memory.producer("camera", schema=dtype) as camera`, or `async with`.

    The schema is a numpy dtype, an Arrow schema, or `bytes`. A slot has whole pages of `page_size` bytes: as many as a
    frame of a dtype takes, one for record batches and raw bytes. All memory is reserved on entering. With a bus, the
    producer is registered at its hub; without a hub, it works in the same way.

    Entering raises SharedMemoryFull, DuplicateName, HubRefused, and LayoutMismatch if consumers keep the channel of an
    earlier producer that had another schema.
    """
    world = world or World()
    layout = layout_of(schema)
    config = Config(policy=str(policy), capacity=capacity, page_size=page_size)
    about = ChannelAbout.of(channel, layout, config, settings)
    return OpenProducer(channel, lambda: FrameSender(about, layout, world), bus, world)
