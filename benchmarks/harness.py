"""The harness: runs a case and its peers in rounds, and summarizes the rounds in one result.

Each case is defined in its own file. Results are printed by report.py.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

MIN_ROUNDS = 5
MAX_ROUNDS = 15
BUDGET_S = 60.0
MIN_MEASURE_S = 0.2
MAX_MEASURE_S = 0.5
MAX_TRIES = 6
GROWTH = 100
LONG_ENOUGH = 0.05
OURS = "ours"
LIMIT = "limit"


class Sample(NamedTuple):
    """One measurement: the value in the unit of its case, and the duration of the measured part."""

    value: float
    took_s: float


Measure = Callable[[int], Sample | Coroutine[Any, Any, Sample]]
"""Measures once, with this number of messages (or calls). A coroutine runs in its own event loop."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question. `target` is the least promised ratio to a peer. `limit` is the highest value allowed for ours.

    `--check` fails if a promise is missed by more than a fifth. An `aim` goes beyond the promise: it is reported, never
    asserted.
    """

    name: str
    question: str
    unit: str
    better: Literal["more", "less"]
    ours: Measure
    peers: Mapping[str, Measure] = field(default_factory=dict)
    target: Mapping[str, float] = field(default_factory=dict)
    aim: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    """Peers with a target that are not installed, each with the remedy."""
    limit: float | None = None
    size: int = 1000
    """Messages (or calls) of the first try. From its duration, a size that takes a suitable time is computed."""
    fixed: bool = False
    """Whether the size is part of the question, and is not fitted."""
    rounds: int | None = None
    """The number of rounds; None: as many as fit the budget."""
    round_s: float = 0.0
    """The approximate duration of a round with a fixed size. Only the estimate of `--check` uses it."""
    check_size: int | None = None
    """The size for `--check`, if the ratio is the same at that size; None: the size of the case."""
    check_in_full_only: bool = False
    """Whether only `--check --full` measures it: it takes long, and a smaller size would be meaningless."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """The context of all measurements, such as the servers of the peers."""


class Result(msgspec.Struct, frozen=True):
    case: str
    unit: str
    ours: float
    peers: dict[str, float]
    ratios: dict[str, float]
    spread: float
    host: dict[str, str | int]
    target: dict[str, float]
    aim: dict[str, float]
    met: bool
    rounds: int
    versions: dict[str, str]


Round = dict[str, float]
"""The values of one round by side: ours and each peer."""


def run(
    case: Case,
    surroundings: tuple[dict[str, str | int], dict[str, str]],
    *,
    budget_s: float = BUDGET_S,
    rounds: int | None = None,
    size: int | None = None,
) -> Result:
    """Measure all sides of a case in interleaved rounds.

    The number of rounds is `rounds`, or that of the case, or as many as fit the budget, at least 5 and at most 15. A
    given `size` is used for all sides. Otherwise the size of each side is fitted, so that all measurements take about
    the same time.
    """
    return summarize(case, measure_rounds(case, budget_s, rounds, size), *surroundings)


def measure_rounds(
    case: Case, budget_s: float = BUDGET_S, rounds: int | None = None, size: int | None = None
) -> list[Round]:
    """The rounds of `run`, before they are summarized."""
    with case.around():
        return _rounds(case, budget_s, case.rounds if rounds is None else rounds, size)


def _rounds(case: Case, budget_s: float, rounds: int | None, size: int | None) -> list[Round]:
    began = time.perf_counter()
    sides: dict[str, Measure] = {OURS: case.ours, **case.peers}
    wanted_s = measure_s(budget_s, len(sides))
    sizes: dict[str, int] = {}
    for name, measure in sides.items():
        sizes[name] = size or (case.size if case.fixed else fit(measure, case.size, wanted_s))
    done: list[Round] = []
    longest_s = 0.0
    while not enough(len(done), rounds, left_s=budget_s - (time.perf_counter() - began), longest_s=longest_s):
        start = time.perf_counter()
        done.append({name: take(sides[name], sizes[name]).value for name in order(list(sides), len(done))})
        longest_s = max(longest_s, time.perf_counter() - start)
    return done


def take(measure: Measure, size: int) -> Sample:
    with unbroken(), frozen():
        sample = measure(size)
        return sample if isinstance(sample, Sample) else asyncio.run(sample)


@contextmanager
def frozen() -> Iterator[None]:
    """The garbage collector ignores objects that exist now.

    Otherwise the result depends on the modules that the process has imported: with those of all cases, a `tell` of
    pykka takes 2.6 to 3.4 µs instead of 2.1, because the envelopes in its mailbox cause collections of all objects.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def unbroken() -> Iterator[None]:
    """The first Ctrl-C takes effect at the end of the block; the second takes effect at once.

    KeyboardInterrupt inside the block could leave the lock of a peer's mailbox locked, or be swallowed by a callback.
    """
    interrupts: list[int] = []

    def note(number: int, frame: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def fit(measure: Measure, size: int, wanted_s: float) -> int:
    """The size with which one measurement takes about `wanted_s`. The tries also serve as warm-up."""
    fitting = size
    for _ in range(MAX_TRIES):
        took_s = max(take(measure, size).took_s, 1e-6)
        fitting = max(1, round(size * wanted_s / took_s))
        if took_s >= wanted_s * LONG_ENOUGH:
            break
        size = min(fitting, GROWTH * size)
    return fitting


# Pure from here on


def measure_s(budget_s: float, sides: int) -> float:
    """The duration of one measurement with which the rounds fit the budget."""
    return min(MAX_MEASURE_S, max(MIN_MEASURE_S, budget_s / (sides * 2 * MAX_ROUNDS)))


def enough(done: int, wanted: int | None, *, left_s: float, longest_s: float) -> bool:
    """Whether to stop: the wanted rounds are done, or MAX_ROUNDS, or another round might exceed the budget."""
    if wanted is not None:
        return done >= wanted
    return done >= MAX_ROUNDS or (done >= MIN_ROUNDS and longest_s > left_s)


def order(sides: Sequence[str], number: int) -> list[str]:
    """The order of sides, reversed in every second round, so that no side is always first or last."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def summarize(
    case: Case, rounds: Sequence[Round], host: Mapping[str, str | int], versions: Mapping[str, str]
) -> Result:
    """The medians of the values and of the ratios within each round. `spread` is the widest spread of a ratio."""
    per_round: dict[str, list[float]] = {
        peer: [ratio(case.better, each[OURS], each[peer]) for each in rounds] for peer in case.peers
    }
    target = dict(case.target)
    wanted = dict(case.target)
    if case.limit is not None:
        per_round[LIMIT] = [case.limit / each[OURS] for each in rounds]
        target[LIMIT] = case.limit
        wanted[LIMIT] = 1.0
    ratios = {peer: statistics.median(values) for peer, values in per_round.items()}
    return Result(
        case=case.name,
        unit=case.unit,
        ours=significant(statistics.median(each[OURS] for each in rounds)),
        peers={peer: significant(statistics.median(each[peer] for each in rounds)) for peer in case.peers},
        ratios={peer: significant(value) for peer, value in ratios.items()},
        spread=significant(max((spread(values) for values in per_round.values()), default=0.0)),
        host=dict(host),
        target=target,
        aim=dict(case.aim),
        met=all(ratios[peer] >= least for peer, least in wanted.items() if peer in ratios),
        rounds=len(rounds),
        versions=dict(versions),
    )


def ratio(better: Literal["more", "less"], ours: float, peer: float) -> float:
    """How many times better ours is."""
    return ours / peer if better == "more" else peer / ours


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles, relative to the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def significant(value: float) -> float:
    """The value with four digits: more would be noise."""
    return float(f"{value:.4g}")
