"""Health and control of a bus: it executes the commands in CONTROL messages, and publishes HEARTBEAT messages."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.bus.lifecycle import BusState, at_work
from trunkline.bus.publisher import BusPublisher
from trunkline.bus.requester import Requester
from trunkline.errors import InvalidTopic, NotAllowed, TrunklineError, UsageError
from trunkline.message import Message, MessageType
from trunkline.message_log import about
from trunkline.topic import CONTROL_PREFIX, HEARTBEAT_PREFIX, validate_topic

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.bus")

LAST_BEAT_S = 1.0
"""The maximum time that the last heartbeat of a bus waits for room at a subscriber."""
_ANSWERS = (MessageType.RESPONSE, MessageType.ERROR, MessageType.ACK)


class BusCommand(enum.StrEnum):
    """The commands that other buses can send to a bus."""

    PING = "ping"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    """Finish the current work, and close."""


class Health(msgspec.Struct, frozen=True):
    """The state of a bus and a few totals. `pending` deliveries are in flight in its process."""

    name: str
    state: BusState
    since_ns: int
    """The time of the last change of state."""
    at_ns: int
    """The time of this measurement."""
    pending: int
    handlers: int
    total_messages: int
    dead_letters: int


class Controller:
    """Executes the commands that other buses send to this one, and publishes its heartbeats."""

    def __init__(
        self,
        bus: Bus,
        publisher: BusPublisher,
        requester: Requester,
        run: Callable[[Coroutine[Any, Any, None]], None],
        close: Callable[[], object],
    ) -> None:
        self._bus = bus
        self._name = bus.name
        self._heartbeat_s = bus.settings.heartbeat_s
        self._publisher = publisher
        self._requester = requester
        self._run = run
        self._close = close
        self._untap: Callable[[], None] | None = None
        self._beating: asyncio.Task[None] | None = None
        try:
            validate_topic(HEARTBEAT_PREFIX + bus.name)
        except InvalidTopic as error:
            log.debug("%s cannot be controlled and publishes no heartbeats: %s", bus.name, error)
        else:
            self._untap = bus.broker.tap(CONTROL_PREFIX + bus.name, self._take)

    def start(self) -> None:
        """Begin to publish heartbeats, if they are on."""
        if self._untap is not None and self._beating is None and self._heartbeat_s is not None:
            self._beating = asyncio.create_task(self._beat(self._heartbeat_s), name=f"{self._name} heartbeat")

    # Control

    def _take(self, message: Message) -> None:
        if message.type in _ANSWERS:
            log.warning(
                "%s ignores %s of %s: an answer is not a command",
                self._name,
                message.id,
                message.sender,
                extra=about(message),
            )
        else:
            self._run(self._execute(message))

    async def _execute(self, message: Message) -> None:
        # A bus that is closing still answers.
        at_work.set(True)
        drains = False
        result: Health | TrunklineError
        try:
            if message.type is not MessageType.CONTROL:
                raise UsageError(f"commands are messages of the type CONTROL, not {message.type.name}")
            command = self._bus.hooks.open(message).decode(BusCommand)
            drains = command is BusCommand.DRAIN
            match command:
                case BusCommand.PAUSE:
                    result = self._bus.pause()
                case BusCommand.RESUME:
                    result = self._bus.resume()
                case _:
                    result = self._bus.health()
            if drains and result.state is not BusState.DRAINING:
                result = msgspec.structs.replace(result, state=BusState.DRAINING, since_ns=result.at_ns)
            log.debug("%s executes %s for %s", self._name, command, message.sender)
        except TrunklineError as error:
            log.warning(
                "%s cannot execute %s of %s: %s", self._name, message.id, message.sender, error, extra=about(message)
            )
            result = error
        await self._answer(message, result)
        if drains:
            self._close()

    async def _answer(self, message: Message, result: Health | TrunklineError) -> None:
        requester = self._requester
        try:
            if message.reply_to is None and message.request_id is None:
                return
            if isinstance(result, Health):
                await requester.answer(message, MessageType.RESPONSE, result)
            else:
                await requester.answer_error(message, result)
        except TrunklineError as error:
            log.warning(
                "%s could not answer %s of %s: %s", self._name, message.id, message.sender, error, extra=about(message)
            )

    # Heartbeats

    async def _beat(self, every_s: float) -> None:
        while await self._publish(every_s):  # noqa: ASYNC110  # a fixed interval
            await asyncio.sleep(every_s)

    async def _publish(self, wait_s: float) -> bool:
        """Publish a heartbeat, without hooks and counters; False if the rules of the hub do not allow it."""
        health = self._bus.health()
        message = self._publisher.message(HEARTBEAT_PREFIX + self._name, health, {"type": MessageType.HEARTBEAT})
        try:
            async with asyncio.timeout(wait_s):
                await self._bus.broker.lane(message.topic).put(message, alike=False)
        except (TrunklineError, TimeoutError) as error:
            log.debug("a heartbeat of %s did not reach all subscribers: %r", self._name, error)
            return not isinstance(error, NotAllowed)
        return True

    # Closing

    def untap(self) -> None:
        """Stop accepting commands."""
        if self._untap is not None:
            self._untap()

    async def aclose(self) -> None:
        """Publish the last heartbeat."""
        if self._heartbeat_s is not None and self._beating is not None and not self._beating.done():
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            await self._publish(min(self._heartbeat_s, LAST_BEAT_S))
