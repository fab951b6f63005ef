"""The harness: runs a case beside its peers, round by round, and boils the rounds down to one result.

What a case measures is in its own file; how a result is printed is in report.py.
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
    """One measurement: the figure, in the unit of its case, and how long the measured stretch took."""

    value: float
    took_s: float


Measure = Callable[[int], Sample | Coroutine[Any, Any, Sample]]
"""Measures once, with so many messages (or calls). A coroutine gets an event loop of its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question. `target` is the least ratio promised against a peer, `limit` the most that ours may be.

    `--check` fails if a promise is missed by more than a fifth. `aim` is what is wanted beyond the promise: it is
    reported, never asserted.
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
    """Peers with a target that are not installed, and what to do about it."""
    limit: float | None = None
    size: int = 1000
    """Messages (or calls) of the first try; from it follows the size that takes a fitting time."""
    fixed: bool = False
    """The size is part of the question: it is not fitted."""
    rounds: int | None = None
    """So many are enough; None: as many as fit the budget."""
    round_s: float = 0.0
    """About how long one round takes, where the size is fixed. Only the estimate of `--check` uses it."""
    check_size: int | None = None
    """The size with which `--check` measures, where the ratio at that size is the same; None: that of the case."""
    check_in_full_only: bool = False
    """Too long for `--check`, and meaningless with a smaller size: only `--check --full` measures it."""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """What all measurements share, such as the servers of the peers."""


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
"""The figures of one round, by side: ours and each peer."""


def run(
    case: Case,
    surroundings: tuple[dict[str, str | int], dict[str, str]],
    *,
    budget_s: float = BUDGET_S,
    rounds: int | None = None,
    size: int | None = None,
) -> Result:
    """Measure all sides of a case in interleaved rounds.

    Exactly `rounds`, or what the case says, or as many as fit the budget, at least 5 and at most 15. A given `size` is
    used for every side as it is; otherwise each side's is fitted, so that all measurements take about as long.
    """
    return summarize(case, measure_rounds(case, budget_s, rounds, size), *surroundings)


def measure_rounds(
    case: Case, budget_s: float = BUDGET_S, rounds: int | None = None, size: int | None = None
) -> list[Round]:
    """The rounds of `run`, before they are summed up."""
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
    with unbroken():
        gc.collect()
        sample = measure(size)
        return sample if isinstance(sample, Sample) else asyncio.run(sample)


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits for the end of the block; the second one does not.

    Raised anywhere inside, it may leave the lock of a peer's mailbox locked for ever, or be swallowed by a callback.
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
    """The size with which one measurement takes about `wanted_s`. The tries warm everything up as well."""
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
    """How long one measurement should take, so that the rounds fit the budget."""
    return min(MAX_MEASURE_S, max(MIN_MEASURE_S, budget_s / (sides * 2 * MAX_ROUNDS)))


def enough(done: int, wanted: int | None, *, left_s: float, longest_s: float) -> bool:
    """Whether to stop: the wanted rounds are done, or the most useful, or another might not fit."""
    if wanted is not None:
        return done >= wanted
    return done >= MAX_ROUNDS or (done >= MIN_ROUNDS and longest_s > left_s)


def order(sides: Sequence[str], number: int) -> list[str]:
    """Forth and back in turn, so that no side is always the first or the last."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def summarize(
    case: Case, rounds: Sequence[Round], host: Mapping[str, str | int], versions: Mapping[str, str]
) -> Result:
    """Medians of the figures, and medians of the ratios within each round; `spread` is that of the widest ratio."""
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
    """How many times better we are."""
    return ours / peer if better == "more" else peer / ours


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles, relative to the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def significant(value: float) -> float:
    """Four digits: more would be noise."""
    return float(f"{value:.4g}")
