"""Head sampling: which publishes start a trace, decided before the hooks run.

OpenTelemetry's samplers of a share decide by the trace id, which is random. So the publishes between two sampled ones
can be counted out beforehand, by one draw from the geometric distribution: the others need no trace id and no span.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

_LOW = (1 << 64) - 1
"""What TraceIdRatioBased looks at."""


class HeadSampling:
    """Counts out the publishes that start no trace. One that is part of a trace is decided by its parent."""

    def __init__(self, tracer: Any, bound: int, unsampled: Context, current: Callable[[], Context]) -> None:
        self.left = 0
        """So many publishes outside of any trace are not sampled, then comes one that is."""
        self.current = current
        """The context that this code runs in; it is empty outside of any trace."""
        self.unsampled = unsampled
        """The context in which a message that is not sampled is handled."""
        self._bound = bound
        self._ids = tracer.id_generator
        self.tracer: Tracer = copy.copy(tracer)
        """For the publishes that are sampled. Its sampler still decides, by trace ids that it accepts."""
        self.tracer.id_generator = _SampledIds(self._ids, bound)
        self.draw()

    def draw(self) -> None:
        """How many are not sampled before the next one that is."""
        if not self._bound:
            self.left = sys.maxsize
            return
        share = ((self._ids.generate_trace_id() & _LOW) + 0.5) / (_LOW + 1)
        self.left = int(math.log(share) / math.log1p(-self._bound / (_LOW + 1)))

    def skip(self) -> bool:
        """Whether the next publish outside of any trace is not sampled. The one after that is decided anew."""
        if self.left:
            self.left -= 1
            return True
        self.draw()
        return False


class _SampledIds:
    """Trace ids that the sampler accepts, as random as those of the generator they come from."""

    def __init__(self, ids: Any, bound: int) -> None:
        self._ids = ids
        self._bound = bound

    def generate_trace_id(self) -> int:
        trace_id: int = self._ids.generate_trace_id()
        low = (trace_id & _LOW) * self._bound >> 64
        return (trace_id & ~_LOW | low) or 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)


def head_sampling(tracer: Any) -> HeadSampling | None:
    """For a tracer of OpenTelemetry's SDK that samples a share of new traces by their ids, or none; otherwise None.

    Other samplers may look at names and attributes: they are asked for every span.
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


def current_context() -> Callable[[], Context]:
    """OpenTelemetry's `get_current`, without the two calls around its context variable if it has one."""
    from opentelemetry import context

    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return variable.get if isinstance(variable, ContextVar) else context.get_current


def _bound_of_new_traces(sampler: object) -> int | None:
    """Below which the low half of a trace id must be for a trace to be sampled; None if other things count."""
    try:
        from opentelemetry.sdk.trace import sampling
    except ImportError:
        return None
    if isinstance(sampler, sampling.ParentBased):
        sampler = getattr(sampler, "_root", None)
    if sampler is sampling.ALWAYS_OFF:
        return 0
    return sampler.bound if type(sampler) is sampling.TraceIdRatioBased else None
