"""The ends of a channel in the directory of a hub, for those who give a bus. Everything works without a hub, too."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trunkline.brokers.broker import Broker
from trunkline.brokers.directory import Directory
from trunkline.errors import UsageError
from trunkline.topic import logical_name

if TYPE_CHECKING:
    from trunkline.memory.receiver import FrameReceiver
    from trunkline.memory.sender import FrameSender


T = TypeVar("T")


class BusWithDirectory(Protocol):
    """A bus, or a blocking bus. One whose broker has no directory registers nothing."""

    @property
    def broker(self) -> Broker: ...


class LoopOfThread(Protocol):
    def call(self, work: Coroutine[Any, Any, T]) -> T: ...


Question = Callable[[Directory], Awaitable[T]]


async def ask(bus: BusWithDirectory | None, question: Question[T]) -> T | None:
    """None without a directory."""
    if bus is None or bus.broker.directory is None:
        return None
    if _thread_of(bus) is not None:
        raise UsageError("`async with` takes a bus of this event loop, not a blocking one")
    return await question(bus.broker.directory)


def ask_blocking(bus: BusWithDirectory | None, question: Question[T]) -> T | None:
    if bus is None or bus.broker.directory is None:
        return None
    thread = _thread_of(bus)
    if thread is None:
        raise UsageError("`with` takes a blocking bus (tl.connect_blocking): use `async with` for this one")
    directory = bus.broker.directory

    async def work() -> T:
        return await question(directory)

    return thread.call(work())


def _thread_of(bus: BusWithDirectory) -> LoopOfThread | None:
    return getattr(bus, "thread", None)


async def register_producer(sender: FrameSender, directory: Directory) -> None:
    """Raises HubRefused. Without a hub it is registered when there is one, and again when it comes back."""
    about = sender.about
    await directory.register_producer(
        about.channel,
        schema=sender.layout.json_schema,
        version=about.settings.version,
        # A reader of another layout is refused when it attaches; a later producer may have any.
        compatibility="none",
        config=about.config,
        shm_name=logical_name(about.channel),
        metadata=sender.metadata,
    )


async def unregister_producer(sender: FrameSender, directory: Directory) -> None:
    await directory.unregister_producer(sender.about.channel)


async def discover(channel: str, directory: Directory) -> str:
    """Under which name the hub, or the file of the producer, says that the channel is found; empty if neither knows."""
    found = await directory.find(channel)
    return "" if found is None else found.shm_name


async def register_consumer(receiver: FrameReceiver, directory: Directory) -> None:
    """Raises HubRefused."""
    about = {"plane": "memory", "wants": receiver.wants.value, "pid": os.getpid()}
    schema = receiver.layout.json_schema
    await directory.register_consumer(receiver.channel, receiver.name, schema=schema, metadata=about)


async def unregister_consumer(receiver: FrameReceiver, directory: Directory) -> None:
    await directory.unregister_consumer(receiver.channel, receiver.name)
