"""Monitoring of a kernel's client: metrics for Prometheus, and an OpenTelemetry span for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trunkline.errors import MissingExtra
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.wire import KernelMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer
    from prometheus_client import CollectorRegistry

    from trunkline.jupyter.kernel import Kernel


def export(kernel: Kernel, registry: CollectorRegistry) -> None:
    """Let a registry collect the counters of `kernel.stats()`."""
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise MissingExtra("observe", "exporting metrics to Prometheus") from error

    class KernelCollector:
        def collect(self) -> list[Any]:
            stats = kernel.stats()
            gauges = {
                "active_requests": ("Open requests", stats.active_requests),
                "orphan_messages": ("Orphans that are kept", stats.orphan_messages),
                "global_subscribers": ("Subscribers of all messages", stats.global_subscribers),
            }
            found: list[Any] = []
            for name, (text, value) in gauges.items():
                gauge = GaugeMetricFamily(f"trunkline_kernel_{name}", text, labels=["kernel"])
                gauge.add_metric([kernel.id], value)
                found.append(gauge)
            counters = {
                "messages": ("Messages by destination", "to", _by_place(stats.routed)),
                "orphans": ("Orphans by reason", "why", stats.orphans),
                "faults": ("Frames that could not be read, by fault", "fault", stats.faults),
            }
            for name, (text, label, counts) in counters.items():
                counter = CounterMetricFamily(f"trunkline_kernel_{name}", text, labels=["kernel", label])
                for which, count in counts.items():
                    counter.add_metric([kernel.id, which], count)
                found.append(counter)
            return found

    registry.register(KernelCollector())


def _by_place(routed: Any) -> dict[str, int]:
    return {name: getattr(routed, name) for name in routed.__struct_fields__ if name != "total"}


class Tracing:
    """A span from a request to its end. Messages of the request carry its `traceparent` on the bus."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise MissingExtra("observe", "tracing") from error
        self._tracer = tracer or trace.get_tracer("trunkline")
        self._trace = trace
        self._inject = propagate.inject
        self._open: dict[str, str] = {}

    def begin(self, request: KernelMessage, execution: Execution) -> None:
        """Start the span of a request. Called before the request is sent."""
        span = self._tracer.start_span(
            f"kernel {request.msg_type}",
            kind=self._trace.SpanKind.CLIENT,
            attributes={
                "messaging.system": "jupyter",
                "messaging.message.id": request.id,
                "trunkline.kernel": request.sender,
            },
        )
        carrier: dict[str, str] = {}
        self._inject(carrier, self._trace.set_span_in_context(span))
        self._open[request.id] = carrier.get("traceparent", "")
        execution.ended.add_done_callback(lambda _: self._end(span, execution))

    def of(self, message: KernelMessage) -> str | None:
        """The `traceparent` of a message."""
        return self._open.get(message.request_id or "") or None

    def _end(self, span: Span, execution: Execution) -> None:
        self._open.pop(execution.id, None)
        result = execution.partial()
        span.set_attribute("trunkline.status", result.status)
        span.set_attribute("trunkline.complete", result.complete)
        if not result.ok:
            why = str(result.error or execution.failure or f"{' and '.join(result.missing)} did not arrive")
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, why))
        span.end()
