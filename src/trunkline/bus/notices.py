"""Notices of dead letters: published on `_dead.` followed by the topic of the message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from trunkline.brokers.broker import Broker
from trunkline.bus.lifecycle import BusState, Lifecycle, cancel
from trunkline.bus.requester import MAX_DETAIL, Requester, expects_ack
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.errors import TrunklineError
from trunkline.hooks.hook import HookChain
from trunkline.message import Message, MessageType
from trunkline.message_log import about
from trunkline.topic import DEAD_PREFIX

log = logging.getLogger("trunkline.bus")


class DeadLetterNotices:
    def __init__(
        self,
        broker: Broker,
        name: str,
        hooks: HookChain,
        life: Lifecycle,
        post: Callable[[Message], Awaitable[str]],
        requester: Requester,
    ) -> None:
        self._broker = broker
        self._name = name
        self._hooks = hooks
        self._life = life
        self._post = post
        self._requester = requester
        self._tasks: set[asyncio.Task[None]] = set()
        broker.served.announcers.append(self._announce)

    def _announce(self, letter: DeadLetter) -> None:
        """Publish a notice for subscribers to `_dead.>`, and notify a publisher that waits for an acknowledgement.

        There is no notice about a notice that could not be handled.
        """
        message = letter.message
        self._hooks.died(letter)
        if message.topic.startswith(DEAD_PREFIX) or self._life.state is BusState.CLOSED:
            return
        self.notify(message, lambda: self._send(f"{DEAD_PREFIX}{message.topic}", letter))
        if expects_ack(message):
            self.notify(message, lambda: self._requester.answer_failure(message, letter.reason))

    def notify(self, message: Message, send: Callable[[], Awaitable[object]]) -> None:
        """Send a notice about a message in the background."""

        async def notify() -> None:
            try:
                await send()
            except TrunklineError as error:
                log.warning("the notice about %s could not be published: %s", message.id, error, extra=about(message))

        self.run(notify())

    def run(self, notice: Coroutine[Any, Any, None]) -> None:
        """Send something in its own task. Closing the bus waits for it for at most `drain_s`."""
        task = asyncio.get_running_loop().create_task(notice)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, topic: str, letter: DeadLetter) -> None:
        if not self._broker.has_subscribers(topic):
            return
        # Payload, format and trace are kept. Recipient and request are removed.
        notice = self._hooks.reopened(letter.message).replace(
            id="",
            topic=topic,
            type=MessageType.ERROR,
            sender=self._name,
            timestamp_ns=0,
            correlation_id=letter.message.id,
            headers={
                "subscriber": letter.subscriber,
                "cause": letter.cause.value,
                "reason": letter.reason[:MAX_DETAIL],
            },
            recipient=None,
            request_id=None,
            reply_to=None,
            ttl_s=None,
            requires_ack=False,
            attempts=0,
        )
        await self._post(notice)

    async def sent(self) -> None:
        """Return when the notices of all dead letters so far are published."""
        await asyncio.gather(*self._tasks)

    async def aclose(self) -> None:
        await cancel(self._tasks)
        self._broker.served.announcers.remove(self._announce)
