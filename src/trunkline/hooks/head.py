"""Head sampling: which publishes start a trace, decided before the hooks run.

OpenTelemetry's ratio samplers decide by the trace id, which is random. So the number of publishes until the next
sampled one can be drawn in advance from the geometric distribution. The publishes in between need no trace id and no
span. The messages of a run are not even counted one by one: the sampled ones are found when the run is closed.
"""

from __future__ import annotations

import copy
import math
import random
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from trunkline.delivery.plain_run import PlainRun
from trunkline.hooks.publish_span import PublishSpan, PublishSpans

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_LOW = (1 << 64) - 1
"""The part of the trace id that TraceIdRatioBased uses."""
_HIGH = ~_LOW
_DRAWN = 32
"""How many random numbers are drawn at a time. Drawn in a loop, each takes half as long as a single draw."""


class HeadSampling:
    """Counts the publishes that start no trace. For a publish inside a trace, its parent decides."""

    def __init__(
        self, tracer: Any, bound: int, unsampled: Context, current: Callable[[Context | None], Context | None]
    ) -> None:
        self.left = 0
        """The number of publishes outside of any trace until the next sampled one, without the undecided ones of runs.
        """
        self.current = current
        """Returns the current context. Outside of any trace, returns its argument or an empty context."""
        self.unsampled = unsampled
        """The context in which a message that is not sampled is handled."""
        self._bound = bound
        self._distances: list[int] = []
        self.tracer: Tracer = copy.copy(tracer)
        """For the publishes that are sampled. Its sampler still decides, by trace ids that it accepts."""
        self.tracer.id_generator = _SampledIds(tracer.id_generator, bound)
        self.spans = PublishSpans(self.tracer, type(unsampled)())
        self._draw()

    def _draw(self) -> None:
        """Draw the number of publishes until the next sampled one."""
        if not self._bound:
            self.left = sys.maxsize
            return
        if not self._distances:
            log, per_publish, draw = math.log, math.log1p(-self._bound / (_LOW + 1)), random.random
            self._distances = [int(log(1 - draw()) / per_publish) for _ in range(_DRAWN)]
        self.left = self._distances.pop()

    def start(self) -> PublishSpan:
        """The span of the next sampled publish."""
        self._draw()
        return self.spans.take()

    def skip(self) -> bool:
        """Whether the next publish outside of any trace is not sampled. Counts it."""
        if self.left:
            self.left -= 1
            return True
        self._draw()
        return False

    def decide(self, run: PlainRun) -> None:
        """Find the sampled messages among those that were appended to the run since the last call. Writes their spans.

        Such a span has no duration: appending to a run takes less than a microsecond.
        """
        index, count = run.decided, len(run)
        run.decided = count
        spans = self.spans
        while index + self.left < count:
            index += self.left
            span = spans.take()
            if self._distances:
                self.left = self._distances.pop()
            else:
                self._draw()
            run.traces[index] = span[1]
            at_ns = run.times[index]
            spans.write(span, (run.topic, run.ids[index], len(run.payloads[index])), at_ns, at_ns)
            index += 1
        self.left -= count - index


class _SampledIds:
    """Trace ids that the sampler accepts, as random as those of the generator they come from."""

    def __init__(self, ids: Any, bound: int) -> None:
        self._ids = ids
        new: Callable[[], int] = ids.generate_trace_id
        bits = random.getrandbits

        # Functions without `self`: in a class with `__getattr__`, attributes of `self` are slow.
        def generate_trace_id() -> int:
            trace_id = new()
            return (trace_id & _HIGH | (trace_id & _LOW) * bound >> 64) or 1

        def random_ids() -> tuple[int, int]:
            return (bits(64) << 64 | bits(64) * bound >> 64) or 1, bits(64) or 1

        self.generate_trace_id = generate_trace_id
        self.generate_ids = random_ids if _is_random(ids) else lambda: (generate_trace_id(), ids.generate_span_id())
        """The ids of a new trace and of its first span."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)


def head_sampling(tracer: Any) -> HeadSampling | None:
    """The head sampling for a tracer of OpenTelemetry's SDK that samples new traces by a ratio; otherwise None.

    Other samplers may use names and attributes, so they are called for every span.
    """
    bound = _bound_of_new_traces(getattr(tracer, "sampler", None))
    if bound is None or bound > _LOW or not hasattr(tracer, "id_generator"):
        return None
    from opentelemetry import trace
    from opentelemetry.context import Context

    ids = tracer.id_generator
    nobody = trace.SpanContext(ids.generate_trace_id(), ids.generate_span_id(), is_remote=False)
    unsampled = trace.set_span_in_context(trace.NonRecordingSpan(nobody), Context())
    return HeadSampling(tracer, bound, unsampled, current_context())


def _is_random(ids: object) -> bool:
    """Whether the ids consist only of random bits from `random`."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    return type(ids) is RandomIdGenerator


def traceparent(span: Span) -> str:
    """The W3C `traceparent` of a span."""
    about = span.get_span_context()
    return f"00-{about.trace_id:032x}-{about.span_id:016x}-{about.trace_flags:02x}"


def current_context() -> Callable[[Context | None], Context | None]:
    """OpenTelemetry's `get_current`, without the two calls around its context variable if it has one.

    Its argument is returned if there is no current context.
    """
    from opentelemetry import context

    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return variable.get if isinstance(variable, ContextVar) else lambda default: context.get_current() or default


def _bound_of_new_traces(sampler: object) -> int | None:
    """The bound for the low half of a sampled trace id; None for samplers that use other criteria."""
    try:
        from opentelemetry.sdk.trace import sampling
    except ImportError:
        return None
    if isinstance(sampler, sampling.ParentBased):
        sampler = getattr(sampler, "_root", None)
    if sampler is sampling.ALWAYS_OFF:
        return 0
    return sampler.bound if type(sampler) is sampling.TraceIdRatioBased else None
