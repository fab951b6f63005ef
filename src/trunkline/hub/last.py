"""LAST: the last stored message of a topic."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from trunkline.errors import JournalDamaged, ProtocolError, TopicNotStored, TrunklineError
from trunkline.hub.questions import OpenQuestions
from trunkline.topic import validate_topic
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

MAX_WAITING = 100
"""The maximum number of open requests of one connection."""
ENVELOPE_BYTES = 1024
"""An upper bound for the size of an answer without its message."""


class LastMessages:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._questions = OpenQuestions(MAX_WAITING, "for last messages")

    async def answer(self, session: Session, asked: control.Last) -> control.Control:
        """The answer with the message, or with the reason why there is none."""
        validate_topic(asked.topic)
        with self._questions.one(session):
            try:
                # Answers may be large: a client that does not read them gets no more.
                await session.drained()
                return await self._find(asked)
            except TopicNotStored as error:
                return _refusal(asked, "not_stored", error, topic=error.topic, stored=error.stored)
            except JournalDamaged as error:
                numbers = {"first": error.first, "last": error.last}
                return _refusal(asked, "damaged", error, where=error.where, why=error.why, **numbers)

    async def _find(self, asked: control.Last) -> control.Control:
        message = await self._hub.broker.require_store().last(asked.topic, asked.before)
        if message is None:
            return control.LastAnswer(re=asked.id)
        data = message.to_bytes()
        largest = self._hub.settings.max_frame_bytes
        if asked.max_bytes > 0:
            largest = min(largest, asked.max_bytes)
        if len(data) > (largest - ENVELOPE_BYTES) * 3 // 4:
            raise ProtocolError(
                "too_large",
                f"the last message on {asked.topic} has {len(message.payload):,} bytes, too many for an answer in a "
                f'frame of {largest:,}: raise max_frame_bytes, or subscribe with start="last"',
            )
        return control.LastAnswer(re=asked.id, message=base64.b64encode(data).decode())


def _refusal(asked: control.Last, code: str, error: TrunklineError, **details: Any) -> control.Error:
    return control.Error(code=code, text=str(error), details=details, re=asked.id)
