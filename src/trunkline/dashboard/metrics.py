"""Metrics of a hub or a bus for Prometheus.

Labels are patterns and names of durable subscriptions, at most 200 of each. Ids, reply topics, endpoints and names that
change with every start are never labels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec

from trunkline.brokers.store import StoreSummary
from trunkline.bus.bus import Bus
from trunkline.delivery.fates import Account
from trunkline.delivery.subscribers import MAX_PATTERNS, OTHER_PATTERNS, group_of
from trunkline.errors import MissingExtra
from trunkline.hub.hub import Hub
from trunkline.hub.snapshot import MAX_ROWS, snapshot_with
from trunkline.wire.snapshot import HubSnapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

log = logging.getLogger("trunkline.metrics")

COLLECT_S = 10.0
"""The longest time a scrape waits for the event loop."""
FATES = ("delivered", "filtered", "expired", "dropped", "dead")


class MetricsReading(msgspec.Struct, frozen=True):
    """The exported values, read in the thread of the event loop."""

    gauges: dict[str, tuple[str, float]]
    counters: dict[str, tuple[str, float]]
    accounts: dict[str, Account]
    waiting: dict[str, int] = {}
    behind: dict[str, int] = {}


class MetricsSource(Protocol):
    async def read(self) -> MetricsReading:
        """Read the values in the event loop, for a scrape in another thread."""

    def read_now(self) -> MetricsReading:
        """Read the values for a scrape in the thread of the event loop, which must not wait."""


class HubMetrics:
    """The metrics of a hub. Its journal is read in another thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._kept: StoreSummary | None = None
        """The summary of the journal when it was last read."""
        self._reading: asyncio.Task[MetricsReading] | None = None

    async def read(self) -> MetricsReading:
        if self._hub.store is not None:
            self._kept = await self._hub.store.summary()
        return _read_hub(self._hub, self._kept)

    def read_now(self) -> MetricsReading:
        """Values of the journal are those of the previous scrape. This scrape starts to read them for the next one."""
        if self._hub.store is not None and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self.read())
            self._reading.add_done_callback(_report)
        return _read_hub(self._hub, self._kept)


def _report(reading: asyncio.Task[MetricsReading]) -> None:
    if not reading.cancelled() and (error := reading.exception()) is not None:
        log.warning("the journal could not be read for metrics: %s", error)


def _read_hub(hub: Hub, kept: StoreSummary | None) -> MetricsReading:
    snapshot = snapshot_with(hub, MAX_ROWS, kept)
    stored = (
        {}
        if kept is None and hub.store is not None
        else {
            "dead_letters": ("Dead letters that are kept", snapshot.dead_letters),
            "orphans": ("Answers without a request that are kept", snapshot.orphans),
        }
    )
    return MetricsReading(
        gauges={
            **stored,
            "hub_clients": ("Clients that are connected", snapshot.clients_total),
            "hub_subscribers": ("Subscribers, including durable ones without a client", snapshot.subscribers_total),
            "hub_topics": ("Topics that were published on", snapshot.topics_total),
            "hub_start_time_seconds": ("When the hub was started, in seconds since 1970", snapshot.since_ns / 1e9),
        },
        counters={
            "hub_published_messages": ("Messages that clients have published", snapshot.published),
            **{
                f"hub_{name}": (f"How often the hub has counted: {name.replace('_', ' ')}", count)
                for name, count in sorted(snapshot.counts.items())
            },
        },
        accounts=hub.broker.served.accounts_by_pattern(),
        waiting=_waiting(snapshot),
        behind=_behind(snapshot),
    )


def _waiting(snapshot: HubSnapshot) -> dict[str, int]:
    waiting: dict[str, int] = {}
    for each in snapshot.subscribers:
        pattern = _bounded(group_of(each.pattern), waiting)
        waiting[pattern] = waiting.get(pattern, 0) + each.waiting
    return waiting


def _behind(snapshot: HubSnapshot) -> dict[str, int]:
    behind: dict[str, int] = {}
    for each in snapshot.subscribers:
        if each.durable:
            name = _bounded(each.group or each.name, behind)
            behind[name] = max(behind.get(name, 0), each.behind)
    return behind


def _bounded(label: str, known: dict[str, int]) -> str:
    return label if label in known or len(known) < MAX_PATTERNS else OTHER_PATTERNS


