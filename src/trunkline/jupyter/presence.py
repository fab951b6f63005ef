"""Finds the kernels that are shared on a bus, on topics that no journal stores.

_kernel.ask        asks for all kernels; each is answered for on `_kernel.here`
_kernel.ask.<id>   has a subscriber as long as the kernel is shared
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from trunkline.delivery.stream import Stream
from trunkline.errors import NotAllowed, PayloadError
from trunkline.jupyter.errors import KernelNotStarted
from trunkline.jupyter.message_types import token
from trunkline.topic import KERNELS_PREFIX

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.jupyter")

ASK = f"{KERNELS_PREFIX}ask"
HERE = f"{KERNELS_PREFIX}here"
ANSWER_S = 0.6
"""How long clients that share kernels have to answer."""


class SharedKernel(msgspec.Struct, frozen=True):
    """A kernel that is shared on the bus."""

    id: str
    language: str = ""
    shared_by: str = ""
    """The name of the bus of the client that shares it."""


class Presence:
    """Answers queries about a shared kernel, until it is closed."""

    def __init__(self, bus: Bus, kernel_id: str) -> None:
        self._bus = bus
        self._kernel_id = kernel_id
        self.language = ""
        self._streams: list[Stream] = []
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._streams.append(await self._bus.subscribe(ask_for(self._kernel_id), overflow="drop_newest").open())
        try:
            asked = await self._bus.subscribe(ASK, overflow="drop_oldest", capacity=10).open()
        except NotAllowed as error:
            log.info("the kernel %s is shared but not listed: %s", self._kernel_id, error)
            return
        self._streams.append(asked)
        self._task = asyncio.get_running_loop().create_task(self._answer(asked))

    async def _answer(self, asked: Stream) -> None:
        async for _ in asked:
            await self._bus.publish(HERE, SharedKernel(self._kernel_id, self.language, self._bus.name))

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()


async def shared_kernels(bus: Bus, *, within_s: float = ANSWER_S) -> list[SharedKernel]:
    """The shared kernels on a bus that answer within `within_s`."""
    found: dict[str, SharedKernel] = {}
    async with bus.subscribe(HERE) as answers:
        await bus.publish(ASK)
        await bus.flush()
        try:
            async with asyncio.timeout(within_s):
                async for answer in answers:
                    try:
                        shared = answer.decode(SharedKernel)
                    except PayloadError as error:
                        log.warning(
                            "%s published a message on %s that is not an answer: %s", answer.sender, HERE, error
                        )
                        continue
                    found[shared.id] = shared
        except TimeoutError:
            pass
    return sorted(found.values(), key=lambda kernel: kernel.id)


async def check_shared(bus: Bus, kernel_id: str) -> None:
    """Raise KernelNotStarted if the broker reports that this kernel is not shared."""
    topic = ask_for(kernel_id)
    try:
        await bus.publish(topic)
        await bus.flush()
        if bus.broker.has_subscribers(topic):
            return
        names = ", ".join(kernel.id for kernel in await shared_kernels(bus)) or "none"
    except NotAllowed:
        names = "no permission to list them"
        if bus.broker.has_subscribers(topic):
            return
    raise KernelNotStarted(
        f"the kernel {kernel_id!r} is not shared on this bus (shared: {names}): share it with share=True, or with"
        " `trunkline kernel share`",
        kernel_id,
    )


def ask_for(kernel_id: str) -> str:
    return f"{ASK}.{token(kernel_id)}"
