"""Distributed tracing with OpenTelemetry: a span per publish and per handling, joined across the bus.

Names and attributes are those of OpenTelemetry's conventions for messaging. Topics may be many, so a span is named
after what is done and, where that is known, the pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from trunkline.delivery.subscribers import group_of
from trunkline.errors import MissingExtra
from trunkline.hooks.hook import Batch, Forward, Hook, Stage
from trunkline.message import Message, MessageType
from trunkline.topic import REPLY_PREFIX

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer

TRACEPARENT = "traceparent"
CONTEXT_HEADERS = ("tracestate", "baggage")
"""What else belongs to a W3C context; it travels in the headers of a message, if there is any."""
_OPERATIONS = {MessageType.REQUEST: "request", MessageType.RESPONSE: "respond"}


class Trace(Hook):
    """The message carries the W3C `traceparent` of its publish; its handlers continue that trace."""

    stage = Stage.TRACE

    def __init__(self, tracer: Tracer | None = None) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            raise MissingExtra("observe", "tracing") from error
        self._tracer = tracer or trace.get_tracer("trunkline")
        self._trace = trace
        self._context = context
        self._inject = propagate.inject
        self._extract = propagate.extract

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        first = batch[0]
        operation = _OPERATIONS.get(first.type, "publish" if first.recipient is None else "send")
        links = [link for message in batch if message.trace and (link := self._link(message)) is not None]
        # What goes on in the trace that it came with, as an answer does, belongs there unless this is part of another.
        outside = not self._trace.get_current_span().get_span_context().is_valid
        with self._tracer.start_as_current_span(
            operation,
            context=self._extract(_carrier(first)) if first.trace and outside else None,
            kind=self._trace.SpanKind.PRODUCER,
            links=links or None,
        ) as span:
            if span.is_recording():
                _describe(span, first, operation, "send")
                if len(batch) > 1:
                    span.set_attribute("messaging.batch.message_count", len(batch))
                else:
                    _identify(span, first)
            carrier: dict[str, str] = {}
            self._inject(carrier)
            try:
                await forward([message if message.trace else _with_context(message, carrier) for message in batch])
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    @contextmanager
    def handling_by(self, message: Message, subscriber: str, pattern: str) -> Iterator[None]:
        """Around a handler: the span continues the trace of the message, and links to its publish."""
        template = group_of(pattern)
        link = self._link(message)
        with (
            self._within(message),
            self._tracer.start_as_current_span(
                f"handle {template}",
                kind=self._trace.SpanKind.CONSUMER,
                links=None if link is None else [link],
            ) as span,
        ):
            if span.is_recording():
                _describe(span, message, "handle", "process")
                _identify(span, message)
                span.set_attribute("messaging.destination.template", template)
                span.set_attribute("messaging.destination.subscription.name", subscriber)
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    @contextmanager
    def _within(self, message: Message) -> Iterator[None]:
        """In the context that the message was published in, with its baggage."""
        token = self._context.attach(self._extract(_carrier(message)))
        try:
            yield
        finally:
            self._context.detach(token)

    def _link(self, message: Message) -> Link | None:
        """To the publish of a message, in whatever process that was."""
        if not message.trace:
            return None
        context = self._trace.get_current_span(self._extract(_carrier(message))).get_span_context()
        return self._trace.Link(context) if context.is_valid else None


def _describe(span: Span, message: Message, operation: str, kind: str) -> None:
    span.set_attribute("messaging.system", "trunkline")
    span.set_attribute("messaging.operation.name", operation)
    span.set_attribute("messaging.operation.type", kind)
    span.set_attribute("messaging.destination.name", message.topic)
    if message.topic.startswith(REPLY_PREFIX):
        span.set_attribute("messaging.destination.temporary", True)
    if message.correlation_id is not None:
        span.set_attribute("messaging.message.conversation_id", message.correlation_id)


def _identify(span: Span, message: Message) -> None:
    span.set_attribute("messaging.message.id", message.id)
    span.set_attribute("messaging.message.body.size", len(message.payload))


def _carrier(message: Message) -> dict[str, str]:
    headers = message.headers or {}
    return {TRACEPARENT: message.trace or "", **{name: headers[name] for name in CONTEXT_HEADERS if name in headers}}


def _with_context(message: Message, carrier: dict[str, str]) -> Message:
    more = {name: carrier[name] for name in CONTEXT_HEADERS if carrier.get(name)}
    headers = {**(message.headers or {}), **more} if more else message.headers
    return msgspec.structs.replace(message, trace=carrier.get(TRACEPARENT), headers=headers)