class BusMetrics:
    """The metrics of a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def read(self) -> MetricsReading:
        return self.read_now()

    def read_now(self) -> MetricsReading:
        return _read_bus(self._bus)


def _read_bus(bus: Bus) -> MetricsReading:
    stats = bus.stats()
    return MetricsReading(
        gauges={
            "bus_subscribers": ("Subscribers in this process", stats.subscribers),
            "bus_open_requests": ("Requests that wait for an answer", stats.open_requests),
            "dead_letters": ("Dead letters that are kept", stats.dead_letters),
            "orphans": ("Answers without a request that are kept", stats.orphans),
        },
        counters={
            "bus_published_messages": ("Messages that the bus has accepted", stats.total_messages),
            "bus_refused_messages": ("Messages for which the publisher got an error", stats.total_refused),
            "bus_failed_messages": ("Messages that were refused, or became dead letters", stats.total_failed),
            "bus_unrouted_messages": ("Messages that had no subscriber", stats.unrouted),
        },
        accounts=bus.broker.served.accounts_by_pattern(),
    )


def export_bus(bus: Bus, registry: CollectorRegistry) -> None:
    """Register the metrics of a bus. Call it in the event loop of the bus. Scrapes may use any thread."""
    _export(BusMetrics(bus), registry)


def export_hub(hub: Hub, registry: CollectorRegistry) -> None:
    """Register the metrics of a hub. Call it in the event loop of the hub. Scrapes may use any thread.

    A scrape in the thread of that event loop does not wait for the journal. Dead letters, orphans and the lag of
    durable subscriptions are then those of the previous scrape. The first scrape does not have them.
    """
    _export(HubMetrics(hub), registry)


def serve_metrics(
    source: Bus | Hub, port: int, host: str = "127.0.0.1", registry: CollectorRegistry | None = None
) -> AbstractContextManager[int]:
    """Serve /metrics of a bus or a hub, in a thread: `with serve_metrics(bus, 9421): ...`, in its event loop.

    Yields the port, which the system chooses if the port is 0. Other metrics in `registry` are served as well. Raises
    OSError if the port is taken.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise MissingExtra("observe", "serving metrics to Prometheus") from error

    @contextmanager
    def serving() -> Iterator[int]:
        served = CollectorRegistry() if registry is None else registry
        if isinstance(source, Hub):
            export_hub(source, served)
        else:
            export_bus(source, served)
        server, thread = start_http_server(port, host, served)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return serving()


def _export(source: MetricsSource, registry: CollectorRegistry) -> None:
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise MissingExtra("observe", "exporting metrics to Prometheus") from error
    loop = asyncio.get_running_loop()
    highest: dict[tuple[str, str], float] = {}

    def rising(name: str, label: str, value: float) -> float:
        """The highest value of a counter so far: a counter must never decrease.

        Counts of fates can decrease after a replay, or when a client reconnects and reports.
        """
        highest[name, label] = value = max(value, highest.get((name, label), 0))
        return value

    class TrafficCollector:
        def collect(self) -> Iterator[Metric]:
            found = _in_loop(loop, source)
            if found is None:
                return
            for name, (text, value) in found.gauges.items():
                yield GaugeMetricFamily(f"trunkline_{name}", text, value)
            for name, (text, value) in found.counters.items():
                yield CounterMetricFamily(f"trunkline_{name}", text, rising(name, "", value))
            fates = CounterMetricFamily(
                "trunkline_deliveries",
                "Messages by the pattern of a subscriber and their fate",
                labels=["pattern", "fate"],
            )
            flight = GaugeMetricFamily(
                "trunkline_deliveries_in_flight", "Messages without a fate yet", labels=["pattern"]
            )
            for pattern, account in found.accounts.items():
                for fate in FATES:
                    fates.add_metric([pattern, fate], rising(fate, pattern, getattr(account, fate)))
                flight.add_metric([pattern], account.in_flight)
            yield fates
            yield flight
            yield _gauge("waiting_messages", "Messages that wait at the hub for room", "pattern", found.waiting)
            yield _gauge("durable_behind_messages", "How far a durable subscription is behind", "name", found.behind)

    def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        gauge = GaugeMetricFamily(f"trunkline_{name}", text, labels=[label])
        for key, value in values.items():
            gauge.add_metric([key], value)
        return gauge

    registry.register(TrafficCollector())


def _in_loop(loop: asyncio.AbstractEventLoop, source: MetricsSource) -> MetricsReading | None:
    """Read in the thread of the event loop. None after the loop has ended."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        return source.read_now()
    if loop.is_closed():
        return None
    return asyncio.run_coroutine_threadsafe(source.read(), loop).result(COLLECT_S)
