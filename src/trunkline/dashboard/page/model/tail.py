"""The newest messages, as they are published. The page subscribes while somebody looks at them, and not otherwise."""

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
    """One subscription for all who look. What comes faster than it can be shown is dropped, never waited for."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kept: deque[Message] = deque(maxlen=MAX_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None
        self._until_s = 0.0
        self.count = 0
        """Of all messages seen."""
        self.trouble = ""
        self.following = False
        """Whether what is published now is seen."""

    def want(self, for_s: float) -> None:
        """Somebody looks: go on for this long."""
        loop = asyncio.get_running_loop()
        self._until_s = loop.time() + for_s
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._until_s)
        if self._task is None:
            self._task = loop.create_task(self._follow(), name="page: live tail")

    def newest(self, limit: int) -> Sequence[Message]:
        """The newest first."""
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
                    # What comes meanwhile is taken together: at 10,000 messages a second that is far less work.
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            # Nobody looks any more.
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
