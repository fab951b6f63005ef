"""The fate of a message: the outcomes from the broker, and the refusals and history of this bus."""

from __future__ import annotations

import msgspec

from trunkline.brokers.broker import Broker
from trunkline.bus.observe import Traffic
from trunkline.delivery.fates import Outcome
from trunkline.errors import HubUnavailable
from trunkline.message import Message


class Explanation(msgspec.Struct, frozen=True):
    """The fate of a message: one outcome for each subscriber that got it. It can be printed."""

    message_id: str
    message: Message | None
    outcomes: tuple[Outcome, ...]
    note: str = ""

    def __str__(self) -> str:
        topic = f" on {self.message.topic}" if self.message is not None else ""
        lines = [f"message {self.message_id}{topic}"]
        lines += [
            f"  {outcome.subscriber}: {outcome.fate.value}{f' ({outcome.reason})' if outcome.reason else ''}"
            for outcome in self.outcomes
        ]
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)


async def explain(broker: Broker, traffic: Traffic, message_id: str) -> Explanation:
    refusal = traffic.refusals.find(message_id)
    note = ""
    known = _find(broker, traffic, message_id)
    try:
        message, outcomes = await broker.explain(message_id, known)
    except HubUnavailable as error:
        message, outcomes = known, [] if known is None else broker.served.outcomes(known)
        note = f"{error}: this is what is known in this process"
    if refusal is not None:
        outcomes.append(refusal)
    if not note and message is None and not outcomes:
        note = "not known here: this bus never accepted it, or no longer remembers it"
    elif not note and not outcomes:
        note = "accepted, but its topic had no subscribers at that time"
    return Explanation(message_id, message or known, tuple(outcomes), note)


def _find(broker: Broker, traffic: Traffic, message_id: str) -> Message | None:
    if (message := traffic.history.find(message_id)) is not None:
        return message
    for letter in broker.served.dead_letters.find(message_id=message_id):
        return letter.message
    waiting = (message for inbox in broker.served for message in inbox.messages())
    return next((message for message in waiting if message.id == message_id), None)
