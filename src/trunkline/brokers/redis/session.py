"""A session: makes, prepares and watches the connection to one server, and sends commands on it.

It is used repeatedly: `connect`, then `ended`, then `connect` again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from trunkline.brokers.redis import place_scripts, scripts
from trunkline.brokers.redis.address import Node, NotThisServer, RedisAddress, owner_of
from trunkline.brokers.redis.directory_scripts import DIRECTORY_SCRIPTS
from trunkline.brokers.redis.link import Done, LinkEnded, RedisLink, Reply, Word
from trunkline.brokers.redis.refusals import translate
from trunkline.errors import EngineUnavailable

HOPS = 5
"""The most redirections to another node of a cluster."""
ALL_SCRIPTS = (*scripts.SCRIPTS, *place_scripts.SCRIPTS, *DIRECTORY_SCRIPTS)
DIGESTS = {script: scripts.digest(script) for script in ALL_SCRIPTS}


class RedisSession:
    def __init__(self, address: RedisAddress, prefix: str, connect_s: float) -> None:
        self.address = address
        self.url = address.safe
        self.prefix = prefix
        self.node: Node | None = None
        """The server of the current connection."""
        self._connect_s = connect_s
        self._next = 0
        """The index of the address to try next."""
        self.link: RedisLink | None = None
        self._ended: asyncio.Future[str] | None = None
        self._answered = 0.0

    async def connect(self, published: Callable[[Any], None], greet: Callable[[RedisLink], Awaitable[None]]) -> None:
        """Try each address once. Raises EngineUnavailable, or the error with which the server refuses this client."""
        nodes = self.address.nodes
        start, self._next = self._next, (self._next + 1) % len(nodes)
        why: BaseException | None = None
        for offset in range(len(nodes)):
            try:
                await self._connect_from(nodes[(start + offset) % len(nodes)], published, greet)
                return
            except (RedisError, OSError, LinkEnded, NotThisServer) as error:
                why = error
                if not isinstance(translate(self.url, error), EngineUnavailable):
                    break
        assert why is not None
        raise translate(self.url, why) from why

    async def _connect_from(
        self, node: Node, published: Callable[[Any], None], greet: Callable[[RedisLink], Awaitable[None]]
    ) -> None:
        node = await self.address.find(node, self._connect_s)
        for _ in range(HOPS):
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            link = RedisLink(published, partial(_end, ended))
            await link.open(partial(self.address.connection, node, self._connect_s))
            try:
                await self._check(link, node)
                for script in ALL_SCRIPTS:
                    await link.ask("SCRIPT", "LOAD", script)
                await greet(link)
            except NotThisServer as error:
                await link.aclose()
                if error.instead is None or error.instead == node:
                    raise
                node = error.instead
                continue
            except BaseException:
                await link.aclose()
                raise
            self.link, self._ended, self.node = link, ended, node
            self._answered = asyncio.get_running_loop().time()
            return
        raise NotThisServer(
            f"{node} redirects to another node each time: the nodes of the cluster disagree about {self.prefix}"
        )

    async def _check(self, link: RedisLink, node: Node) -> None:
        """Raises NotThisServer if the server does not accept writes for this namespace."""
        role = await link.ask("ROLE")
        if role[0] != b"master":
            raise NotThisServer(f"{node} is a replica: add the address of the primary")
        if b"cluster_enabled:1" in await link.ask("INFO", "cluster"):
            owner = owner_of(self.prefix, await link.ask("CLUSTER", "SLOTS"), node)
            if owner != node:
                raise NotThisServer(f"{node} does not have {self.prefix}", owner)
        elif self.address.is_cluster:
            raise NotThisServer(f"{node} is not part of a cluster: write redis:// instead of redis+cluster://")

    async def ended(self) -> str:
        assert self._ended is not None
        return await self._ended

    async def close(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            await link.aclose()

    def lose(self, why: str) -> None:
        """End the connection, because it cannot be used any more."""
        if self.link is not None:
            self.link.fail(why)

    def watch(self, pause_s: float) -> None:
        """Called every `pause_s`. Ends the connection if the server does not answer."""
        now = asyncio.get_running_loop().time()
        if now - self._answered > pause_s + self._connect_s:
            self.lose(f"no answer for {self._connect_s:g} s")
            return

        def answered(reply: Reply) -> None:
            self._answered = asyncio.get_running_loop().time()

        self.call(answered, "PING")

    # Commands

    @property
    def live(self) -> bool:
        return self.link is not None and not self.link.over

    def call(self, done: Done | None, *words: Word) -> None:
        """Send a command, without waiting for the reply."""
        if self.link is not None:
            self.link.call(done, *words)
        elif done is not None:
            done(LinkEnded("there is no connection"))

    def script(self, done: Done | None, script: str, *words: Word) -> None:
        """Run a script, without waiting for it."""
        self.call(done, "EVALSHA", DIGESTS[script], 1, self.prefix, *words)

    async def ask(self, *words: Word) -> Any:
        """Send a command and return the reply. Errors are translated."""
        try:
            if self.link is None:
                raise LinkEnded("there is no connection")
            return await self.link.ask(*words)
        except (RedisError, LinkEnded) as error:
            raise translate(self.url, error) from error

    async def run(self, script: str, *words: Word) -> Any:
        """Run a script and return its result. Raises the same errors as `ask`."""
        return await self.ask("EVALSHA", DIGESTS[script], 1, self.prefix, *words)


def _end(ended: asyncio.Future[str], why: str) -> None:
    if not ended.done():
        ended.set_result(why)
