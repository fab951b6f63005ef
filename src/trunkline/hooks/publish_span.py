"""The spans of publishes that start a trace, written when the publish has ended.

A span of OpenTelemetry's SDK takes as long as ten publishes in process, and most of that does not depend on the
message. So the SDK makes one span in advance, which is copied for each publish. A processor that does something when a
span starts gets spans that the SDK has made.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trunkline.topic import MAX_TOPIC_CHARS

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

log = logging.getLogger("trunkline.hooks")

_VARYING = frozenset({"_context", "_attributes", "_start_time", "_end_time"})
"""The fields of a finished span that differ between publishes."""
_ID_CHARS = 36

PublishSpan = tuple[tuple[int, int], str]
"""The ids of the trace and the span of a publish that starts a trace, and its W3C `traceparent`."""


class PublishSpans:
    """Writes the spans of publishes that start a trace. `tracer` samples every one of them."""

    def __init__(self, tracer: Any, outside: Context) -> None:
        from opentelemetry.trace import SpanKind

        self._new_ids: Callable[[], tuple[int, int]] = tracer.id_generator.generate_ids
        self._tracer = copy.copy(tracer)
        self._given = self._tracer.id_generator = _GivenIds(tracer.id_generator)
        self._outside = outside
        self._kind = SpanKind.PRODUCER
        self._processors: object = None
        """The processors for which `_copies` was determined."""
        self._copies = False
        """Whether the processors accept a span that they have not seen start."""
        catching = copy.copy(tracer)
        catching.span_processor = caught = _Caught()
        # With the maximum lengths, because the SDK may limit attributes.
        expected = _attributes("t" * MAX_TOPIC_CHARS, "i" * _ID_CHARS, 1)
        span = catching.start_span("publish", outside, self._kind, expected)
        span.end()
        context = span.get_span_context()
        ids = context.trace_id, context.span_id
        # For large numbers, `%` formatting takes a quarter of the time of an f-string.
        self._trace = f"00-%032x-%016x-{context.trace_flags:02x}"
        made = caught.span
        alike = made is not None and dict(made.attributes) == expected and vars(made).keys() >= _VARYING
        alike = alike and isinstance(context, tuple) and tuple(context[:2]) == ids
        # The SDK counts spans as they start, if that is switched on.
        counted = hasattr(getattr(tracer, "_tracer_metrics", None), "_started_spans")
        self._template = made if alike and not counted else None
        self._context_type: type[tuple[Any, ...]] = type(context)
        self._context_rest: tuple[Any, ...] = context[2:] if alike else ()
        self._fields: dict[str, Any] = {} if made is None else vars(made).copy()

    def take(self) -> PublishSpan:
        """The ids of the next span."""
        ids = self._new_ids()
        return ids, self._trace % ids

    def write(
        self,
        publish: PublishSpan,
        about: tuple[str, str, int],
        start_ns: int,
        end_ns: int,
        error: BaseException | None = None,
    ) -> None:
        """Write the span. `about` is the topic, the id and the size of the message.

        An error of a span processor is logged, not raised: the message is published.
        """
        try:
            self._write(publish, about, start_ns, end_ns, error)
        except Exception:
            log.exception("the span of message %s could not be written", about[1])

    def _write(
        self, publish: PublishSpan, about: tuple[str, str, int], start_ns: int, end_ns: int, error: BaseException | None
    ) -> None:
        processor = self._tracer.span_processor
        ids = publish[0]
        attributes = _attributes(*about)
        template = self._template
        if template is not None and error is None:
            if self._processors is not (now := getattr(processor, "_span_processors", self)):
                self._processors, self._copies = now, _ignore_starts(now)
            if self._copies:
                span = object.__new__(template.__class__)
                span.__dict__ = fields = self._fields.copy()
                fields["_context"] = tuple.__new__(self._context_type, ids + self._context_rest)
                fields["_attributes"] = attributes
                fields["_start_time"] = start_ns
                fields["_end_time"] = end_ns
                processor.on_end(span)
                return
        self._given.next = ids
        made: Span = self._tracer.start_span("publish", self._outside, self._kind, attributes, None, start_ns)
        if error is not None:
            failed(made, error)
        made.end(end_ns)


class _Caught:
    """A span processor that keeps the last span."""

    span: Any = None

    def on_start(self, span: object, parent_context: object = None) -> None:
        return

    def _on_ending(self, span: object) -> None:
        return

    def on_end(self, span: object) -> None:
        self.span = span


class _GivenIds:
    """An id generator that returns given ids."""

    def __init__(self, ids: Any) -> None:
        self._ids = ids
        self.next = 0, 0

    def generate_trace_id(self) -> int:
        return self.next[0]

    def generate_span_id(self) -> int:
        return self.next[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)


def _attributes(topic: str, message_id: str, size: int) -> dict[str, str | int]:
    return {
        "messaging.system": "trunkline",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.message.id": message_id,
        "messaging.message.body.size": size,
    }


def _ignore_starts(processors: object) -> bool:
    """Whether no processor does anything when a span starts or is about to end."""
    from opentelemetry.sdk.trace import SpanProcessor, export

    idle = (SpanProcessor, export.SimpleSpanProcessor, export.BatchSpanProcessor)
    return isinstance(processors, tuple) and all(
        getattr(type(processor), name, None) in [getattr(kind, name, None) for kind in idle]
        for processor in processors
        for name in ("on_start", "_on_ending")
    )


def failed(span: Span, error: BaseException) -> None:
    """Record an error like `start_as_current_span`, which ignores errors that are not an Exception."""
    if isinstance(error, Exception) and span.is_recording():
        from opentelemetry.trace import Status, StatusCode

        kind = type(error).__qualname__
        span.set_attribute("error.type", kind)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{kind}: {error}"))
