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
from trunkline.message import Message
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

MAX_WAITING: Final = 10
ASKING: Final = (Action.PUBLISH, Action.SUBSCRIBE, Action.ADMINISTER)
"""Who may do one of these on its topic may ask."""
PATIENCE_S: Final = 1.0
"""So long a subscriber has to say what became of a message. After that, it is known that it was handed over."""
MAX_PAYLOAD: Final = 64 * 1024


class Explanations:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._questions = OpenQuestions(MAX_WAITING, "for what became of messages")
        self._reports: dict[Outlet, list[asyncio.Future[None]]] = {}

    async def answer(self, session: Session, asked: control.Explain) -> control.Control:
        with self._questions.one(session):
            await session.drained()
            broker = self._hub.broker
            known = self._hub.recent.find(asked.message_id, asked.number)
            message, _ = await broker.explain(asked.message_id, known)
            if message is None or not any(session.may(action, message.topic) for action in ASKING):
                # What an identity has no right on is not told apart from what is not there.
                raise ProtocolError("unknown", "no such message is known here")
            await self._reported_on(message)
            _, outcomes = await broker.explain(asked.message_id, message)
            if len(message.payload) > MAX_PAYLOAD:
                message = replace(message, payload=b"", encoding="elided")
            return control.ExplainAnswer(
                re=asked.id,
                message=base64.b64encode(message.to_bytes()).decode(),
                outcomes=[
                    control.Told(subscriber=each.subscriber, fate=each.fate.value, reason=each.reason, at_ns=each.at_ns)
                    for each in outcomes
                ],
            )

    async def _reported_on(self, message: Message) -> None:
        """Return when those who have it have said what they know, or had the time to."""
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
        """Its client has said what there was to say."""
        for done in self._reports.pop(outlet, ()):
            if not done.done():
                done.set_result(None)
