"""The check: measures every case with a target or a limit, and compares the medians with the promises.

A promise is missed if the median is more than a fifth worse. A case that misses is measured again with twice the
rounds, and judged by the median of all rounds together. The second measurement adds data; it does not replace the
first. An `aim`, which goes beyond the promise, is shown but never judged.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from benchmarks.harness import LIMIT, MAX_ROUNDS, MIN_ROUNDS, Case, Result, Round, measure_rounds, measure_s, summarize

SLACK = 0.2
CHECK_S = 20.0
"""The time budget of a case whose size is fitted. It has at least five rounds, even if they take longer."""
AGAIN = 2
BUSY = 0.5
"""The check warns above this load per core: peers with several threads then get a larger share of the machine."""
ELSEWHERE = "not available on this system"


class Outcome(StrEnum):
    MET = "met"
    CLOSE = "within a fifth"
    MISSED = "MISSED"
    FAILED = "FAILED"
    NOT_CHECKED = "not checked"
    REPORTED = "not promised"


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one promise of a case: the ratio to a peer, or our value compared with the limit.

    If there is an aim but no promise, `promised` is None and nothing is judged.
    """

    case: str
    against: str
    unit: str
    promised: float | None
    measured: float | None
    outcome: Outcome
    aim: float | None = None
    rounds: int = 0
    spread: float = 0.0
    note: str = ""


def judge(case: Case, rounds: Sequence[Round]) -> list[Verdict]:
    """The verdicts on all promises of a case, from these rounds."""
    return [_verdict(case, promise, summarize(case, rounds, {}, {})) for promise in promises(case)]


def promises(case: Case) -> list[str]:
    """The peers with a target, LIMIT if there is one, and the peers with only an aim."""
    limit = [LIMIT] if case.limit is not None else []
    return [*case.target, *limit, *(peer for peer in case.aim if peer not in case.target)]


def _verdict(case: Case, against: str, result: Result) -> Verdict:
    if against not in result.ratios:
        return not_checked(case, against, case.absent.get(against, ELSEWHERE))
    measured = result.ours if against == LIMIT else result.ratios[against]
    promised = result.target.get(against)
    return Verdict(
        case=case.name,
        against=against,
        unit=_unit(case, against),
        promised=promised,
        measured=measured,
        outcome=outcome_of(measured, promised, better="less" if against == LIMIT else "more"),
        aim=case.aim.get(against),
        rounds=result.rounds,
        spread=result.spread,
    )


def outcome_of(measured: float, promised: float | None, *, better: Literal["more", "less"]) -> Outcome:
    """For a ratio, which is how many times better ours is, `better` is "more". For a limit it is "less"."""
    if promised is None:
        return Outcome.REPORTED
    if better == "more":
        met, close = measured >= promised, measured >= promised * (1 - SLACK)
    else:
        met, close = measured <= promised, measured <= promised * (1 + SLACK)
    return Outcome.MET if met else Outcome.CLOSE if close else Outcome.MISSED


def not_checked(case: Case, against: str, why: str, outcome: Outcome = Outcome.NOT_CHECKED) -> Verdict:
    """The verdict on a promise without a measurement."""
    promised = case.limit if against == LIMIT else case.target.get(against)
    return Verdict(case.name, against, _unit(case, against), promised, None, outcome, case.aim.get(against), note=why)


def _unit(case: Case, against: str) -> str:
    return case.unit if against == LIMIT else "×"


def kept(verdicts: Iterable[Verdict], named: bool) -> bool:
    """Whether the check succeeds. If cases were named on the command line, none of their promises may be left out."""
    bad = {Outcome.MISSED, Outcome.FAILED, *([Outcome.NOT_CHECKED] if named else [])}
    return not any(verdict.outcome in bad for verdict in verdicts)


# Estimates


def estimate_s(case: Case, budget_s: float, *, full: bool) -> float:
    """The approximate time of a case that is not measured again."""
    if skipped(case, full=full) is not None:
        return 0.0
    if case.fixed and case.round_s:
        scale = 1.0 if full or case.check_size is None else case.check_size / case.size
        rounds = case.rounds if case.rounds is not None else _fitting(case.round_s * scale, budget_s)
        return rounds * case.round_s * scale
    if case.fixed:
        return budget_s
    sides = 1 + len(case.peers)
    # Setup and teardown take about as long as the measurement itself. Fitting takes two measurements.
    return min(budget_s, 2 * measure_s(budget_s, sides) * sides * (MAX_ROUNDS + 2))


