"""`python -m benchmarks --check`: what counts as a missed bar, what is measured again, what is skipped."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import check
from benchmarks.__main__ import main
from benchmarks.cases import CASES, promised_cases
from benchmarks.check import Outcome, check_case, estimate_s, judge, kept, outcome_of, promises
from benchmarks.harness import LIMIT, Case, Measure, Round, Sample

ROOT = Path(__file__).parent.parent
FIGURES = st.floats(0.001, 1e6)


def constant(value: float) -> Measure:
    return lambda size: Sample(value, 0.001)


def series(*values: float) -> Measure:
    """A side that measures these, one after another."""
    left: Iterator[float] = iter(values)
    return lambda size: Sample(next(left), 0.001)


def case(**changes: Any) -> Case:
    given_fields: dict[str, Any] = {
        "name": "made-up",
        "question": "is the promise kept",
        "unit": "messages/s",
        "better": "more",
        "ours": constant(30.0),
        "peers": {"peer": constant(10.0)},
        "target": {"peer": 3.0},
        "size": 1,
        "fixed": True,
        "rounds": 3,
    }
    return Case(**{**given_fields, **changes})


def outcomes(verdicts: list[check.Verdict]) -> dict[str, Outcome]:
    return {verdict.against: verdict.outcome for verdict in verdicts}


# The decision


@given(FIGURES, FIGURES)
def test_a_ratio_may_fall_a_fifth_below_its_promise(measured: float, promised: float) -> None:
    outcome = outcome_of(measured, promised, better="more")
    assert (outcome is Outcome.MET) == (measured >= promised)
    assert (outcome is Outcome.MISSED) == (measured < promised * 0.8)


@given(FIGURES, FIGURES)
def test_a_value_may_be_a_fifth_above_its_limit(measured: float, promised: float) -> None:
    outcome = outcome_of(measured, promised, better="less")
    assert (outcome is Outcome.MET) == (measured <= promised)
    assert (outcome is Outcome.MISSED) == (measured > promised * 1.2)


@given(FIGURES, FIGURES, FIGURES)
def test_better_figures_never_make_the_outcome_worse(one: float, other: float, promised: float) -> None:
    rank = [Outcome.MISSED, Outcome.CLOSE, Outcome.MET]
    low, high = sorted((one, other))
    for better, worse, best in (("more", low, high), ("less", high, low)):
        ranked = [rank.index(outcome_of(each, promised, better=better)) for each in (worse, best)]  # type: ignore[arg-type]
        assert ranked == sorted(ranked)


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=15), st.sampled_from(["more", "less"]), FIGURES)
def test_the_median_of_the_ratios_of_the_rounds_is_judged(
    figures: list[tuple[float, float]], better: str, promised: float
) -> None:
    rounds: list[Round] = [{"ours": ours, "peer": peer} for ours, peer in figures]
    (verdict,) = judge(case(better=better, target={"peer": promised}), rounds)
    median = statistics.median(ours / peer if better == "more" else peer / ours for ours, peer in figures)
    assert verdict.measured is not None
    assert verdict.measured == pytest.approx(median, rel=1e-3)
    assert verdict.outcome is outcome_of(verdict.measured, promised, better="more")
    assert verdict.rounds == len(rounds)


@pytest.mark.parametrize(
    ("better", "ours", "outcome"),
    [
        ("more", 30.0, Outcome.MET),
        ("more", 24.1, Outcome.CLOSE),
        ("more", 23.9, Outcome.MISSED),
        ("less", 3.33, Outcome.MET),
        ("less", 4.1, Outcome.CLOSE),
        ("less", 4.2, Outcome.MISSED),
    ],
)
def test_rates_and_times_are_judged_in_their_direction(better: str, ours: float, outcome: Outcome) -> None:
    """Three times as good as a peer's 10: a rate of 30, or a time of 3.33."""
    assert outcomes(judge(case(better=better), [{"ours": ours, "peer": 10.0}])) == {"peer": outcome}


