"""The way in for one topic of a hub: what need not wait goes straight into the turn, the rest goes the whole way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trunkline.delivery.pending import Failures, Owner, Turn
from trunkline.message import Message
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.brokers.hub.outbox import Outbox

SOON = 256
"""So many messages on one topic are sent at once, without waiting for the end of the turn."""


class _Done(Awaitable[Failures]):
    """What a publish that need not wait returns: awaiting it costs next to nothing."""

    def __await__(self) -> Generator[Any, None, Failures]:
        return _nothing()


def _nothing() -> Generator[Any, None, Failures]:
    return []
    yield


DONE = _Done()


class HubLane:
    """The way in for one topic."""

    __slots__ = (
        "_outbox",
        "confirm",
        "durable",
        "heard",
        "in_flight",
        "info",
        "line",
        "published",
        "swift",
        "topic",
        "turn",
    )

    def __init__(self, outbox: Outbox, topic: str) -> None:
        self._outbox = outbox
        self.topic = topic
        self.turn: Mapping[str, Turn] = outbox.turn
        self.info: control.TopicInfo | None = None
        self.heard = True
        self.confirm = True
        self.durable = False
        self.swift = False
        """Whether a publish need not wait: the topic is known, plain, and nobody stands in line."""
        self.in_flight = 0
        """Messages that the hub has not taken."""
        self.published: dict[int, int] = {}
        """Messages so far, by priority."""
        self.line: deque[asyncio.Future[None]] = deque()
        """Who waits for room."""

    def learn(self, info: control.TopicInfo) -> None:
        self.info = info
        self.heard = info.heard
        self.confirm = info.confirm
        self.durable = info.durable
        self.measure()

    def measure(self) -> None:
        self.swift = self.info is not None and not self.confirm and not self.line and self.info.schema is None

    def put_now(self, message: Message) -> bool:
        outbox = self._outbox
        if self.in_flight >= outbox.window or not self.swift or outbox.full:
            return False
        turn = self.turn.get(self.topic)
        if turn is None:
            turn = outbox.begin(self)
        messages = turn.messages
        if turn.waiters:
            turn.leave([message])
        else:
            messages.append(message)
        self.in_flight += 1
        if len(messages) >= SOON:
            outbox.send_now(turn)
        return True

    def put(self, message: Message) -> Awaitable[Failures]:
        return DONE if self.put_now(message) else self._outbox.put_slowly(self, [message], alike=True)

    def post(self, message: Message, owner: Owner) -> None:
        outbox = self._outbox
        turn = outbox.turn.get(self.topic)
        if turn is None:
            turn = outbox.begin(self)
        turn.post(message, owner)

    def put_many(self, messages: Sequence[Message], *, alike: bool) -> Awaitable[Failures]:
        outbox = self._outbox
        if not alike:
            # Otherwise they are small.
            outbox.weigh(messages)
        if self.swift and self.in_flight < outbox.window and not outbox.full:
            turn = outbox.turn.get(self.topic)
            if turn is None:
                turn = outbox.begin(self)
            turn.alike = alike and not turn.messages
            turn.plain = turn.plain and alike
            if turn.waiters:
                turn.leave(messages)
            else:
                turn.messages.extend(messages)
            self.in_flight += len(messages)
            if len(turn.messages) >= SOON:
                outbox.send_now(turn)
            return DONE
        return outbox.put_slowly(self, messages, alike=alike)

    def put_alone(self, messages: Sequence[Message], *, again: bool) -> Awaitable[Failures]:
        """In one piece, without others, and until the hub has it; `again` if it may have it already."""
        return self._outbox.put_alone(self, messages, again=again)
