"""Dead letters of channels: messages that did not fit a schema, kept where the hub's broker keeps all others."""

from __future__ import annotations

from msgspec.structs import replace

from trunkline.brokers.broker import Broker
from trunkline.delivery.deadletters import Cause, DeadLetter
from trunkline.errors import SchemaBroken
from trunkline.hub.conformance import Broken


class Letters:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def bury(self, channel: str, broken: Broken, *, again: bool) -> int:
        """Keep it, and record it if there is a journal; its number. What was sent `again` may be there already."""
        roster = self._broker.roster
        subscriber = f"channel {channel}"
        if again and (known := roster.dead_letters.find(message_id=broken.message.id, subscriber=subscriber)):
            return known[0].message.seq
        error = SchemaBroken(channel, *broken.problem)
        letter = DeadLetter(
            message=replace(broken.message, seq=self._broker.sequence.next()),
            subscriber=subscriber,
            cause=Cause.INVALID_PAYLOAD,
            reason=str(error),
            error_type=type(error).__name__,
            traceback="",
            attempts=(),
            at_ns=self._broker.world.time_ns(),
        )
        roster.dead_letters.add(letter)
        if roster.ledger is not None:
            roster.ledger.died(letter, None)
        for announce in roster.announcers[:1]:
            announce(letter)
        return letter.message.seq
