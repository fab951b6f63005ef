"""Every benchmark runs once, tiny, so that it cannot rot; the harness computes correctly; the command line works."""

from __future__ import annotations

import gc
import json
import os
import platform
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import harness, hub_cost, soak
from benchmarks.__main__ import main
from benchmarks.cases import CASES, ON_HUB
from benchmarks.harness import Case, Sample, run, summarize
from benchmarks.hubs import TRANSPORTS, UNIX
from benchmarks.report import as_json, as_table, listing, surroundings

KEYS = {"case", "unit", "ours", "peers", "ratios", "spread", "host", "target", "aim", "met", "rounds", "versions"}
TINY = 300
# Where each message is slow by design: a scan of 10,000 patterns, a consumer that takes its time, one every 4 ms.
# The size of some is a length of time.
TINIER = {
    "routing": 10,
    "routing-new": 10,
    "stats": 10,
    "backpressure": 1,
    "hub-loaded": 20,
    "hub-loaded-paced": 20,
    "hub-memory": 1,
    "hub-memory-frozen": 1,
    "hub-memory-dropping": 1,
    "spark-batch": 8000,
    "spark-follow": 1000,
    "spark-growth": 80_000,
    "spark-prune": 1000,
    "spark-small": 3,
    "spark-small-10k": 30,
    "journal-large": 40,
    "memory-bandwidth": 20,
    "memory-bandwidth-16mib": 5,
    "memory-bandwidth-wall": 20,
    "memory-bandwidth-wall16mib": 5,
    "memory-fanout": 5,
    "two-planes": 3,
    "nats-lone": 5,
    "observe-page": 1,
    "jupyter-rtt": 3,
    "jupyter-notebook": 8,
}
# The clients of jupyter_client leave threads and event loops behind, Ray leaves processes: not in this one.
ELSEWHERE = {"jupyter-rtt", "jupyter-route", "jupyter-notebook", "actors-processes"}
# Where the question itself takes many seconds.
LONG = {"spark-batch", "spark-growth", "spark-history", "spark-sink", "spark-source", "spark-start", "spark-tail"}
LONG |= {"spark-follow", "spark-prune", "spark-small", "spark-small-10k"}
# Or where another one in the same file, or of the same kind, is run anyway.
LONG |= {
    "routing-new",
    "hub-loaded",
    "hub-loaded-paced",
    "hub-fanout",
    "hub-latency-p99",
    "hub-memory-frozen",
    "hub-memory-dropping",
}
LONG |= {"jupyter-route", "jupyter-notebook", "jupyter-rtt", "redis-wall", "redis-durable-wall"}
LONG |= {"actors-processes", "journal-large", "memory-fanout"}
LONG |= {"memory-bandwidth-16mib", "memory-bandwidth-wall", "memory-bandwidth-wall16mib"}
HOST: dict[str, str | int] = {"cpu": "a cpu", "cores": 2, "python": "CPython 3", "os": "Linux 6"}
VERSIONS = {"trunkline": "1"}


def constant(value: float) -> harness.Measure:
    return lambda size: Sample(value, 0.001 * size)


def case(**changes: Any) -> Case:
    given_fields: dict[str, Any] = {
        "name": "made-up",
        "question": "does the harness work",
        "unit": "messages/s",
        "better": "more",
        "ours": constant(30.0),
        "peers": {"peer": constant(10.0)},
        "size": 1,
        "fixed": True,
    }
    return Case(**{**given_fields, **changes})


def named_case(name: str, transport: str) -> Case:
    return case(name=f"{name}@{transport}")


def measured(name: str) -> Any:
    return json.loads(as_json(run(CASES[name], surroundings(), rounds=1, size=TINIER.get(name, TINY))))


def measured_elsewhere(name: str) -> Any:
    program = f"from tests.test_benchmarks import measured; import json; print(json.dumps(measured({name!r})))"
    root = Path(harness.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


# The cases


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.long) if each in LONG else each for each in CASES]
)
def test_each_case_runs_and_reports_everything(name: str) -> None:
    result = measured_elsewhere(name) if name in ELSEWHERE else measured(name)
    assert set(result) == KEYS
    assert result["case"] == name
    assert result["rounds"] == 1
    assert result["ours"] > 0
    assert set(result["peers"]) == set(CASES[name].peers)
    assert all(value > 0 for value in (*result["peers"].values(), *result["ratios"].values()))
    assert set(result["target"]) <= {*result["ratios"], *CASES[name].absent}