@pytest.mark.parametrize(("ours", "outcome"), [(300.0, "met"), (359.0, "within a fifth"), (361.0, "MISSED")])
def test_a_limit_needs_no_peer(ours: float, outcome: str) -> None:
    limited = case(better="less", unit="MB", peers={}, target={}, limit=300.0)
    (verdict,) = judge(limited, [{"ours": ours}])
    assert (verdict.against, verdict.promised, verdict.measured) == (LIMIT, 300.0, ours)
    assert verdict.outcome == outcome


def test_an_aim_is_reported_and_never_judged() -> None:
    aimed = case(
        target={"peer": 3.0},
        aim={"peer": 100.0, "other": 100.0},
        peers={"peer": constant(10.0), "other": constant(30.0)},
    )
    promised, only_aimed = judge(aimed, [{"ours": 30.0, "peer": 10.0, "other": 30.0}])
    assert (promised.outcome, promised.aim) == (Outcome.MET, 100.0)
    assert (only_aimed.outcome, only_aimed.promised, only_aimed.measured) == (Outcome.REPORTED, None, 1.0)
    assert kept([promised, only_aimed], named=True)


# Peers that are not there


def test_a_peer_that_is_not_installed_is_not_checked_and_the_reason_is_given() -> None:
    absent = case(peers={}, absent={"peer": "pip install '.[peer]'"})
    verdicts = check_case(absent, 1.0, pytest.fail)
    assert [(each.outcome, each.note, each.promised) for each in verdicts] == [
        (Outcome.NOT_CHECKED, "pip install '.[peer]'", 3.0)
    ]
    assert kept(verdicts, named=False)
    assert not kept(verdicts, named=True)


def test_the_peers_that_are_there_are_checked_all_the_same() -> None:
    partly = case(target={"peer": 3.0, "gone": 2.0})
    assert outcomes(check_case(partly, 1.0, pytest.fail)) == {"peer": Outcome.MET, "gone": Outcome.NOT_CHECKED}


# Measuring


def test_what_misses_is_measured_again_and_judged_by_all_rounds() -> None:
    notes: list[str] = []
    # Two bad rounds of three, then six good ones: of nine rounds seven are good.
    recovered = case(ours=series(10, 10, 30, 30, 30, 30, 30, 30, 30))
    (verdict,) = check_case(recovered, 1.0, notes.append)
    assert (verdict.outcome, verdict.rounds, verdict.measured) == (Outcome.MET, 9, 3.0)
    assert "again, with 6 rounds" in notes[0]


def test_the_first_rounds_count_when_it_is_measured_again() -> None:
    """Four good ones of the second six are not enough: the first three count as well."""
    lucky = case(ours=series(10, 10, 10, 30, 30, 30, 30, 10, 10))
    (verdict,) = check_case(lucky, 1.0, lambda text: None)
    assert (verdict.outcome, verdict.measured) == (Outcome.MISSED, 1.0)


def test_what_is_close_is_not_measured_again() -> None:
    (verdict,) = check_case(case(ours=constant(25.0)), 1.0, pytest.fail)
    assert (verdict.outcome, verdict.rounds) == (Outcome.CLOSE, 3)


def test_an_error_in_a_case_is_a_verdict_and_the_others_are_measured() -> None:
    def broken(size: int) -> Sample:
        raise OSError("no server")

    notes: list[str] = []
    verdicts = check.check({"broken": case(name="broken", ours=broken), "fine": case(name="fine")}, 1.0, notes.append)
    assert [(each.case, each.outcome, each.note) for each in verdicts] == [
        ("broken", Outcome.FAILED, "OSError: no server"),
        ("fine", Outcome.MET, ""),
    ]
    assert not kept(verdicts, named=False)
    assert any("Traceback" in text for text in notes)


