"""EXPLAIN: the outcome of a message at every subscriber that the hub serves, in any process."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from trunkline.delivery.outlet import Outlet
from trunkline.errors import ProtocolError
from trunkline.hub.access import Action
from trunkline.hub.questions import OpenQuestions
from trunkline.message import ELIDED, Message
from trunkline.topic import REPLY_PREFIX
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

MAX_WAITING: Final = 10
READING: Final = (Action.SUBSCRIBE, Action.ADMINISTER)
"""The rights on the topic with which the answer includes the content of the message."""
PATIENCE_S: Final = 1.0
"""How long a subscriber has to report a fate. After that, the message counts as in flight."""
MAX_PAYLOAD: Final = 64 * 1024
QUESTION_BYTES: Final = 64 * 1024
"""The size at which a waiting question counts: see `limits.pending_bytes`."""


class Explanations:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._questions = OpenQuestions(MAX_WAITING, "to explain messages")
        self._searching = asyncio.Lock()
        self._reports: dict[Outlet, list[asyncio.Future[None]]] = {}

    async def answer(self, session: Session, asked: control.Explain) -> control.Control:
        with session.held(QUESTION_BYTES):
            async with self._searching:
                # One search in each iteration of the event loop: it may take milliseconds, and others must not wait.
                await asyncio.sleep(0)
                known = self._hub.recent.find(asked.message_id, asked.number)
        with self._questions.one(session):
            await session.drained()
            broker = self._hub.broker
            message, _ = await broker.explain(asked.message_id, known)
            if message is None or (not (reads := _may_read(session, message.topic)) and not _may_ask(session, message)):
                # A message without rights on its topic looks like an unknown one.
                raise ProtocolError("unknown", "the hub does not know this message")
            await self._reported_on(message)
            _, outcomes = await broker.explain(asked.message_id, message)
            if not reads or len(message.payload) > MAX_PAYLOAD:
                message = replace(message, payload=b"", encoding=ELIDED, headers=message.headers if reads else None)
            return control.ExplainAnswer(
                re=asked.id,
                message=base64.b64encode(message.to_bytes()).decode(),
                outcomes=[
                    control.Told(subscriber=each.subscriber, fate=each.fate.value, reason=each.reason, at_ns=each.at_ns)
                    for each in outcomes
                ],
            )

    async def _reported_on(self, message: Message) -> None:
        """Wait for the reports of the subscribers that have it, up to a time limit."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        for session in self._hub.sessions.values():
            for outlet in session.outlets.values():
                if message.seq in outlet.books.open:
                    done: asyncio.Future[None] = loop.create_future()
                    self._reports.setdefault(outlet, []).append(done)
                    waiting.append(done)
                    session.send(control.Report(subscription=outlet.subscription))
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE_S)

    def reported(self, outlet: Outlet) -> None:
        """Called when the client of an outlet has sent its report."""
        for done in self._reports.pop(outlet, ()):
            if not done.done():
                done.set_result(None)


def _may_read(session: Session, topic: str) -> bool:
    return any(session.may(action, topic) for action in READING)


def _may_ask(session: Session, message: Message) -> bool:
    """Whether the client may publish on this topic.

    For a reply topic this is not enough, because everyone may answer there.
    """
    return not message.topic.startswith(REPLY_PREFIX) and session.may(Action.PUBLISH, message.topic)
