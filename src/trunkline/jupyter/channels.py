"""Channels of an execution or a comm: inboxes without a broker. The kernel that fills them never waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

from trunkline.clock import World
from trunkline.delivery.custody import Custody
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.retry import Retry
from trunkline.delivery.stream import Stream
from trunkline.errors import InboxFull, StreamEmpty, UsageError
from trunkline.expression import Filter, compile_filter
from trunkline.jupyter.message_types import CHANNELS
from trunkline.jupyter.wire import KernelMessage


class KernelChannel(Stream):
    """Messages of a kernel, each delivered once. It ends with its execution or comm, and need not be closed."""

    def __init__(self, box: Inbox, world: World, owner: object = None) -> None:
        # Messages are not acknowledged here, so there are no retries and no dead letters.
        custody = Custody(box, lease_s=30.0, retry=Retry(), chance=world.random, on_dead=lambda *_: None)
        super().__init__(box, custody, ack=False)
        self._owner = owner
        """A reference that keeps the owner alive as long as the channel is read."""

    async def recv(self, timeout_s: float | None = None) -> KernelMessage | None:
        return cast("KernelMessage | None", await super().recv(timeout_s))

    def try_recv(self) -> KernelMessage:
        return cast(KernelMessage, super().try_recv())

    def __aiter__(self) -> AsyncIterator[KernelMessage]:
        return cast(AsyncIterator[KernelMessage], super().__aiter__())

    async def next_wanted(
        self, wanted: str | Callable[[KernelMessage], bool], timeout_s: float | None
    ) -> KernelMessage | None:
        """The next message that matches `wanted`, a function or a filter.

        Earlier ones are consumed. Raises StreamEmpty.
        """
        if isinstance(wanted, str):
            fits = compile_filter(wanted)
            wanted = lambda message: fits(message, message.decode)  # noqa: E731
        try:
            async with asyncio.timeout(timeout_s):
                async for message in self:
                    if wanted(message):
                        return message
        except TimeoutError as error:
            raise StreamEmpty(self.name) from error
        return None

    def __del__(self) -> None:
        return


def put(box: Inbox, message: KernelMessage) -> None:
    """Add a message, or count the dropped one."""
    try:
        box.offer(message)
    except InboxFull:
        # The inbox has counted it. A kernel cannot be made to wait.
        return


def channel_filters(where: Mapping[str, str]) -> dict[str, Filter]:
    """Filters of channels by content; raises UsageError for a channel that does not exist."""
    if unknown := set(where) - set(CHANNELS):
        raise UsageError(f"an execution has no channel {', '.join(sorted(unknown))}: use one of {', '.join(CHANNELS)}")
    return {channel: compile_filter(text) for channel, text in where.items()}
