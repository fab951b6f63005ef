"""What does a publish cost with many wildcard subscriptions, of which exactly one matches?

A hundred topics are used in turn, for any number of subscriptions. Nothing else changes. The peer is a linear scan, as
in a bus without an index: fnmatch against every pattern, then append.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, message
from trunkline import Message, connect

MANY = 10_000
TOPICS = 100
BURST = 1000


def sensors(subscriptions: int) -> Iterator[int]:
    """The sensors that report, one per topic, evenly spread over the subscriptions."""
    return itertools.cycle(number * subscriptions // TOPICS for number in range(TOPICS))


def known_topics(subscriptions: int) -> Iterator[str]:
    """The same hundred topics, repeated."""
    return itertools.cycle([f"sensor.{n}.r{i}" for i, n in zip(range(TOPICS), sensors(subscriptions), strict=False)])


async def publish(subscriptions: int, topics: Iterator[str], count: int) -> Sample:
    """Nanoseconds per publish. Subscribing, and emptying the inboxes between bursts, are not measured."""
    took_s = 0.0
    async with connect() as bus:
        # Directly at the broker, which is faster: each measurement needs 10,000 subscriptions.
        streams = [bus.broker.subscribe(f"sensor.{number}.*") for number in range(subscriptions)]
        used = [streams[number] for number in set(itertools.islice(sensors(subscriptions), TOPICS))]
        for topic in itertools.islice(known_topics(subscriptions), TOPICS):
            await bus.publish(topic, PAYLOAD)
        # Otherwise the first full collection would traverse the new objects during the measurement.
        gc.collect()
        for first in range(0, count, BURST):
            for stream in used:
                while stream.depth:
                    stream.try_recv()
            burst = list(itertools.islice(topics, min(BURST, count - first)))
            began = time.perf_counter()
            for topic in burst:
                await bus.publish(topic, PAYLOAD)
            took_s += time.perf_counter() - began
        for stream in streams:
            await stream.aclose()
        assert bus.stats().unrouted == 0
    return Sample(took_s / count * 1e9, took_s)


async def known(subscriptions: int, count: int) -> Sample:
    return await publish(subscriptions, known_topics(subscriptions), count)


def scan(count: int) -> Sample:
    """Nanoseconds per publish by linear scan."""
    inboxes: list[tuple[str, deque[Message]]] = [(f"sensor.{number}.*", deque()) for number in range(MANY)]
    topics = known_topics(MANY)
    began = time.perf_counter()
    for _ in range(count):
        topic = next(topics)
        for pattern, inbox in inboxes:
            if fnmatchcase(topic, pattern):
                inbox.append(message())
    took_s = time.perf_counter() - began
    return Sample(took_s / count * 1e9, took_s)


CASE = Case(
    name="routing",
    question="a publish on known topics with 10,000 wildcard subscriptions, one matches; beside fewer, and a scan",
    unit="ns",
    better="less",
    ours=partial(known, MANY),
    peers={
        "1 subscription": partial(known, 1),
        "100 subscriptions": partial(known, 100),
        "linear scan of 10,000": scan,
    },
    target={"1 subscription": 0.7, "100 subscriptions": 0.7},
    size=300,
)
