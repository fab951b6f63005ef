"""Reads the stored entries from the stream of each topic. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from trunkline.brokers.engine.driver import Entry
from trunkline.brokers.engine.log import LogBeginning, LogPage, LogState, RemovedEntries
from trunkline.brokers.engine.settings import EngineUrl
from trunkline.brokers.redis.address import RedisAddress
from trunkline.brokers.redis.consumer import entry_of, is_ours
from trunkline.brokers.redis.link import RedisLink, Word
from trunkline.brokers.redis.refusals import NAME
from trunkline.brokers.redis.session import RedisSession
from trunkline.errors import EngineUnavailable, StoreUnusable
from trunkline.topic import matches

FEW = 16
"""Entries requested at first, while their size is not known."""
PAGE_ENTRIES = 1000
PAGE_BYTES = 8 * 1024 * 1024
ANSWER_S = 30.0


class RedisLog:
    name = NAME

    def __init__(self, where: EngineUrl, client: str) -> None:
        address = RedisAddress(where.address, where.options)
        self.url = address.safe
        self._client = client
        self._prefix = address.prefix_of(where.settings.namespace)
        self._session = RedisSession(address, self._prefix, where.settings.connect_s)

    async def connect(self) -> None:
        await self._session.connect(lambda message: None, self._greet)

    async def _greet(self, link: RedisLink) -> None:
        await link.ask("CLIENT", "SETNAME", self._client)

    async def aclose(self) -> None:
        await self._session.close()

    async def _ask(self, *words: Word) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._session.ask(*words)
        except TimeoutError as error:
            raise EngineUnavailable(NAME, self.url, f"no answer for {ANSWER_S:g} s") from error

    async def state(self) -> LogState:
        run, last = await self._ask("MGET", f"{self._prefix}:run", f"{self._prefix}:seq")
        if run is None:
            raise StoreUnusable(
                NAME,
                self.url,
                f"there is no {self._prefix}:run: publish on a durable topic first, or correct ?namespace= in the URL",
            )
        return LogState(self._prefix, run.decode(), int(last or 0))

    async def beginning(self, pattern: str) -> LogBeginning:
        # Retention removes entries from the beginning. Entries that were deleted in the middle are found only by
        # reading.
        firsts = [(await self.state()).last + 1]
        removed = 0
        for topic, last in await self._topics(pattern):
            found = await self._range(topic, 0, "+", 1)
            if found:
                entry, before = found[0]
                firsts.append(entry.number)
                removed = max(removed, before)
            else:
                removed = max(removed, last)
        return LogBeginning(min(firsts), removed)

    async def _topics(self, pattern: str) -> list[tuple[str, int]]:
        """The topics that match, and the number of the last entry of each."""
        words = await self._ask("HGETALL", f"{self._prefix}:last")
        found = zip(map(bytes.decode, words[::2]), map(int, words[1::2]), strict=True)
        return sorted((topic, last) for topic, last in found if matches(pattern, topic))

    async def _range(self, topic: str, first: int, last: int | str, count: int) -> list[tuple[Entry, int]]:
        """Entries, each with the number of the one before it on its topic."""
        # If the second part of an id is missing, Redis uses the lowest value for the start, and the highest for the
        # end.
        found = await self._ask("XRANGE", f"{self._prefix}:s:{topic}", first, last, "COUNT", count)
        return [
            (entry_of(topic, entry_id, fields), int(fields[1]) if is_ours(fields) else 0) for entry_id, fields in found
        ]

    async def pages(self, pattern: str, first: int, last: int) -> AsyncIterator[LogPage]:
        for topic, newest in await self._topics(pattern):
            if newest < first:
                continue
            after, count = first - 1, FEW
            while found := await self._range(topic, after + 1, last, count):
                removed = []
                for entry, before in found:
                    if before > after:
                        removed.append(RemovedEntries(after + 1, before, topic))
                    after = entry.number
                yield LogPage([entry for entry, _ in found], removed)
                size = sum(len(entry.data) for entry, _ in found)
                count = max(1, min(PAGE_ENTRIES, PAGE_BYTES * len(found) // max(1, size)))
            if gone := await self._gone(topic, after, last, newest):
                yield LogPage([], [gone])

    async def _gone(self, topic: str, after: int, last: int, newest: int) -> RemovedEntries | None:
        """The entries of a topic after `after`, up to `last`, that were removed.

        The next entry contains their last number.
        """
        if newest <= after:
            return None
        following = await self._range(topic, last + 1, "+", 1)
        before = following[0][1] if following else newest
        return RemovedEntries(after + 1, before, topic) if after < before <= last else None