def _fitting(round_s: float, budget_s: float) -> int:
    return max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_s / max(round_s, 0.001))))


# Measuring


def skipped(case: Case, *, full: bool) -> str | None:
    """The reason why a case is not measured; None if it is."""
    if case.check_in_full_only and not full:
        return "takes long: use --full"
    if case.limit is None and not any(peer in case.peers for peer in case.target):
        return "; ".join(case.absent.get(peer, ELSEWHERE) for peer in case.target)
    return None


def check_case(case: Case, budget_s: float, note: Callable[[str], None], *, full: bool = False) -> list[Verdict]:
    """Measure and judge one case, and again if it misses. An error is also a verdict."""
    why = skipped(case, full=full)
    if why is not None:
        return [not_checked(case, against, why) for against in promises(case)]
    size = None if full else case.check_size
    try:
        rounds = measure_rounds(case, budget_s, size=size)
        verdicts = judge(case, rounds)
        if any(verdict.outcome is Outcome.MISSED for verdict in verdicts):
            note(f"{line(verdicts)}: measured again, with {AGAIN * len(rounds)} rounds")
            rounds += measure_rounds(case, budget_s, rounds=AGAIN * len(rounds), size=size)
            verdicts = judge(case, rounds)
    except Exception as error:
        note(traceback.format_exc())
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        return [not_checked(case, against, why, Outcome.FAILED) for against in promises(case)]
    return verdicts


def check(
    cases: Mapping[str, Case], budget_s: float, note: Callable[[str], None], *, full: bool = False
) -> list[Verdict]:
    """Check all these cases, one after another, with a note before and after each."""
    expected_s = sum(estimate_s(case, budget_s, full=full) for case in cases.values())
    note(f"{len(cases)} cases, about {duration(expected_s)} on two idle cores; what misses is measured again")
    if (load := os.getloadavg()[0]) > BUSY * (os.cpu_count() or 1):
        note(f"the load is {load:.1f}: a busy machine makes ratios against threads and processes of peers unreliable")
    verdicts: list[Verdict] = []
    began = time.perf_counter()
    for number, case in enumerate(cases.values(), 1):
        note(f"[{number}/{len(cases)}, {duration(time.perf_counter() - began)}] {case.name}: {case.question}")
        found = check_case(case, budget_s, note, full=full)
        note(line(found))
        verdicts += found
    note(f"took {duration(time.perf_counter() - began)}")
    return verdicts


# Showing


def line(verdicts: Sequence[Verdict]) -> str:
    return "  " + "; ".join(
        f"{each.against} {amount(each.measured, each.unit)} (promised {amount(each.promised, each.unit)})"
        f" {each.outcome}{f', {each.note}' if each.note else ''}"
        for each in verdicts
        if each.promised is not None
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """A table of all verdicts, with the problems below."""
    rows = [("case", "against", "promised", "measured", "aim", "rounds", "spread", "")]
    rows += [
        (
            each.case,
            each.against,
            amount(each.promised, each.unit),
            amount(each.measured, each.unit),
            amount(each.aim, each.unit),
            str(each.rounds or ""),
            f"{each.spread:.0%}" if each.rounds else "",
            f"{each.outcome}{f': {each.note}' if each.note else ''}",
        )
        for each in verdicts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row[:7], widths, strict=True))
        ]
        lines.append("  ".join([*cells, row[7]]).rstrip())
    count = {outcome: sum(each.outcome is outcome for each in verdicts) for outcome in Outcome}
    lines.append(", ".join(f"{number} {outcome}" for outcome, number in count.items() if number))
    return "\n".join(lines)


def documented(cases: Mapping[str, Case]) -> list[tuple[str, str, str, str]]:
    """The rows of the table in docs/benchmarks.md: case, peer or limit, promise, aim."""
    every = (not_checked(case, against, "") for case in cases.values() for against in promises(case))
    return [
        (f"`{each.case}`", each.against, amount(each.promised, each.unit), amount(each.aim, each.unit))
        for each in every
    ]


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    figure = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{figure} {unit}"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
