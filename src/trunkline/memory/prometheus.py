"""The counters of shared-memory channels, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trunkline.errors import MissingExtra
from trunkline.memory.metrics import MemoryMetrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from trunkline.memory.registration import BusWithDirectory


def export_metrics(bus: BusWithDirectory, registry: CollectorRegistry) -> None:
    """Let `registry` collect the counters of all producers and consumers of `bus`, now and later, from any thread.

    This includes the consumers that are attached to these producers, and those that were opened with the bus.
    """
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise MissingExtra("observe", "exporting metrics to Prometheus") from error

    class FrameCollector:
        def collect(self) -> Iterator[Metric]:
            found = bus.memory_ends.metrics()
            counters = {
                "writes": "Frames sent",
                "written_bytes": "Bytes of frames sent",
                "given_up": "Loans that ended without a frame",
                "cut_off": "Consumers that the producer has stopped waiting for",
            }
            for name, text in counters.items():
                family = CounterMetricFamily(f"trunkline_frames_{name}", text, labels=["channel"])
                for each in found.producers:
                    family.add_metric([each.channel], getattr(each, name))
                yield family
            gauges = {
                "occupancy": "How full the queue of the slowest consumer is",
                "last_frame_s": "Age of the last frame",
            }
            for name, text in gauges.items():
                gauge = GaugeMetricFamily(f"trunkline_frames_{name}", text, labels=["channel"])
                for each in found.producers:
                    if (value := getattr(each, name)) is not None:
                        gauge.add_metric([each.channel], value)
                yield gauge
            labels = ["channel", "consumer", "pid"]
            for name, text in {"reads": "Frames received", "overruns": "Frames that were overwritten unread"}.items():
                family = CounterMetricFamily(f"trunkline_frames_{name}", text, labels=labels)
                for key, counts in _consumers(found).items():
                    family.add_metric(list(key), counts[name])
                yield family
            held = GaugeMetricFamily("trunkline_frames_held", "Frames that are held", labels=labels)
            for key, counts in _consumers(found).items():
                held.add_metric(list(key), counts["held"])
            yield held

    registry.register(FrameCollector())


def _consumers(found: MemoryMetrics) -> dict[tuple[str, str, str], dict[str, int]]:
    """Consumers by channel, name and pid.

    The counters of the consumer itself come last and replace others, because they are exact.
    """
    reported = [each for channel in found.producers for each in channel.consumers]
    return {
        (each.channel, each.name, str(each.pid)): {"reads": each.reads, "overruns": each.overruns, "held": each.held}
        for each in (*reported, *found.consumers)
    }
