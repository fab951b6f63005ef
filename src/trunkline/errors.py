"""The errors of Trunkline, in one tree. The class of an error shows who must act, and its fields have the data.

Errors that only one of the upper packages raises are defined there, as noted; `trunkline` exports all of them.

TrunklineError
├── UsageError                   the caller's code must change
│   ├── InvalidMessage           a header field is out of range
│   │   ├── InvalidTopic
│   │   ├── InvalidPriority
│   │   ├── InvalidTtl
│   │   ├── HeadersTooLarge      all header fields together
│   │   └── MissingCorrelationId a response without the id of its request
│   ├── InvalidSettings          an unknown key, or a value out of range
│   ├── InvalidExpression        a `where` filter that does not compile
│   ├── MissingExtra             an optional dependency is not installed
│   ├── JavaMissing              (spark/errors.py) no Java, or none that is new enough for Spark
│   ├── WrongProcess             (memory/errors.py) opened before a fork, and used in the child
│   ├── UnknownScheme            no broker serves this URL
│   ├── UnknownHandler           a rule or a replay names a handler that does not exist
│   ├── DuplicateName            the name of a rule or handler is already in use
│   ├── TopicNotStored           the operation needs a stored topic
│   └── Unsupported              the broker does not have this feature
├── PayloadError                 the payload is at fault
│   ├── EncodeError              no codec can encode the value
│   ├── InvalidPayload           the bytes do not match the requested type
│   └── MessageTooLarge
├── Refused                      the bus did not accept the message
│   ├── MessageExpired
│   ├── BackpressureTimeout      a subscriber made no room in time
│   ├── Congested                too many publishers are waiting already
│   ├── InboxFull                a subscriber with the policy `reject` has no room
│   ├── CircuitOpen
│   ├── RateLimited
│   ├── NotStored                the journal could not write the message
│   ├── NotConfirmed             the connection ended before the hub confirmed the message
│   ├── NotAllowed               the hub's access rules forbid it
│   ├── SchemaBroken             the payload does not match the schema of its channel
│   ├── NotRouted                no rule of the router matches the message
│   ├── HookFailed               a hook raised
│   └── PartlyRefused            some messages of a batch were refused: which, and why
├── RequestError
│   ├── RequestTimeout
│   │   └── NoResponders         nobody subscribes to the topic of the request: it fails at once
│   └── RequestFailed            the responder answered with an error
├── NotHandled                   why a message is retried, or became a dead letter
│   ├── HandlerTimeout           a handler ran longer than its subscription allows
│   ├── NotAcknowledged          the lease ended without an acknowledgement
│   ├── Nacked                   the consumer returned the message
│   └── Reject                   raised by a handler: do not retry, make it a dead letter
├── JournalError
│   ├── JournalLocked            (journal/errors.py) another process is writing to the journal
│   ├── JournalUnusable          (journal/errors.py) the journal cannot be opened or written
│   ├── WrongJournal             (journal/errors.py) a stored position belongs to another journal
│   │   └── UnknownJournal       (spark/errors.py) the warehouse holds another journal
│   └── JournalDamaged           a batch or a file differs from what was written
├── PipelineError                (spark/errors.py)
│   ├── WarehouseLocked          (spark/errors.py) another pipeline is running on the warehouse
│   └── WarehouseUnusable        (spark/errors.py) the warehouse cannot be opened or written
├── HubError
│   ├── HubUnavailable           no hub answers at this address
│   │   └── EngineUnavailable    no NATS or Redis server answers at this address
│   ├── StoreUnusable            the data at a NATS or Redis server is incomplete, or not the expected data
│   ├── HubRefused               the hub answered with an error: a code and a text
│   └── ProtocolError            a malformed frame, or one that is not valid in this state
├── KernelError                  (jupyter/errors.py)
│   ├── KernelNotStarted         (jupyter/errors.py) there is no such kernel, or it did not answer
│   │   └── WrongKernelKey       (jupyter/errors.py) the kernel runs, and its messages are signed with another key
│   ├── KernelDied               (jupyter/errors.py) the kernel's process ended, or its heartbeat stopped
│   ├── KernelRestarted          (jupyter/errors.py) the kernel was restarted, and earlier requests are lost
│   ├── ExecutionTimeout         (jupyter/errors.py) not complete in time, where the caller wanted an error
│   └── ExecutionFailed          (jupyter/errors.py) the code raised, or its result is not complete
├── ActorError                   (actors/errors.py)
│   ├── UnknownActor             (actors/errors.py) no actor has this address
│   ├── ActorFailed              (actors/errors.py) it failed more often than its supervision allows
│   ├── ActorProcessFailed       (actors/errors.py) it raised in a process of its own, or that process ended
│   ├── ActorStopped             (actors/errors.py) it was stopped before it handled the message
│   ├── StashFull                (actors/errors.py) it has stashed as many messages as its mailbox may hold
│   └── SystemStopped            (actors/errors.py) the actor system is not running
├── SharedMemoryError            (memory/errors.py)
│   ├── SharedMemoryFull         (memory/errors.py) there is not enough room in /dev/shm
│   ├── NoProducer               (memory/errors.py) the channel has no producer on this machine
│   ├── ProducerGone             (memory/errors.py) the producer closed the channel, or died
│   ├── LayoutMismatch           (memory/errors.py) the channel has another schema: which field differs
│   ├── TooManyConsumers         (memory/errors.py) the channel has as many as its producer allows
│   ├── SlotsHeld                (memory/errors.py) the consumer holds as many frames as it may
│   ├── FrameDamaged             (memory/errors.py) the checksum of a frame does not fit
│   └── CutOff                   (memory/errors.py) the producer stopped waiting for this consumer
├── StreamEmpty                  try_recv: no message is waiting, and the stream is open
└── Closed                       it was closed before or during the call
    ├── BusClosed
    ├── KernelClosed             (jupyter/errors.py)
    └── StreamClosed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from trunkline.message import Message
from trunkline.plural import counted

MAX_TTL_S = 1e9

__all__ = [
    "BackpressureTimeout",
    "BusClosed",
    "CircuitOpen",
    "Closed",
    "Congested",
    "DuplicateName",
    "EncodeError",
    "EngineUnavailable",
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
    "JournalDamaged",
    "JournalError",
    "MessageExpired",
    "MessageTooLarge",
    "MissingCorrelationId",
    "MissingExtra",
    "Nacked",
    "NoResponders",
    "NotAcknowledged",
    "NotAllowed",
    "NotConfirmed",
    "NotHandled",
    "NotRouted",
    "NotStored",
    "PartlyRefused",
    "PayloadError",
    "ProtocolError",
    "RateLimited",
    "Refused",
    "Reject",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "SchemaBroken",
    "StoreUnusable",
    "StreamClosed",
    "StreamEmpty",
    "TopicNotStored",
    "TrunklineError",
    "UnknownHandler",
    "UnknownScheme",
    "Unsupported",
    "UsageError",
]


class TrunklineError(Exception):
    """The root of all errors.

    `retryable` says whether the same call may succeed later. `code` is the error code of a hub that refused.
    """

    retryable: ClassVar[bool] = False
    code: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Text and fields are pickled directly, because the constructors do not take the text as their argument.
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
        super().__init__(f"the header fields have {size:,} bytes, limit {limit:,}: put large values into the payload")
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
            f"{needed_for} needs an optional dependency: pip install 'trunkline[{extra}]', "
            f"or '.[{extra}]' in a checkout"
        )
        self.extra = extra


class UnknownScheme(UsageError):
    def __init__(self, url: str, known: Sequence[str], meant: str = "") -> None:
        hint = f"did you mean {meant!r}?" if meant else f"known schemes: {', '.join(known)}"
        super().__init__(f"no broker serves {url!r}; {hint}")
        self.url = url


class UnknownHandler(UsageError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no handler named {name!r}; there are: {', '.join(known) or 'none'}")
        self.name = name


class DuplicateName(UsageError):
    def __init__(self, kind: str, name: str) -> None:
        article = "an" if kind[:1] in "aeiou" else "a"
        super().__init__(f"{article} {kind} named {name!r} already exists: remove it first, or choose another name")
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
    def __init__(self, broker: str, feature: str, next_step: str = "") -> None:
        super().__init__(f"the {broker} broker does not offer {feature}{next_step and f': {next_step}'}")
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
            "make it faster, raise its capacity, or let it drop messages"
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
        super().__init__(
            f"the inbox of {subscriber} is full ({counted(capacity, 'message')}) and its overflow policy is reject"
        )
        self.subscriber = subscriber
        self.capacity = capacity


class CircuitOpen(Refused):
    retryable = True

    def __init__(self, recipient: str, retry_in_s: float) -> None:
        super().__init__(f"{recipient} failed too often; the next attempt is allowed in {retry_in_s:.3g} s")
        self.recipient = recipient
        self.retry_in_s = retry_in_s


class NotRouted(Refused):
    """`rules` are the rules that were evaluated, in order."""

    def __init__(self, message_id: str, topic: str, rules: Sequence[str]) -> None:
        super().__init__(
            f"failed to route message {message_id or 'without an id'} on {topic}: no rule matches it; "
            f"there are: {', '.join(rules) or 'none'}"
        )
        self.message_id = message_id
        self.topic = topic
        self.rules = rules


class RateLimited(Refused):
    retryable = True

    def __init__(self, what: str, retry_in_s: float) -> None:
        super().__init__(f"{what} exceeds its rate limit; the next message is allowed in {retry_in_s:.3g} s")
        self.what = what
        self.retry_in_s = retry_in_s


class NotStored(Refused):
    """`retryable` is True: the message was not delivered, and the disk may have room again."""

    retryable = True

    def __init__(self, why: str) -> None:
        super().__init__(f"the journal could not write the message, so it was not delivered: {why}")
        self.why = why


class NotConfirmed(Refused):
    """The message may or may not have been published. Publish it again if a duplicate is harmless."""

    retryable = True

    def __init__(self, url: str) -> None:
        super().__init__(f"the connection to {url} ended before the hub confirmed the message")
        self.url = url


class NotAllowed(Refused):
    def __init__(self, text: str) -> None:
        super().__init__(text)


class SchemaBroken(Refused):
    """`field` is the place in the payload, as a path: $.price."""

    def __init__(self, channel: str, field: str, why: str) -> None:
        super().__init__(f"the payload does not match the schema of {channel}: {why} at {field}")
        self.channel = channel
        self.field = field
        self.why = why


class HookFailed(Refused):
    def __init__(self, hook: str, error: Exception) -> None:
        super().__init__(f"the hook {hook} failed: {type(error).__name__}: {error}")
        self.hook = hook
        self.error = error


class PartlyRefused(Refused):
    """`refused` has each refused message with its error. The rest of the batch was published."""

    def __init__(self, refused: Sequence[tuple[Message, Exception]], of: int) -> None:
        first = refused[0][1]
        super().__init__(f"{len(refused)} of {counted(of, 'message')} refused, the first because: {first}")
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


class NoResponders(RequestTimeout):
    """The request had no recipient when it was published. `nearest` are similar topics that have subscribers."""

    def __init__(self, request_id: str, topic: str, timeout_s: float, nearest: Sequence[str] = ()) -> None:
        RequestError.__init__(self, f"No responders: nobody subscribes to {topic!r}; {_served(nearest)}", request_id)
        self.topic = topic
        self.timeout_s = timeout_s
        self.nearest = tuple(nearest)


def _served(nearest: Sequence[str]) -> str:
    if not nearest:
        return "start the responder, or correct the topic"
    return f"did you mean {' or '.join(map(repr, nearest))}?"


class RequestFailed(RequestError):
    """The responder raised an error.

    `error_type` is its class, `detail` its text, and `traceback` its traceback as text.
    """

    def __init__(self, request_id: str, error_type: str, detail: str, traceback: str = "") -> None:
        super().__init__(f"the responder failed: {error_type}: {detail}", request_id)
        self.error_type = error_type
        self.detail = detail
        self.traceback = traceback
        if traceback:
            self.add_note(f"There:\n{traceback}")


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


class JournalDamaged(JournalError):
    """`first` and `last` are the numbers of the messages that cannot be read."""

    def __init__(self, first: int, last: int, where: str, why: str) -> None:
        super().__init__(f"messages {first} to {last} ({where}) are damaged: {why}; all others can be read")
        self.first = first
        self.last = last
        self.where = where
        self.why = why


class HubError(TrunklineError):
    pass


class HubUnavailable(HubError):
    retryable = True

    def __init__(self, url: str, why: str) -> None:
        # Without --listen, a hub listens at the default socket, which has this name.
        self.command = "trunkline up" if url.endswith("/hub.sock") else f"trunkline up --listen {url}"
        super().__init__(f'no hub at {url} ({why}): start one with "{self.command}", or pass embed=True')
        self.url = url
        self.why = why


class EngineUnavailable(HubUnavailable):
    """`engine` is "nats" or "redis"."""

    def __init__(self, engine: str, url: str, why: str) -> None:
        Exception.__init__(self, f"no {engine} server at {url} ({why}): start one there, or correct the address")
        self.engine = engine
        self.url = url
        self.why = why


class StoreUnusable(HubError):
    """`engine` is "nats" or "redis"."""

    def __init__(self, engine: str, url: str, why: str) -> None:
        super().__init__(f"the data stored at the {engine} server {url} cannot be used: {why}")
        self.engine = engine
        self.url = url
        self.why = why


class HubRefused(HubError):
    def __init__(self, code: str, text: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(f"the hub refused: {text}")
        self.code = code
        self.text = text
        self.details = details or {}


class ProtocolError(HubError):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


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


class StreamClosed(Closed):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is closed, and all its messages were received")
        self.name = name
