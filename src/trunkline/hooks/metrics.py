"""Counts published and refused messages, and optionally exports counters and durations to Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from trunkline.errors import MissingExtra, PartlyRefused, TrunklineError
from trunkline.hooks.hook import Attachment, Batch, Forward, Hook, Stage
from trunkline.message import Message

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram


BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Metrics(Hook):
    """`messages_published`, `bytes_published`, and `refused` by kind of error.

    A registry also gets two histograms. One has the time from the publish until a handler or actor of this bus gets the
    message, measured with the clocks of both processes. The other has the processing time of handlers and actors.
    """

    stage = Stage.METRICS

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.messages_published = 0
        self.bytes_published = 0
        self.refused: Counter[str] = Counter()
        self._times: tuple[Histogram, Histogram] | None = None if registry is None else _export(self, registry)

    def attach(self, bus: Attachment) -> None:
        self._bus = bus

    def handling(self, message: Message) -> AbstractContextManager[None]:
        return nullcontext() if self._times is None else self._timed(message, *self._times)

    @contextmanager
    def _timed(self, message: Message, arrival: Histogram, work: Histogram) -> Iterator[None]:
        arrival.observe(max(0.0, (self._bus.broker.world.time_ns() - message.timestamp_ns) / 1e9))
        begun = self._bus.now()
        try:
            yield
        finally:
            work.observe(self._bus.now() - begun)

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        try:
            await forward(batch)
        except PartlyRefused as error:
            self.refused.update(type(each).__name__ for _, each in error.refused)
            late = {message.id for message, _ in error.refused}
            self._count([message for message in batch if message.id not in late])
            raise
        except TrunklineError as error:
            self.refused[type(error).__name__] += len(batch)
            raise
        else:
            self._count(batch)

    def _count(self, batch: Batch) -> None:
        self.messages_published += len(batch)
        self.bytes_published += sum(len(message.payload) for message in batch)


def _export(metrics: Metrics, registry: CollectorRegistry) -> tuple[Histogram, Histogram]:
    try:
        from prometheus_client import Histogram
        from prometheus_client.core import CounterMetricFamily
    except ImportError as error:
        raise MissingExtra("observe", "exporting metrics to Prometheus") from error

    class Collector:
        def collect(self) -> list[CounterMetricFamily]:
            refused = CounterMetricFamily("trunkline_refused", "Messages that the bus refused", labels=["error"])
            for name, count in metrics.refused.items():
                refused.add_metric([name], count)
            return [
                CounterMetricFamily("trunkline_published", "Messages published", metrics.messages_published),
                CounterMetricFamily("trunkline_published_bytes", "Payload bytes published", metrics.bytes_published),
                refused,
            ]

    registry.register(Collector())
    return (
        Histogram(
            "trunkline_delivery_latency_seconds",
            "Time from the publisher of a message to a handler",
            buckets=BUCKETS_S,
            registry=registry,
        ),
        Histogram(
            "trunkline_handling_seconds", "Time that a handler took for a message", buckets=BUCKETS_S, registry=registry
        ),
    )
