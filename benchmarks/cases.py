"""All cases, by name, in the order they are listed and run."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import (
    actors,
    actors_ask,
    actors_many,
    actors_processes,
    backpressure,
    blocking_request,
    bubus,
    fanout,
    faststream_handler,
    handler,
    hub,
    hub_fanout,
    hub_latency,
    hub_loaded,
    hub_many,
    hub_memory,
    inproc,
    inproc_batch,
    journal,
    journal_arrow,
    journal_growth,
    journal_large,
    journal_latency,
    journal_many,
    journal_read,
    jupyter_cleanup,
    jupyter_hop,
    jupyter_memory,
    jupyter_notebook,
    jupyter_open,
    jupyter_route,
    jupyter_rtt,
    memory,
    memory_bandwidth,
    memory_fanout,
    memory_latency,
    nats_durable,
    nats_engine,
    observe,
    redis_durable,
    redis_plain,
    request,
    request_waiting,
    routing,
    routing_new,
    spark_batch,
    spark_follow,
    spark_growth,
    spark_history,
    spark_prune,
    spark_sink,
    spark_small,
    spark_source,
    spark_start,
    spark_tail,
    stats,
    thread_publish,
    two_planes,
    zenoh,
)
from benchmarks.harness import Case
from benchmarks.hubs import TRANSPORTS, UNIX

_MODULES = (
    inproc,
    inproc_batch,
    bubus,
    fanout,
    request,
    request_waiting,
    blocking_request,
    thread_publish,
    memory,
    routing,
    routing_new,
    stats,
    handler,
    backpressure,
    observe,
    journal,
    journal_many,
    journal_read,
    journal_arrow,
    journal_latency,
    journal_growth,
    journal_large,
    spark_batch,
    spark_follow,
    spark_growth,
    spark_history,
    spark_prune,
    spark_sink,
    spark_small,
    spark_source,
    spark_start,
    spark_tail,
    jupyter_rtt,
    jupyter_route,
    jupyter_notebook,
    jupyter_open,
    jupyter_cleanup,
    jupyter_hop,
    jupyter_memory,
    actors,
    actors_ask,
    actors_many,
    actors_processes,
    memory_bandwidth,
    memory_latency,
    memory_fanout,
    two_planes,
    nats_engine,
    nats_durable,
    faststream_handler,
    redis_plain,
    redis_durable,
)
CASES: dict[str, Case] = {module.CASE.name: module.CASE for module in _MODULES}

_VARIANTS = (
    actors_many.MEMORY,
    memory_bandwidth.LARGE,
    memory_bandwidth.WALL,
    memory_bandwidth.WALL_LARGE,
    memory_latency.BLOCKING,
    observe.TRACES,
    nats_engine.LONE,
    redis_plain.WALL_CASE,
    redis_durable.WALL_CASE,
    spark_small.MORE,
)
CASES |= {case.name: case for case in _VARIANTS}

_ON_HUB: tuple[Callable[[str], Case], ...] = (
    hub.case,
    hub_many.case,
    hub_fanout.case,
    hub_latency.case,
    hub_latency.p99,
    hub_loaded.case,
    hub_loaded.paced,
    hub_memory.case,
    hub_memory.frozen,
    hub_memory.dropping,
)
ON_HUB: dict[str, Callable[[str], Case]] = {make(UNIX).name: make for make in _ON_HUB}
"""Those that run with any transport to a hub."""
CASES |= {name: make(UNIX) for name, make in ON_HUB.items()}
CASES[zenoh.CASE.name] = zenoh.CASE


def promised_cases() -> dict[str, Case]:
    """Those with a target or a limit. Of the other transports, those with a target of their own."""
    elsewhere = [make(each) for make in ON_HUB.values() for each in TRANSPORTS if each != UNIX]
    every = [*CASES.values(), *(case for case in elsewhere if case.target)]
    return {case.name: case for case in every if case.target or case.limit is not None}
