"""The fates of an actor's messages: each is answered and gets its fate, or is stashed for a while."""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from trunkline.actors.actor import Actor
from trunkline.actors.errors import ActorProcessFailed, StashFull
from trunkline.actors.mailbox import Mailbox
from trunkline.actors.ref import Ref
from trunkline.actors.settings import Failed, Keep
from trunkline.actors.state import ActorState
from trunkline.bus.requester import expects_ack
from trunkline.delivery.dead_letters import Cause, describe
from trunkline.delivery.fates import Fate
from trunkline.delivery.plain_run import RunReader
from trunkline.errors import Closed, HandlerTimeout, InvalidTopic, Refused
from trunkline.message import Message, MessageType
from trunkline.message_log import about

if TYPE_CHECKING:
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")

REQUEST: Final = MessageType.REQUEST


class CellState(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STUCK = "stuck"
    """Its incarnation is over, but a handler that cannot be interrupted still runs."""
    STOPPING = "stopping"
    STOPPED = "stopped"


class MessageFates:
    """The part of a cell that records the fates of messages."""

    __slots__ = (
        "_attempts",
        "_breaking",
        "_current",
        "_ending",
        "_first",
        "_handled",
        "_last",
        "_reader",
        "_roster",
        "_since",
        "_stashing",
        "actor",
        "handled",
        "inbox",
        "keep",
        "memory",
        "ref",
        "stashed",
        "state",
        "system",
    )

    inbox: Mailbox

    def __init__(self, system: ActorSystem, ref: Ref, keep: Keep) -> None:
        self.system = system
        self.ref = ref
        self.keep = keep
        self._roster = system.bus.broker.served
        self.state = CellState.STARTING
        self.actor: Actor | None = None
        self._current: Message | None = None
        self._reader: RunReader | None = None
        """Has the current message, if the actor takes the payloads of a run."""
        self.memory: ActorState | None = None
        """Its saved state, if it has `snapshot` and `restore`."""
        self.stashed: list[Message] | None = None
        self.handled = 0
        self._handled = False
        """Whether the handler has finished with `current`: only the answer may be missing."""
        self._ending = False
        self._stashing = False
        self._breaking = False
        """Whether something must be done before the next message."""
        self._attempts = 0
        """How often the message at the front has failed."""
        # The messages handled since the last `_write_down`: a range of numbers, and how many they are.
        self._first = 0
        self._last = 0
        self._since = 0

    @property
    def current(self) -> Message | None:
        """The message that is being handled, or whose answer is being sent."""
        return self._current if self._reader is None else self._reader.current

    # Fates

    def _count(self, first: int, last: int, done: int) -> None:
        if done:
            self.inbox.books.delivered += done
            self.handled += done
            self._attempts = 0
            # Numbers may descend: a message of higher priority that was sent later comes first.
            if not self._since:
                self._first, self._last = first, last
            elif first < self._first or last < self._last:
                self._first, self._last = min(first, self._first), max(last, self._last)
            else:
                self._last = last
            self._since += done

    def _delivered(self, message: Message) -> None:
        if self.inbox.books.exact:
            self.handled += 1
            self._attempts = 0
            self.inbox.count_delivered(message)
        else:
            self._count(message.seq, message.seq, 1)

    def _write_down(self) -> None:
        if self._since:
            inbox = self.inbox
            now_ns = inbox.time_ns()
            inbox.books.cover(self._first, self._last, now_ns)
            if inbox.ledger is not None:
                inbox.ledger.delivered(inbox, self._first, self._last, self._since, now_ns)
            self._since = 0
            inbox.check_idle()

    async def _refused(self, message: Message, error: Exception, cause: Cause) -> None:
        """Make the message a dead letter, which is not a failure of the actor."""
        self._attempts = 0
        self._stashing = False
        self._write_down()
        self._roster.handled(message, False)
        self.inbox.settle(message, Fate.DEAD, describe(error))
        self.system.bury(message, self.ref.address, cause, describe(error), error)
        if message.type is REQUEST:
            await self._send_answer(message, self.system.bus.respond_error, error)

    def _give_back(self) -> None:
        """The incarnation was interrupted: return its current message to the front, unless the handler had finished
        with it.
        """
        message, self._current = self._current, None
        if message is not None:
            self.inbox.held -= 1
            if self._handled:
                self._delivered(message)
            else:
                self.inbox.return_to_front(message)

    def failed_on(self, message: Message, error: BaseException) -> bool:
        """Apply the option `failed` to a message on which the actor failed. Returns whether it is tried again."""
        self.inbox.held -= 1
        self._stashing = False
        self._roster.handled(message, False)
        self._attempts += 1
        if self.keep.failed is Failed.RETRY and self._attempts < self.keep.attempts:
            self.inbox.return_to_front(message)
            return True
        self._attempts = 0
        dropped = self.keep.failed is Failed.DROP
        # A sender that waits for an acknowledgement is notified by the dead letter.
        if message.type is REQUEST or (dropped and expects_ack(message)):
            self.system.background(self.system.bus.respond_error(message, original(error)))
        if dropped:
            self.inbox.settle(message, Fate.DROPPED, f"its actor failed: {describe(error)}")
            return False
        self.inbox.settle(message, Fate.DEAD, describe(error))
        cause = Cause.HANDLER_TIMEOUT if isinstance(error, HandlerTimeout) else Cause.HANDLER_FAILED
        self.system.bury(message, self.ref.address, cause, describe(error), error)
        return False

    def retried(self, message: Message, error: BaseException, pause_s: float) -> None:
        """Notify the hooks that the message is tried again. Attempts are counted in the actor, not in the message."""
        counted = replace(message, attempts=max(0, self._attempts - 1))
        self.system.bus.hooks.retried(counted, self.inbox.name, self.inbox.pattern, error, pause_s)

    def lost(self, message: Message, why: str) -> None:
        """Called when there was no room for the message in the mailbox."""
        self.system.bury(message, self.ref.address, Cause.MAILBOX_FULL, why)

    @property
    def load(self) -> int:
        """The number of its messages in flight."""
        return self.inbox.in_flight

    @property
    def busy(self) -> bool:
        return bool(self.inbox.in_flight) or self.current is not None

    async def _send_answer(
        self, message: Message, answer: Callable[..., Awaitable[object] | None], *values: object
    ) -> None:
        try:
            if (waiting := answer(message, *values)) is not None:
                await waiting
        except (Refused, Closed, InvalidTopic) as error:
            log.warning(
                "%s handled %s, but its answer could not be sent: %s",
                self.ref,
                message.id,
                describe(error),
                extra=about(message),
            )

    # Stashed messages

    def interrupt(self) -> None:
        """Mark that something has changed that takes effect with the next message."""
        self._breaking = True

    def stash(self) -> None:
        if len(self.stashed or ()) >= self.keep.capacity:
            raise StashFull(self.ref.address, self.keep.capacity)
        self._stashing = self._breaking = True

    def _put_aside(self, message: Message) -> None:
        """Stash the message that was just handled, as its handler requested."""
        self._stashing = False
        if self.stashed is None:
            self.stashed = []
        self.stashed.append(message)
        # It is no longer in the mailbox, but still in flight.
        self.inbox.held += 1

    def unstash(self) -> None:
        """Return the stashed messages to the front of the mailbox, in their order."""
        stashed, self.stashed = self.stashed, None
        for message in reversed(stashed or ()):
            self.inbox.held -= 1
            self.inbox.return_to_front(message)


def original(error: BaseException) -> BaseException:
    """The error that an actor raised, also if it was raised in another process."""
    if not isinstance(error, ActorProcessFailed):
        return error
    if error.__cause__ is not None or not error.error_type:
        return error.__cause__ or error
    # The error could not be pickled: build one with the same name, text and traceback.
    kind: type[ActorProcessFailed] = type(error.error_type, (ActorProcessFailed,), {})
    text = str(error).removeprefix(f"{error.error_type}: ")
    return kind(error.address, text, error.error_type, error.traceback)
