"""Routes messages to the mailboxes of a system, and handles messages for which there is none."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from trunkline.actors.arrivals import Arrivals
from trunkline.actors.errors import SystemStopped, UnknownActor
from trunkline.actors.message_loop import ACTING
from trunkline.actors.pool import FarMember, Pool
from trunkline.actors.watching import ROLL_CALL, SystemStarted
from trunkline.brokers.broker import Broker
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import DuplicateName, InvalidPayload
from trunkline.message import Message, MessageType
from trunkline.message_log import about
from trunkline.topic import ENDPOINT_PREFIX, endpoint, validate_topic

if TYPE_CHECKING:
    from trunkline.actors.cell import Cell
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")

_last_words: WeakKeyDictionary[Broker, dict[str, list[Callable[[], None]]]] = WeakKeyDictionary()
"""Functions that stop answering for a system that has stopped while the broker in its process is still in use."""
_running: WeakKeyDictionary[Broker, set[str]] = WeakKeyDictionary()
"""The names of the running systems on each broker of this process."""


class MessageRouter:
    """The message router of one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._bus = system.bus
        self._prefix = f"{ENDPOINT_PREFIX}{system.name}."
        self._patterns = (f"{self._prefix}>", endpoint(system.name))
        self._taps: list[Callable[[], None]] = []
        self._roll_call: Callable[[], None] | None = None
        self._arrivals: Arrivals | None = None
        """None if the broker is in this process."""
        self._announcement = ""
        """The id of the message that announced the start of this system."""

    # Life cycle

    async def open(self) -> None:
        broker, name = self._bus.broker, self._system.name
        validate_topic(endpoint(name))
        running = _running.setdefault(broker, set())
        if name in running:
            # Otherwise, each of the two systems would answer messages to the actors of the other with UnknownActor.
            raise DuplicateName("actor system", name)
        running.add(name)
        try:
            await self._open()
        except BaseException:
            running.discard(name)
            raise

    async def _open(self) -> None:
        broker, name = self._bus.broker, self._system.name
        for stop in _last_words.get(broker, {}).pop(name, []):
            stop()
        if broker.here:
            # The mailbox is looked up once for each topic. Then messages are appended to it directly.
            self._taps = [broker.tap(pattern, self.route, inbox_of=self._inbox_of) for pattern in self._patterns]
        else:
            self._arrivals = Arrivals(self._system, self.route)
            await self._arrivals.open(self._patterns)
            self._announcement = await self._bus.publish(
                ROLL_CALL, SystemStarted(name), schema=SystemStarted.__schema__
            )
        self._roll_call = broker.tap(ROLL_CALL, self._answer_roll_call, hears=False)

    def narrow(self) -> None:
        """From now on, only messages from actors of this system are accepted."""
        if self._taps:
            broker = self._bus.broker
            narrow = [broker.tap(pattern, self.route) for pattern in self._patterns]
            for stop in self._taps:
                stop()
            self._taps = narrow

    def attend(self, cell: Cell) -> Awaitable[None] | None:
        """Add an actor. Returns an awaitable if there is more to do, else None."""
        self._bus.broker.forget_route(cell.ref.topic)
        if self._arrivals is not None and cell.keep.overflow is Overflow.BLOCK:
            return self._arrivals.attend(cell.ref.topic)
        return None

    def leave(self, cell: Cell) -> None:
        self._bus.broker.forget_route(cell.ref.topic)
        if self._arrivals is not None:
            self._arrivals.leave(cell.ref.topic)

    async def aclose(self) -> None:
        for stop in self._taps:
            stop()
        self._taps.clear()
        if self._roll_call is not None:
            self._roll_call()
        if self._arrivals is not None:
            await self._arrivals.aclose()
        broker = self._bus.broker
        _running[broker].discard(self._system.name)
        taps = [broker.tap(each, self._too_late, hears=False) for each in self._patterns]
        if not broker.here:
            taps.append(broker.tap(ROLL_CALL, self._on_successor, hears=False))
        _last_words.setdefault(broker, {})[self._system.name] = taps

    # Messages

    def _inbox_of(self, topic: str) -> Inbox | None:
        cell = self._system.registry.get(topic.removeprefix(self._prefix))
        return None if cell is None else cell.inbox

    def route(self, message: Message) -> tuple[Inbox, ...]:
        """The mailboxes for a message."""
        system = self._system
        if not system.is_running and not self._is_inside(message):
            self._unknown(message)
            return ()
        inbox = self._inbox_of(message.topic)
        if inbox is not None:
            return (inbox,)
        if message.topic == self._patterns[1] and system.watching.take(message):
            return ()
        pool = system.routers.pools.get(message.topic.removeprefix(self._prefix))
        chosen = () if pool is None else self._choose(pool, message)
        if chosen is None:
            return ()
        if chosen:
            for member in chosen:
                if isinstance(member, FarMember):
                    system.background(self._forward(message, member))
            return tuple(member.inbox for member in chosen if not isinstance(member, FarMember))
        self._unknown(message)
        return ()

    def _choose(self, pool: Pool, message: Message) -> Sequence[Any] | None:
        """The members of a pool for a message. None if choosing them fails: then only this message is affected, and is
        a dead letter.
        """
        try:
            return pool.choose(message)
        except Exception as error:
            address = message.topic.removeprefix(ENDPOINT_PREFIX)
            log.error(
                "message %s to %s is a dead letter: its key could not be read: %s",
                message.id,
                address,
                describe(error),
                extra=about(message),
            )
            self._system.bury(
                message, address, Cause.HANDLER_FAILED, f"its key could not be read: {describe(error)}", error
            )
            if message.type is MessageType.REQUEST:
                self._system.background(self._bus.respond_error(message, error))
            return None

    def _is_inside(self, message: Message) -> bool:
        return ACTING.get() is self._system or self._system.owns(message.sender)

    async def _forward(self, message: Message, member: FarMember) -> None:
        await self._bus.post(message.replace(topic=endpoint(member.name), id=""))

    def _answer_roll_call(self, message: Message) -> None:
        if message.id != self._announcement and self._names_this_system(message):
            log.error(
                "another actor system with the name %s has started on this broker (sender %s): each answers messages "
                "to the actors of the other with UnknownActor; give one of them another name",
                self._system.name,
                message.sender,
            )
        elif not self._system.watching.take(message) and message.reply_to:
            self._system.background(self._bus.publish(message.reply_to, self._system.actors()))

    # Messages without a recipient

    def _unknown(self, message: Message) -> None:
        """Make a message a dead letter because no actor has its address, or the system is stopping."""
        system = self._system
        address = message.topic.removeprefix(ENDPOINT_PREFIX)
        error: UnknownActor | SystemStopped = UnknownActor(address)
        if message.topic == self._patterns[1]:
            cause, why = Cause.NO_RECIPIENT, "the address names a system, but no actor in it"
        elif not system.is_running:
            cause, why = Cause.NOT_RUNNING, f"its system is {system.state.value}"
            error = SystemStopped(system.name, system.state.value)
        else:
            cause, why = Cause.UNKNOWN_ACTOR, "there is no such actor"
        log.warning("message %s to %s is a dead letter: %s", message.id, address, why, extra=about(message))
        system.bury(message, address, cause, why)
        if message.type is MessageType.REQUEST:
            # A requester gets an error at once, instead of a timeout.
            system.background(self._bus.respond_error(message, error))

    def _on_successor(self, message: Message) -> None:
        """Stop answering for this stopped system when another system of its name has started, in any process."""
        if self._names_this_system(message):
            for stop in _last_words.get(self._bus.broker, {}).pop(self._system.name, []):
                stop()

    def _names_this_system(self, message: Message) -> bool:
        """Whether the message announces that a system of this name has started."""
        if message.schema != SystemStarted.__schema__:
            return False
        try:
            return message.decode(SystemStarted).system == self._system.name
        except InvalidPayload as error:
            log.warning(
                "actor system %s cannot read %s: %s", self._system.name, message.id, error, extra=about(message)
            )
            return False

    def _too_late(self, message: Message) -> None:
        """Drop a message that arrives after the system has stopped."""
        broker = self._bus.broker
        if broker.here and broker.lane(message.topic).has_subscribers:
            # Another system has this name now.
            return
        address = message.topic.removeprefix(ENDPOINT_PREFIX)
        log.warning("message %s to %s is dropped: its system has stopped", message.id, address, extra=about(message))
        if message.type is MessageType.REQUEST:
            self._system.background(self._bus.respond_error(message, SystemStopped(self._system.name, "stopped")))