@pytest.mark.parametrize("name", CASES)
def test_each_case_has_targets_and_aims_only_for_its_peers(name: str) -> None:
    known = {*CASES[name].peers, *CASES[name].absent}
    assert {*CASES[name].target, *CASES[name].aim} <= known


@pytest.mark.parametrize("name", CASES)
def test_an_aim_is_beyond_what_is_promised(name: str) -> None:
    chosen = CASES[name]
    assert all(chosen.aim[peer] > chosen.target[peer] for peer in chosen.aim if peer in chosen.target)


FILES = {"nats": "nats_core", "nats-lone": "nats_core", "faststream": "faststream_handler"}
FILES |= dict.fromkeys(("redis", "redis-wall"), "redis_pubsub")
"""Cases whose file would have the name of the package that they measure."""


def test_each_file_of_a_case_is_short() -> None:
    folder = Path(harness.__file__).parent
    for name in CASES:
        # A variant of a case is in the same file.
        names = (FILES.get(name, name), name.rpartition("-")[0])
        path = next(path for each in names if (path := folder / f"{each.replace('-', '_')}.py").exists())
        # With a peer that needs a server and a program, it takes more.
        limit = 180 if path.stem in ("nats_core", "nats_durable", "faststream_handler") else 100
        assert len(path.read_text(encoding="utf-8").splitlines()) < limit


@pytest.mark.parametrize("transport", [each for each in TRANSPORTS if each != UNIX])
def test_a_case_with_a_hub_runs_with_each_transport(transport: str) -> None:
    result = run(ON_HUB["hub-latency"](transport), surroundings(), rounds=1, size=10)
    assert result.case == f"hub-latency@{transport}"
    assert result.ours > 0


def test_only_what_was_promised_has_a_target_on_other_transports() -> None:
    targets = {(name, each): make(each).target for name, make in ON_HUB.items() for each in TRANSPORTS if each != UNIX}
    assert {key: target for key, target in targets.items() if target} == {("hub", "zmq+ipc"): {"nats-py": 2.0}}


def test_the_cost_of_a_message_is_told_by_process() -> None:
    costs = hub_cost.measure(UNIX, rounds=1, count=300)
    assert set(costs) == {"ours", *CASES["hub"].peers}
    assert all(each.took > 0 and each.publisher > 0 and each.subscriber > 0 for each in costs.values())


def test_a_soak_counts_its_messages_and_the_memory_of_each_process(capsys: pytest.CaptureFixture[str]) -> None:
    code = soak.main(["--minutes", "0.05", "--rate", "500", "--json"])
    summary = msgspec.json.decode(capsys.readouterr().out, type=soak.Summary)
    assert summary.messages > 100
    assert set(summary.processes) == set(soak.NAMES)
    assert all(each.start > 1 and each.end > 1 for each in summary.processes.values())
    assert code == (0 if summary.level else 1)


