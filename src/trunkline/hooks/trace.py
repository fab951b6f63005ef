"""Distributed tracing with OpenTelemetry: a span per publish and per handling, joined across the bus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import MissingExtra
from trunkline.hooks.hook import Batch, Forward, Hook, Stage
from trunkline.message import Message

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class Trace(Hook):
    """The message carries the W3C `traceparent` of its publish; its handlers continue that trace."""

    stage = Stage.TRACE

    def __init__(self, tracer: Tracer | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise MissingExtra("observe", "tracing") from error
        self._tracer = tracer or trace.get_tracer("trunkline")
        self._kind = trace.SpanKind
        self._inject = propagate.inject
        self._extract = propagate.extract

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        topic = batch[0].topic
        with self._tracer.start_as_current_span(f"publish {topic}", kind=self._kind.PRODUCER) as span:
            span.set_attribute("messaging.system", "trunkline")
            span.set_attribute("messaging.destination.name", topic)
            span.set_attribute("messaging.batch.message_count", len(batch))
            carrier: dict[str, str] = {}
            self._inject(carrier)
            parent = carrier.get("traceparent")
            await forward([message if message.trace else _with_trace(message, parent) for message in batch])

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """Around a handler: the span continues the trace of the message."""
        context = self._extract({"traceparent": message.trace}) if message.trace else None
        with self._tracer.start_as_current_span(
            f"handle {message.topic}", context=context, kind=self._kind.CONSUMER
        ) as span:
            span.set_attribute("messaging.system", "trunkline")
            span.set_attribute("messaging.message.id", message.id)
            yield


def _with_trace(message: Message, parent: str | None) -> Message:
    return msgspec.structs.replace(message, trace=parent)
