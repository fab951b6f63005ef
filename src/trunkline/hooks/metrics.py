"""Count what is published and refused, and export it to Prometheus if asked to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trunkline.errors import MissingExtra, PartlyRefused, TrunklineError
from trunkline.hooks.hook import Batch, Forward, Hook, Stage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics(Hook):
    """`messages_published`, `bytes_published`, and `refused` by kind of error."""

    stage = Stage.METRICS

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.messages_published = 0
        self.bytes_published = 0
        self.refused: Counter[str] = Counter()
        if registry is not None:
            _export(self, registry)

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


def _export(metrics: Metrics, registry: CollectorRegistry) -> None:
    try:
        from prometheus_client.core import CounterMetricFamily
    except ImportError as error:
        raise MissingExtra("observe", "exporting metrics to Prometheus") from error

    class Collector:
        def collect(self) -> list[CounterMetricFamily]:
            refused = CounterMetricFamily("trunkline_refused", "Messages the bus did not take", labels=["error"])
            for name, count in metrics.refused.items():
                refused.add_metric([name], count)
            return [
                CounterMetricFamily("trunkline_published", "Messages published", metrics.messages_published),
                CounterMetricFamily("trunkline_published_bytes", "Payload bytes published", metrics.bytes_published),
                refused,
            ]

    registry.register(Collector())
