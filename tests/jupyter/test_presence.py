"""Whether a kernel is shared is known at once, on every broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from tests.jupyter.real import run
from trunkline.jupyter import join
from trunkline.jupyter.presence import ANSWER_S, Presence, check_shared

SOON_S = 30.0
"""It takes a round trip and ANSWER_S, and took 60 s before; the machine may be busy."""


async def fails_at_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        sharing, asking = [
            await stack.enter_async_context(tl.connect(url, name=name)) for name in ("sharing", "asking")
        ]
        presence = Presence(sharing, "mine")
        await presence.open()
        try:
            await check_shared(asking, "mine")
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(tl.KernelNotStarted, match=r"the kernel 'nobody' is not shared .*shared: mine"):
                await join(asking, "nobody")
            assert asyncio.get_running_loop().time() - began_s < ANSWER_S + SOON_S
        finally:
            await presence.aclose()
        with pytest.raises(tl.KernelNotStarted, match="shared: none"):
            await join(asking, "mine")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_joining_one_that_nobody_shares_on_an_engine_fails_at_once(tmp_path: Path, kind: str) -> None:
    with NatsServer(tmp_path) if kind == "nats" else RedisServer("redis", tmp_path) as server:
        run(fails_at_once(server.url))
