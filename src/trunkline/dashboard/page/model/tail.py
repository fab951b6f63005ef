"""The newest messages, as they are published. The page subscribes only while a view needs them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from trunkline.bus.bus import Bus
from trunkline.errors import TrunklineError
from trunkline.message import Message
from trunkline.topic import EVERYTHING

MAX_KEPT = 2000
PAUSE_S = 0.05


class LiveTail:
    """One subscription for all views. If messages arrive too fast, the oldest are dropped: publishers never wait."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kept: deque[Message] = deque(maxlen=MAX_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None
        self._until_s = 0.0
        self.count = 0
        """The number of all messages received."""
        self.trouble = ""
        self.following = False
        """Whether the subscription is active."""

    def want(self, for_s: float) -> None:
        """Keep the subscription for this long from now."""
        loop = asyncio.get_running_loop()
        self._until_s = loop.time() + for_s
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._until_s)
        if self._task is None:
            self._task = loop.create_task(self._follow(), name="page: live tail")

    def newest(self, limit: int) -> Sequence[Message]:
        """Up to `limit` messages, the newest first."""
        return list(islice(reversed(self._kept), limit))

    def find(self, message_id: str) -> Message | None:
        return next((each for each in self._kept if each.id == message_id), None)

    def senders(self) -> dict[str, set[str]]:
        """The topics that each sender has published on."""
        found: dict[str, set[str]] = {}
        for each in self._kept:
            found.setdefault(each.sender, set()).add(each.topic)
        return found

    async def _follow(self) -> None:
        subscription = self._bus.subscribe(EVERYTHING, name="trunkline page", overflow="drop_oldest", capacity=MAX_KEPT)
        try:
            async with asyncio.timeout_at(self._until_s) as self._limit, subscription as stream:
                self.trouble, self.following = "", True
                async for batch in stream.batches(MAX_KEPT):
                    self._kept += batch
                    self.count += len(batch)
                    # Messages that arrive during the pause are one batch: much less work at 10,000 messages a second.
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            # No view needs the messages any more.
            pass
        except TrunklineError as error:
            self.trouble = str(error)
        finally:
            self._limit = self._task = None
            self.following = False

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
