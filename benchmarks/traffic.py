"""Shared by the cases with a hub: workers publish, subscribe, send requests and answer, for any side."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Sample
from benchmarks.processes import Crew, Done, results
from benchmarks.servers import Place, Server

Work = Callable[..., Any]
"""A function for a worker. Its arguments are the line, an address, and usually a count."""


@dataclass(frozen=True)
class Pair:
    """A server, the function of the first worker, and the function of the other workers."""

    server: Server[Place]
    sends: Work
    takes: Work


def carry(pair: Pair, crew: Crew, count: int) -> list[Done]:
    """The first worker publishes `count` messages to all others. The results are the start time and the end times."""
    with pair.server.running() as place, crew.running() as (publisher, *subscribers):
        for subscriber in subscribers:
            subscriber.begin(pair.takes, place.address, count)
        for subscriber in subscribers:
            subscriber.ready()
        publisher.begin(pair.sends, place.address, count)
        return results([publisher, *subscribers])


def rate(count: int, pair: Pair, crew: Crew) -> Sample:
    """Deliveries per second, from the first publish to the last message received."""
    began, *ended = [done.value for done in carry(pair, crew, count)]
    took_s = (max(ended) - began) / 1e9
    return Sample(count * len(ended) / took_s, took_s)


def client_rate(count: int, pair: Pair, crew: Crew) -> Sample:
    """Deliveries per second of processor time of all clients together. A busy machine has little influence on it."""
    done = carry(pair, crew, count)
    cpu_s = sum(each.cpu_s for each in done)
    return Sample(count * (len(done) - 1) / cpu_s, cpu_s)


def ask(count: int, pair: Pair, crew: Crew) -> list[int]:
    """The first worker sends `count` requests to the second. Returns how long each took, in nanoseconds."""
    with pair.server.running() as place, crew.running() as (asker, responder):
        responder.begin(pair.takes, place.address)
        responder.ready()
        asker.begin(pair.sends, place.address, count)
        times: list[int] = asker.result().value
        responder.stop()
        responder.result()
        return times


def quantile(times_ns: list[int], percent: int) -> Sample:
    """The percentile of the times, in microseconds."""
    value = statistics.quantiles(times_ns, n=100, method="inclusive")[percent - 1] if len(times_ns) > 1 else times_ns[0]
    return Sample(value / 1e3, sum(times_ns) / 1e9)