def test_a_soak_ends_early_and_still_sums_up() -> None:
    root = Path(harness.__file__).parent.parent
    command = [sys.executable, "-u", "-m", "benchmarks.soak", "--minutes", "60", "--rate", "500"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("soaking")
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    assert "publisher" in out, errors
    assert process.returncode in (0, 1)


def test_the_growth_of_a_soak_is_that_after_its_first_quarter() -> None:
    def samples(*mib: float) -> list[list[float]]:
        """Of all processes the same, for a tenth of the run each."""
        return [[each] * len(soak.NAMES) for each in mib for _ in range(10)]

    assert not soak.summarize(1.0, 1, samples(*[50.0] * 4, *[100.0] * 6)).level
    assert soak.summarize(1.0, 1, samples(50.0, 75.0, *[100.0] * 7, 101.5)).level
    grown = samples(50.0, *[100.0] * 9)
    for each in grown[-10:]:
        each[-1] = 102.5
    summary = soak.summarize(1.0, 1, grown)
    assert [name for name, each in summary.processes.items() if not each.level] == [soak.NAMES[-1]]
    assert "more than 2%" in soak.table(summary).splitlines()[-1]


# The harness


def test_rounds_are_interleaved_and_their_order_alternates() -> None:
    seen: list[str] = []

    def note(name: str) -> harness.Measure:
        def measure(size: int) -> Sample:
            seen.append(name)
            return Sample(1.0, 1.0)

        return measure

    run(case(ours=note("ours"), peers={"a": note("a"), "b": note("b")}), (HOST, VERSIONS), rounds=3)
    assert seen == ["ours", "a", "b", "b", "a", "ours", "ours", "a", "b"]


def test_a_coroutine_is_measured_in_a_loop_of_its_own() -> None:
    async def measure(size: int) -> Sample:
        return Sample(float(size), 1.0)

    assert harness.take(measure, 7) == Sample(7.0, 1.0)


def test_objects_that_exist_before_a_measurement_are_not_collected_in_it() -> None:
    def measure(size: int) -> Sample:
        return Sample(float(gc.get_freeze_count()), 1.0)

    before = len(gc.get_objects())
    assert harness.take(measure, 1).value > before / 2
    assert gc.get_freeze_count() == 0


def test_the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_the_medians() -> None:
    rounds = [{"ours": 10.0, "peer": 1.0}, {"ours": 20.0, "peer": 10.0}, {"ours": 30.0, "peer": 100.0}]
    result = summarize(case(), rounds, HOST, VERSIONS)
    assert result.ours == 20.0
    assert result.peers == {"peer": 10.0}
    assert result.ratios == {"peer": 2.0}
    rounds = [{"ours": 1.0, "peer": 1.0}, {"ours": 2.0, "peer": 8.0}, {"ours": 9.0, "peer": 3.0}]
    assert summarize(case(), rounds, HOST, VERSIONS).ratios == {"peer": 1.0}


def test_more_is_better_for_rates_and_less_for_times() -> None:
    rounds = [{"ours": 10.0, "peer": 20.0}]
    assert summarize(case(better="more"), rounds, HOST, VERSIONS).ratios == {"peer": 0.5}
    assert summarize(case(better="less"), rounds, HOST, VERSIONS).ratios == {"peer": 2.0}


@pytest.mark.parametrize(("least", "met"), [(2.9, True), (3.0, True), (3.1, False)])
def test_a_target_is_the_least_ratio(least: float, met: bool) -> None:
    result = run(case(target={"peer": least}), (HOST, VERSIONS), rounds=2)
    assert result.target == {"peer": least}
    assert result.met is met


@pytest.mark.parametrize(("limit", "met"), [(29.0, False), (30.0, True), (60.0, True)])
def test_a_limit_is_the_most_ours_may_be(limit: float, met: bool) -> None:
    result = run(case(better="less", peers={}, limit=limit), (HOST, VERSIONS), rounds=1)
    assert result.target == {"limit": limit}
    assert result.ratios == {"limit": harness.significant(limit / 30.0)}
    assert result.met is met


def test_without_a_target_none_is_missed() -> None:
    assert run(case(ours=constant(1.0)), (HOST, VERSIONS), rounds=1).met


def test_the_spread_is_that_of_the_widest_ratio() -> None:
    rounds = [{"ours": 10.0, "calm": 10.0, "wild": wild} for wild in (10.0, 5.0, 2.5, 2.0, 1.0)]
    peers = {"calm": constant(1.0), "wild": constant(1.0)}
    # The ratios against the wild one are 1, 2, 4, 5, 10: quartiles 2 and 5, median 4.
    assert summarize(case(peers=peers), rounds, HOST, VERSIONS).spread == 0.75


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=15))
def test_the_spread_is_never_negative_and_does_not_depend_on_the_unit(values: list[float]) -> None:
    spread = harness.spread(values)
    assert spread >= 0.0
    assert harness.spread([value * 8 for value in values]) == pytest.approx(spread)


@pytest.mark.parametrize(
    ("done", "wanted", "left_s", "stop"),
    [
        (0, None, -1.0, False),
        (4, None, -1.0, False),
        (5, None, 0.9, True),
        (5, None, 1.1, False),
        (15, None, 50.0, True),
        (1, 2, -1.0, False),
        (2, 2, 50.0, True),
        (20, 30, 50.0, False),
    ],
)
def test_rounds_end_with_the_budget_but_not_before_the_fifth(
    done: int, wanted: int | None, left_s: float, stop: bool
) -> None:
    assert harness.enough(done, wanted, left_s=left_s, longest_s=1.0) is stop


@given(st.floats(0.1, 1000.0), st.integers(1, 6))
def test_a_measurement_takes_a_fifth_to_half_a_second(budget_s: float, sides: int) -> None:
    assert 0.2 <= harness.measure_s(budget_s, sides) <= 0.5


