"""Distributed tracing with OpenTelemetry: spans for the operations on a message, connected across processes.

Names and attributes are those of OpenTelemetry's conventions for messaging. There may be many topics, so the name of a
span is the operation and, if known, the pattern.

A sampler that selects a share of new traces by their ids is evaluated before the hooks (`head.py`). A message that is
not sampled carries no context and has almost no overhead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.subscribers import group_of
from trunkline.errors import MissingExtra
from trunkline.hooks.head import current_context, head_sampling, traceparent
from trunkline.hooks.hook import Attachment, Batch, Forward, Hook, Stage
from trunkline.hooks.publish_span import failed
from trunkline.message import Message, MessageType
from trunkline.topic import REPLY_PREFIX
from trunkline.unchecked import traced

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

TRACEPARENT = "traceparent"
CONTEXT_HEADERS = ("tracestate", "baggage")
"""Further parts of a W3C context. They are sent in the headers of a message, if there are any."""
_OPERATIONS = {MessageType.REQUEST: "request", MessageType.RESPONSE: "respond"}
_ANSWERS = (MessageType.RESPONSE, MessageType.ACK, MessageType.ERROR)
_asked: ContextVar[_RequestSpan | None] = ContextVar("trunkline_asked", default=None)
"""The request that the current code has sent, until its answer arrives."""


class _RequestSpan:
    """The span of a request, which lasts until the answer; none if the request is not sampled."""

    span: Span | None = None


class Trace(Hook):
    """Traces messages. A message carries the W3C `traceparent` of its publish; its handlers continue that trace.

    With `starts_traces`, a handler of a message without a context starts a new trace. By default, this is the case if
    the tracer samples every new trace. If it samples only a share, the publisher has decided not to sample the message.

    With `streams`, a message that is taken from a stream also has a span `deliver`. This makes streams slower.
    """

    stage = Stage.TRACE

    def __init__(
        self, tracer: Tracer | None = None, *, starts_traces: bool | None = None, streams: bool = False
    ) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            raise MissingExtra("observe", "tracing") from error
        self._given = tracer
        self._trace = trace
        self._context = context
        self._current = current_context()
        self._inject = propagate.inject
        self._extract = propagate.extract
        self._starts_traces = starts_traces
        self.watches_streams = streams
        self._find_tracer()

    def attach(self, bus: Attachment) -> None:
        # The provider of the program may have been set since.
        self._find_tracer()

    def _find_tracer(self) -> None:
        self._tracer = self._given or self._trace.get_tracer("trunkline")
        self.head = head_sampling(self._tracer)
        starts = self._starts_traces
        self._starts = self.head is None if starts is None else starts

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        first = batch[0]
        tracer, head, parent = self._tracer, self.head, None
        if not (context := self._current(None)):
            if first.trace:
                # The message continues the trace that it carries, as an answer does.
                parent = self._extract(_carrier(first))
            elif head is not None:
                if first.type in _ANSWERS or head.skip():
                    await forward(batch)
                    return
                tracer = head.tracer
        elif head is not None and context is head.unsampled:
            await forward(batch)
            return
        elif first.trace and not self._trace.get_current_span(context).get_span_context().is_valid:
            parent = self._extract(_carrier(first))
        operation = _OPERATIONS.get(first.type, "publish" if first.recipient is None else "send")
        attributes = _attributes(first, operation, "send")
        if len(batch) > 1:
            attributes["messaging.batch.message_count"] = len(batch)
        else:
            attributes |= _identity(first)
        links = [link for message in batch if message.trace and (link := self._link(message)) is not None]
        span = tracer.start_span(operation, parent, self._trace.SpanKind.PRODUCER, attributes, links)
        asked = _asked.get() if first.type is MessageType.REQUEST else None
        if asked is not None and asked.span is None:
            asked.span = span
        else:
            asked = None
        within = self._trace.set_span_in_context(span, parent)
        trace, headers = self._context_of(span, within, alone=not context and parent is None)
        token = self._context.attach(within)
        try:
            await forward([message if message.trace else _with_context(message, trace, headers) for message in batch])
        except BaseException as error:
            # `asking` records the span of a request, and gets the same error.
            if asked is None:
                failed(span, error)
            raise
        finally:
            self._context.detach(token)
            if asked is None:
                span.end()

    def _context_of(self, span: Span, within: Context, *, alone: bool) -> tuple[str, dict[str, str]]:
        """The W3C context of a span: `traceparent`, and headers. With `alone`, the context has no baggage."""
        trace = traceparent(span)
        if alone and not span.get_span_context().trace_state:
            return trace, {}
        carrier: dict[str, str] = {}
        self._inject(carrier, within)
        return trace, {name: carrier[name] for name in CONTEXT_HEADERS if carrier.get(name)}

    @contextmanager
    def asking(self) -> Iterator[None]:
        """The span of a request ends with its answer."""
        token = _asked.set(asked := _RequestSpan())
        try:
            yield
        except BaseException as error:
            if asked.span is not None:
                failed(asked.span, error)
            raise
        finally:
            _asked.reset(token)
            if asked.span is not None:
                asked.span.end()

    def handling_by(self, message: Message, subscriber: str, pattern: str) -> AbstractContextManager[None]:
        """Around a handler: the span continues the trace of the message, and links to its publish."""
        if message.trace or self._starts:
            return self._handling(message, subscriber, pattern)
        return _Within(self._context, self._context.Context() if self.head is None else self.head.unsampled)

    @contextmanager
    def _handling(self, message: Message, subscriber: str, pattern: str) -> Iterator[None]:
        template = group_of(pattern)
        parent = self._extract(_carrier(message))
        link = self._link(message)
        links = None if link is None else [link]
        consumer = self._trace.SpanKind.CONSUMER
        about = _received(message, subscriber, template)
        if message.attempts:
            about["messaging.trunkline.attempt"] = message.attempts + 1
        else:
            self._deliver(message, template, about, parent, link)
        attributes = _attributes(message, "handle", "process") | about
        span = self._tracer.start_span(f"handle {template}", parent, consumer, attributes, links)
        with _Within(self._context, self._trace.set_span_in_context(span, parent)):
            try:
                yield
            except BaseException as error:
                failed(span, error)
                raise
            finally:
                span.end()

    def taken(self, message: Message, subscriber: str, pattern: str) -> None:
        if message.trace:
            template = group_of(pattern)
            about = _received(message, subscriber, template)
            if message.attempts:
                about["messaging.trunkline.attempt"] = message.attempts + 1
            self._deliver(message, template, about, self._extract(_carrier(message)), self._link(message))

    def _deliver(
        self, message: Message, template: str, about: dict[str, Any], parent: Context, link: Link | None
    ) -> None:
        """Write the span from the publish until now, if the publish is known."""
        if link is None:
            return
        # Start and end come from two clocks, which may differ by more than the actual duration.
        attributes = _attributes(message, "deliver", "receive") | about
        consumer, sent_ns = self._trace.SpanKind.CONSUMER, message.timestamp_ns or None
        self._tracer.start_span(f"deliver {template}", parent, consumer, attributes, [link], sent_ns).end()

    def within(self, message: Message) -> AbstractContextManager[None]:
        """A context for readers of a stream. Spans and publishes inside belong to the trace of the message."""
        return _Within(self._context, self._extract(_carrier(message)))

    def retried(self, message: Message, subscriber: str, pattern: str, error: BaseException, pause_s: float) -> None:
        attributes: dict[str, Any] = {
            "messaging.trunkline.attempt": message.attempts + 1,
            "messaging.trunkline.pause_s": pause_s,
            "error.type": type(error).__qualname__,
        }
        self._settled("retry", message, subscriber, group_of(pattern), attributes)

    def died(self, letter: DeadLetter) -> None:
        attributes: dict[str, Any] = {
            "messaging.trunkline.attempt": letter.message.attempts,
            "messaging.trunkline.cause": letter.cause.value,
            "error.type": letter.error_type or letter.cause.value,
        }
        self._settled("dead letter", letter.message, letter.subscriber, None, attributes, letter.reason)

    def _settled(
        self,
        operation: str,
        message: Message,
        subscriber: str,
        template: str | None,
        attributes: dict[str, Any],
        failure: str | None = None,
    ) -> None:
        """Write a span without duration in the trace of the message."""
        if not message.trace:
            return
        attributes |= _attributes(message, operation, "settle") | _identity(message)
        attributes["messaging.destination.subscription.name"] = subscriber
        name = operation
        if template is not None:
            name = f"{operation} {template}"
            attributes["messaging.destination.template"] = template
        link = self._link(message)
        links = None if link is None else [link]
        consumer = self._trace.SpanKind.CONSUMER
        span = self._tracer.start_span(name, self._extract(_carrier(message)), consumer, attributes, links)
        if failure is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, failure))
        span.end()

    def _link(self, message: Message) -> Link | None:
        """The link to the publish of a message, in any process."""
        if not message.trace:
            return None
        context = self._trace.get_current_span(self._extract(_carrier(message))).get_span_context()
        return self._trace.Link(context) if context.is_valid else None


class _Within:
    """Makes a context the current one inside the block."""

    __slots__ = ("_api", "_context", "_token")

    def __init__(self, api: Any, context: Context) -> None:
        self._api = api
        self._context = context

    def __enter__(self) -> None:
        self._token = self._api.attach(self._context)

    def __exit__(self, *_: object) -> None:
        self._api.detach(self._token)


def _attributes(message: Message, operation: str, kind: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "trunkline",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": message.topic,
    }
    if message.topic.startswith(REPLY_PREFIX):
        attributes["messaging.destination.temporary"] = True
    if message.correlation_id is not None:
        attributes["messaging.message.conversation_id"] = message.correlation_id
    return attributes


def _identity(message: Message) -> dict[str, Any]:
    return {"messaging.message.id": message.id, "messaging.message.body.size": len(message.payload)}


def _received(message: Message, subscriber: str, template: str) -> dict[str, Any]:
    return {
        **_identity(message),
        "messaging.destination.template": template,
        "messaging.destination.subscription.name": subscriber,
    }


def _carrier(message: Message) -> dict[str, str]:
    headers = message.headers or {}
    return {TRACEPARENT: message.trace or "", **{name: headers[name] for name in CONTEXT_HEADERS if name in headers}}


def _with_context(message: Message, trace: str, more: dict[str, str]) -> Message:
    if not more:
        return traced(message, trace)
    return msgspec.structs.replace(message, trace=trace, headers={**(message.headers or {}), **more})
