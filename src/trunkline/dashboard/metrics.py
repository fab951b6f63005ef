"""What a hub or a bus counts, for Prometheus.

Labels are patterns and names of durable subscriptions, at most 200 of each: never ids, reply topics, endpoints or names
that change with every start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import msgspec

from trunkline.bus.bus import Bus
from trunkline.delivery.fates import Account
from trunkline.delivery.subscribers import MAX_PATTERNS, OTHER_PATTERNS, group_of
from trunkline.errors import MissingExtra, UsageError
from trunkline.hub.hub import Hub
from trunkline.hub.snapshot import MAX_ROWS, snapshot_of
from trunkline.wire.snapshot import HubSnapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

COLLECT_S = 10.0
"""How long a scrape waits for the event loop."""
FATES = ("delivered", "filtered", "expired", "dropped", "dead")


class MetricsReading(msgspec.Struct, frozen=True):
    """What is exported, as read in the event loop's thread."""

    gauges: dict[str, tuple[str, float]]
    counters: dict[str, tuple[str, float]]
    accounts: dict[str, Account]
    waiting: dict[str, int] = {}
    behind: dict[str, int] = {}


async def read_hub(hub: Hub) -> MetricsReading:
    snapshot = await snapshot_of(hub, MAX_ROWS)
    return MetricsReading(
        gauges={
            "hub_clients": ("Clients that are connected", snapshot.clients_total),
            "hub_subscribers": ("Subscribers, including durable ones without a client", snapshot.subscribers_total),
            "hub_topics": ("Topics that were published on", snapshot.topics_total),
            "hub_start_time_seconds": ("When the hub was started, in seconds since 1970", snapshot.since_ns / 1e9),
            "dead_letters": ("Dead letters that are kept", snapshot.dead_letters),
            "orphans": ("Answers without a request that are kept", snapshot.orphans),
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


async def read_bus(bus: Bus) -> MetricsReading:
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
            "bus_failed_messages": ("Messages that were refused, or died at a subscriber", stats.total_failed),
            "bus_unrouted_messages": ("Messages that had no subscriber", stats.unrouted),
        },
        accounts=bus.broker.served.accounts_by_pattern(),
    )


def export_bus(bus: Bus, registry: CollectorRegistry) -> None:
    """Have `registry` collect what the bus counts. Call it in the event loop of the bus; scrapes may use any thread."""
    _export(lambda: read_bus(bus), registry)


def export_hub(hub: Hub, registry: CollectorRegistry) -> None:
    """Have `registry` collect what the hub counts. Call it in the event loop of the hub; scrapes may use any thread.

    If the hub has a journal, a scrape in the thread of its event loop raises UsageError: the loop would wait for it.
    """
    _export(lambda: read_hub(hub), registry)


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


def _export(read: Callable[[], Coroutine[None, None, MetricsReading]], registry: CollectorRegistry) -> None:
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ImportError as error:
        raise MissingExtra("observe", "exporting metrics to Prometheus") from error
    loop = asyncio.get_running_loop()
    highest: dict[tuple[str, str], float] = {}

    def rising(name: str, label: str, value: float) -> float:
        """A counter must not fall, and fates do: a dead letter is replayed, a client comes back and reports."""
        highest[name, label] = value = max(value, highest.get((name, label), 0))
        return value

    class TrafficCollector:
        def collect(self) -> Iterator[Metric]:
            found = _in_loop(loop, read)
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


def _in_loop(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Coroutine[None, None, MetricsReading]]
) -> MetricsReading | None:
    """Read in the thread of the event loop. None after the loop has ended."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        return _at_once(read())
    if loop.is_closed():
        return None
    return asyncio.run_coroutine_threadsafe(read(), loop).result(COLLECT_S)


def _at_once(reading: Coroutine[None, None, MetricsReading]) -> MetricsReading:
    """The result of something that does not wait."""
    try:
        reading.send(None)
    except StopIteration as done:
        found: MetricsReading = done.value
        return found
    reading.close()
    raise UsageError("collect the metrics of a hub with a journal in another thread than that of its event loop")
