"""The store of a hub's client: queries over the connection what the hub has stored."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from trunkline.brokers.hub.refusals import of_last, of_subscription
from trunkline.brokers.remote.store import RemoteStore
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate, Outcome
from trunkline.errors import HubRefused, InvalidMessage, PayloadError, ProtocolError
from trunkline.message import ELIDED, Message
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.brokers.hub.broker import HubBroker


class HubStore(RemoteStore):
    """The store of a hub. Without a journal the hub stores nothing, but it can still explain recent messages."""

    def __init__(self, broker: HubBroker) -> None:
        super().__init__(broker)
        self._broker = broker
        self._connection = broker.connection

    async def _last(self, topic: str, before: int | None) -> Message | None:
        """The last stored message. Raises NotAllowed without the right to subscribe."""
        max_bytes = self._connection.settings.max_frame_bytes
        try:
            answer = await self._connection.ask(
                lambda asked: control.Last(id=asked, topic=topic, before=before, max_bytes=max_bytes)
            )
        except HubRefused as error:
            raise of_last(error) from error
        assert isinstance(answer, control.LastAnswer)
        return None if answer.message is None else _message(answer.message)

    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        """See `Store.explain`. The hub queries the clients that have the message.

        Without a right on its topic it is unknown.
        """
        await self._connection.ready()
        here = [] if known is None else self._broker.served.outcomes(known)
        number = max(0, known.seq) if known is not None else 0
        try:
            answer = await self._connection.ask(
                lambda asked: control.Explain(id=asked, message_id=message_id, number=number)
            )
        except HubRefused as error:
            if error.code != "unknown":
                raise
            return None, here
        assert isinstance(answer, control.ExplainAnswer)
        message = _message(answer.message)
        if message.encoding == ELIDED and known is not None:
            message = known
        there = [Outcome(each.subscriber, Fate(each.fate), each.reason, each.at_ns) for each in answer.outcomes]
        names = {outcome.subscriber for outcome in there}
        return message, there + [outcome for outcome in here if outcome.subscriber not in names]

    async def recall_dead_letters(self, after: str = "") -> tuple[list[DeadLetter], str]:
        """See `Store.recall_dead_letters`. Raises HubUnavailable if there is no hub."""
        return await self._broker.dead_letters.recall(after)

    async def _forget(self, name: str) -> bool:
        """Delete a durable subscription.

        Raises NotAllowed if the identity neither owns it nor may administer its topics.
        """
        try:
            answer = await self._connection.ask(lambda asked: control.Forget(id=asked, name=name))
        except HubRefused as error:
            raise of_subscription(error, name) from error
        assert isinstance(answer, control.Done)
        return answer.changed


def _message(text: str) -> Message:
    try:
        return Message.from_bytes(base64.b64decode(text, validate=True))
    except (ValueError, PayloadError, InvalidMessage) as error:
        raise ProtocolError("malformed", f"the hub sent an invalid message: {error}") from error