@pytest.mark.parametrize("each_s", [1e-8, 1e-6, 1e-3, 10.0])
def test_the_size_is_fitted_to_the_time_it_takes(each_s: float) -> None:
    size = harness.fit(lambda size: Sample(1.0, each_s * size), 100, 0.5)
    assert size == max(1, round(0.5 / each_s))


def test_fitting_ends_when_the_size_changes_nothing() -> None:
    assert harness.fit(lambda size: Sample(1.0, 0.001), 100, 0.5) > 100


# The report


def test_the_host_is_described_without_its_name_or_any_path() -> None:
    host, versions = surroundings()
    assert set(host) == {"cpu", "cores", "python", "os"}
    text = json.dumps([host, versions])
    assert platform.python_version() in text
    assert os.getcwd() not in text
    assert "pykka" in versions
    assert versions["trunkline"] != "not installed"


def test_the_table_says_what_was_measured_and_whether_it_is_enough() -> None:
    made_up = case(target={"peer": 4.0})
    table = as_table(made_up, run(made_up, (HOST, VERSIONS), rounds=1))
    assert "made-up: does the harness work" in table
    assert "target MISSED" in table
    assert "1 rounds" not in table
    limited = case(better="less", peers={}, limit=5000.0)
    table = as_table(limited, run(limited, (HOST, VERSIONS), rounds=2))
    assert "5,000" in table
    assert "2 rounds" in table
    assert "target met" in table


# The command line


def test_without_arguments_the_cases_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CASES) + 1
    assert all(line.strip().startswith(name) for name, line in zip(CASES, lines[1:], strict=True))
    assert listing(CASES) == "\n".join(lines)


@pytest.mark.parametrize(("wrong", "nearest"), [("inprc", "inproc"), ("statistics", "stats"), ("Fan-Out", "fanout")])
def test_an_unknown_case_names_the_nearest(wrong: str, nearest: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([wrong])
    assert ended.value.code == 2
    assert f"unknown case {wrong!r}: did you mean {nearest!r}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["inproc", "--all"],
        ["inproc", "--rounds", "0"],
        ["inproc", "--seconds", "-1"],
        ["x", "--nope"],
        ["inproc", "--transport", "tcp"],
        ["hub", "--transport", "pigeon"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_json_is_exactly_one_object_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "made-up", case())
    assert main(["made-up", "--json", "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result = json.loads(out)
    assert set(result) == KEYS
    assert result["rounds"] == 2


@pytest.mark.long
def test_all_runs_every_case(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(CASES):
        monkeypatch.setitem(CASES, name, case(name=name))
    assert main(["--all", "--json", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["case"] for line in lines] == list(CASES)


@pytest.mark.parametrize(
    "transport", [each if each == UNIX else pytest.param(each, marks=pytest.mark.long) for each in TRANSPORTS]
)
def test_with_a_transport_only_the_cases_that_have_one_run(
    transport: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(ON_HUB):
        monkeypatch.setitem(CASES, name, case(name=name))
        monkeypatch.setitem(ON_HUB, name, partial(named_case, name))
    assert main(["--all", "--json", "--rounds", "1", "--transport", transport]) == 0
    names = [json.loads(line)["case"] for line in capsys.readouterr().out.splitlines()]
    assert names == [name if transport == UNIX else f"{name}@{transport}" for name in ON_HUB]


def test_a_case_says_how_many_rounds_are_enough_unless_told() -> None:
    assert run(case(rounds=2), (HOST, VERSIONS)).rounds == 2
    assert run(case(rounds=2), (HOST, VERSIONS), rounds=1).rounds == 1


def test_ctrl_c_ends_cleanly_after_the_measurement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[int] = []

    async def interrupted(size: int) -> Sample:
        signal.raise_signal(signal.SIGINT)
        finished.append(size)
        return Sample(1.0, 1.0)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setitem(CASES, "made-up", case(ours=interrupted))
    assert main(["made-up", "--json"]) == 130
    assert finished == [1]
    assert signal.getsignal(signal.SIGINT) is handler
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "stopped\n"


def test_the_second_ctrl_c_does_not_wait() -> None:
    reached: list[str] = []

    def stuck(size: int) -> Sample:
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
        return Sample(1.0, 1.0)

    with pytest.raises(KeyboardInterrupt):
        harness.take(stuck, 1)
    assert reached == ["after the first"]