def test_a_case_is_checked_with_its_smaller_size_unless_in_full() -> None:
    sizes: list[int] = []

    def ours(size: int) -> Sample:
        sizes.append(size)
        return Sample(30.0, 0.001)

    large = case(ours=ours, size=1000, check_size=10, rounds=1)
    check_case(large, 1.0, pytest.fail)
    check_case(large, 1.0, pytest.fail, full=True)
    assert sizes == [10, 1000]


def test_what_takes_long_is_left_out_unless_in_full() -> None:
    (left_out,) = check_case(case(check_in_full_only=True, ours=pytest.fail), 1.0, pytest.fail)
    assert (left_out.outcome, left_out.note) == (Outcome.NOT_CHECKED, "takes long: use --full")
    (measured,) = check_case(case(check_in_full_only=True), 1.0, pytest.fail, full=True)
    assert measured.outcome is Outcome.MET


def test_the_estimate() -> None:
    assert estimate_s(case(rounds=3, round_s=10.0), 20.0, full=False) == 30.0
    assert estimate_s(case(rounds=3, round_s=10.0, size=100, check_size=10), 20.0, full=False) == 3.0
    assert estimate_s(case(rounds=3, round_s=10.0, size=100, check_size=10), 20.0, full=True) == 30.0
    assert estimate_s(case(rounds=None, round_s=10.0), 20.0, full=False) == 50.0
    assert estimate_s(case(rounds=None, fixed=False), 20.0, full=False) <= 20.0
    assert estimate_s(case(rounds=1, round_s=0.0), 20.0, full=False) == 20.0
    assert estimate_s(case(check_in_full_only=True, round_s=10.0), 20.0, full=False) == 0.0


# All cases


def test_every_promise_is_checked() -> None:
    promised = promised_cases()
    assert set(promised) - set(CASES) == {"hub@zmq+ipc"}
    assert all(promises(each) for each in promised.values())
    for name, each in CASES.items():
        assert (name in promised) == bool(each.target or each.limit is not None)


def test_the_documented_promises_are_those_of_the_cases() -> None:
    wanted = [" ".join(f"| {' | '.join(row)} |".split()) for row in check.documented(promised_cases())]
    _, _, table = (ROOT / "docs/benchmarks.md").read_text().partition("| case | against | promised | aim |\n")
    assert table.splitlines()[1 : len(wanted) + 1] == wanted
    assert not table.splitlines()[len(wanted) + 1 :]


# The command line


def test_a_broken_promise_exits_with_1_and_the_table_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "made-up", case(ours=constant(1.0)))
    monkeypatch.setitem(CASES, "kept", case(name="kept"))
    assert main(["--check", "made-up", "kept"]) == 1
    *_, missed, met, total = capsys.readouterr().out.splitlines()
    assert missed.split()[:6] == ["made-up", "peer", "3", "×", "0.1", "×"]
    assert missed.endswith("MISSED")
    assert met.endswith("met")
    assert total == "1 met, 1 MISSED"
    assert main(["--check", "kept"]) == 0


def test_json_is_one_object_per_promise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "made-up", case(aim={"peer": 9.0}))
    assert main(["--check", "made-up", "--json"]) == 0
    captured = capsys.readouterr()
    (verdict,) = map(json.loads, captured.out.splitlines())
    assert verdict["case"] == "made-up"
    assert (verdict["promised"], verdict["measured"], verdict["aim"], verdict["outcome"]) == (3.0, 3.0, 9.0, "met")
    assert "made-up: is the promise kept" in captured.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--check", "inprc"], "did you mean 'inproc'"),
        (["--check", "made-up"], "'made-up' has no target"),
        (["--check", "hub", "--transport", "tcp"], "--check has its own rounds"),
        (["--check", "hub", "--rounds", "3"], "--check has its own rounds"),
        (["inproc", "--full"], "--full belongs to --check"),
    ],
)
def test_wrong_usage(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "made-up", case(target={}))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
