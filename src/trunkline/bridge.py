"""A bridge: topics of one bus are mirrored on another one, both ways, without loops.

It joins a hub with a NATS or Redis server. Two hubs that are bridged to the same server behave as one bus for the
topics that are mirrored: messages keep ids, senders and headers, requests are answered across, and direct messages
reach endpoints on the other side.

A header lists the bridges that a message has passed. A bridge passes on nothing that it has passed on before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from msgspec.structs import replace

from trunkline.bus.bus import Bus
from trunkline.delivery.options import Delivery
from trunkline.delivery.stream import Stream
from trunkline.errors import Refused, RequestError, RequestFailed, TrunklineError
from trunkline.message import Message, MessageType
from trunkline.plural import counted
from trunkline.topic import ENDPOINT_PREFIX, validate_pattern

log = logging.getLogger("trunkline.bridge")

PASSED = "bridges-passed"
"""The header that lists the ids of the bridges that a message has passed."""
AT_ONCE = 1000
ENDPOINTS = f"{ENDPOINT_PREFIX}>"


class Bridge:
    """`async with Bridge(hub, engine, ["orders.>", "pricing"])`. It does not close the buses.

    `direct` mirrors direct messages to all endpoints, too. Requests on mirrored topics are also sent on the other side,
    and the first answer counts.
    """

    def __init__(self, one: Bus, other: Bus, patterns: Iterable[str], *, direct: bool = True) -> None:
        self._sides = (one, other)
        self._patterns = [validate_pattern(pattern) for pattern in patterns] + ([ENDPOINTS] if direct else [])
        self._id = one.broker.world.secret()[:16]
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: list[Stream] = []
        self.passed_on = 0
        """Messages that were published on the other side."""
        self.failed = 0
        """Messages that the other side did not accept."""

    async def __aenter__(self) -> Bridge:
        try:
            for near, far in (self._sides, self._sides[::-1]):
                for pattern in self._patterns:
                    name = f"bridge {self._id} {pattern}"
                    stream = near.broker.subscribe(pattern, Delivery(name=name))
                    self._streams.append(stream)
                    await stream.opened()
                    self._start(self._mirror(stream, near, far))
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for stream in self._streams:
            await stream.aclose()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _mirror(self, stream: Stream, near: Bus, far: Bus) -> None:
        async for batch in stream.batches(AT_ONCE):
            run: list[Message] = []
            for message in batch:
                passed = (message.headers or {}).get(PASSED, "").split()
                if self._id in passed:
                    continue
                marked = replace(
                    message, seq=0, headers={**(message.headers or {}), PASSED: " ".join([*passed, self._id])}
                )
                if message.type is MessageType.REQUEST and message.reply_to:
                    await self._pass_on(far, run)
                    run = []
                    self._start(self._ask(message, marked, near, far))
                elif run and run[-1].topic != message.topic:
                    await self._pass_on(far, run)
                    run = [marked]
                else:
                    run.append(marked)
            await self._pass_on(far, run)

    async def _pass_on(self, far: Bus, messages: list[Message]) -> None:
        if not messages:
            return
        try:
            await far.post_many(messages)
            self.passed_on += len(messages)
        except TrunklineError as error:
            self.failed += len(messages)
            log.warning("%s on %s not mirrored: %s", counted(len(messages), "message"), messages[0].topic, error)

    async def _ask(self, request: Message, marked: Message, near: Bus, far: Bus) -> None:
        """Send the request on the other side, and return its answer."""
        try:
            answer = await far.request(
                request.topic,
                bytes(request.payload),
                reply=Message,
                content_type=request.content_type,
                sender=request.sender,
                recipient=request.recipient,
                correlation_id=request.correlation_id,
                trace=request.trace,
                headers=marked.headers,
            )
            self.passed_on += 1
            await near.post(replace(answer, topic=request.reply_to or "", request_id=request.request_id, seq=0))
        except RequestFailed as error:
            self.passed_on += 1
            await near.respond_error(request, error)
        except (RequestError, Refused) as error:
            # There was no answer on the other side. A responder on this side can still answer.
            log.debug("the request %s had no answer on the other side: %s", request.id, error)
