"""The circuit breaker hook: refuses messages to a recipient that keeps failing, until it has had time to recover."""

from __future__ import annotations

from collections.abc import Callable

from trunkline.delivery.breaker import Breaker, BreakerState, Circuit
from trunkline.errors import BackpressureTimeout, CircuitOpen, Congested, InboxFull, PartlyRefused, Refused
from trunkline.hooks.hook import Attachment, Batch, Forward, Hook, Stage, each
from trunkline.message import Message, MessageType
from trunkline.topic import ENDPOINT_PREFIX


class CircuitBreaker(Hook):
    """One circuit per recipient. A recipient is an endpoint, or the topic of a request that names no endpoint.

    These count as failures: an error of a handler or an actor, on any bus of this broker; a request that is answered
    with an error or not in time, in whatever process its responder is; a full inbox.
    """

    stage = Stage.BREAKER

    def __init__(self, rules: Breaker = Breaker()) -> None:
        self._rules = rules
        self._circuits: dict[str, Circuit] = {}
        self._now: Callable[[], float] | None = None
        self._check = each(self._allow)

    def attach(self, bus: Attachment) -> None:
        self._now = bus.now
        bus.on_handled(self._handled)

    def state(self, recipient: str) -> BreakerState:
        """The state of an endpoint, by its name, or of a topic of requests."""
        circuit = self._circuits.get(ENDPOINT_PREFIX + recipient) or self._circuits.get(recipient)
        return BreakerState.CLOSED if circuit is None else circuit.state

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        try:
            await self._check(batch, forward)
        except PartlyRefused as error:
            for message, why in error.refused:
                self._refused(message, why)
            raise
        except Refused as error:
            for message in batch:
                self._refused(message, error)
            raise

    def _refused(self, message: Message, why: Exception) -> None:
        if isinstance(why, (InboxFull, BackpressureTimeout, Congested)):
            self._handled(message, False)

    def _allow(self, message: Message) -> Message:
        topic = _recipient(message)
        circuit = self._circuits.get(topic)
        if circuit is not None and (wait_s := circuit.allow(self._time())) > 0:
            raise CircuitOpen(topic.removeprefix(ENDPOINT_PREFIX), wait_s)
        return message

    def _handled(self, message: Message, well: bool) -> None:
        topic = _recipient(message)
        if not topic:
            return
        circuit = self._circuits.get(topic)
        if circuit is None:
            if well:
                return
            circuit = self._circuits[topic] = Circuit(self._rules)
            if len(self._circuits) > self._rules.max_circuits:
                del self._circuits[next(iter(self._circuits))]
        if well:
            circuit.succeeded()
        else:
            circuit.failed(self._time())

    def _time(self) -> float:
        assert self._now is not None, "the bus attaches its hooks"
        return self._now()


def _recipient(message: Message) -> str:
    """The topic of the recipient; empty if the message has none."""
    if message.recipient is not None:
        return ENDPOINT_PREFIX + message.recipient
    single = message.type is MessageType.REQUEST or message.topic.startswith(ENDPOINT_PREFIX)
    return message.topic if single else ""
