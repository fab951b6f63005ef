"""What does a publish cost if each is on a new topic, so that no route is cached?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.routing import MANY, publish, scan, sensors

# Fewer than `max_topics`, so that no side has the additional cost of evicting topics.
MAX_NEW = 60_000


def new_topics(subscriptions: int) -> Iterator[str]:
    return (f"sensor.{number}.n{i}" for i, number in zip(itertools.count(), sensors(subscriptions), strict=False))


async def new(subscriptions: int, count: int) -> Sample:
    return await publish(subscriptions, new_topics(subscriptions), min(count, MAX_NEW))


CASE = Case(
    name="routing-new",
    question="the same with a new topic on every publish: no route is known, each is looked up",
    unit="ns",
    better="less",
    ours=partial(new, MANY),
    peers={
        "1 subscription": partial(new, 1),
        "100 subscriptions": partial(new, 100),
        "linear scan of 10,000": scan,
    },
    target={"1 subscription": 0.7, "100 subscriptions": 0.7},
    size=300,
)
