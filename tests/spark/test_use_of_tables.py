"""Uses of the tables: a report, replay of messages selected by SQL, and what-if runs with another handler."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import trunkline as tl
from trunkline.cli.main import run as run_command
from trunkline.spark.pipeline.run import session_settings
from trunkline.spark.pipeline.views import register, table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.replay import replay
from trunkline.spark.replay.what_if import what_if
from trunkline.spark.report import report
from trunkline.spark.report.figures import gather
from trunkline.spark.report.page import page
from trunkline.spark.session.query_errors import one_line

PRICES = "select seq from requests where topic = 'pricing' and outcome = 'answered'"


def test_a_report_is_one_file_that_needs_nothing_else(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    path = report(spark, warehouse, tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    for title in ("Traffic over time", "Latency of requests", "Who talks to whom", "Top talkers", "Dead letters"):
        assert f"<h2>{title}" in text
    # Nothing from elsewhere: the one address is the name of SVG.
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in text
    assert "The books balance" in text
    assert "ValueError: bad order" in text
    assert text.count("<svg") == text.count("</svg>") >= 5
    dead = table(spark, warehouse, "dead_letters").count()
    assert f"<b>{dead:,}</b><span>dead letters</span>" in text


def test_the_latency_of_the_report_is_that_of_topic_minute(spark: SparkSession, warehouse: Path) -> None:
    figures = gather(spark, warehouse, None, None)
    minutes = table(spark, warehouse, "topic_minute").where("latency_sketch is not null")
    highest = minutes.agg(F.max("latency_p95_ms")).collect()[0][0]
    shown = [value for value in figures.latency["p95"] if value is not None]
    assert shown
    assert max(shown) <= highest, "nothing is slower than the slowest minute"
    outcomes: dict[str, int] = dict(table(spark, warehouse, "requests").groupBy("outcome").count().collect())
    assert figures.answered == outcomes.pop("answered")
    assert figures.without_latency == outcomes
    left_out = page(figures).split("Not shown: ")[1].split(".")[0]
    assert left_out == ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))


def test_a_condition_on_the_hour_chooses_the_files(spark: SparkSession, warehouse: Path) -> None:
    """By Spark's metrics of rows read, for typical SQL."""
    manifest = Warehouse(warehouse).look()
    (state,) = manifest.journals.values()
    for name in register(spark, warehouse):
        hours = state.tables.get(name, {})
        if len(hours) < 2:
            continue
        hour = sorted(hours)[0]
        for condition in (
            f"hour = '{hour}'",
            f"hour = timestamp'{hour}:00:00Z'",
            f"hour <= '{hour}:00' and journal > ''",
        ):
            query = spark.sql(f"select * from {name} where {condition}")
            assert len(query.collect()) == sum(file.rows for file in hours[hour]), (name, condition)
            assert files_read(query) == len(hours[hour]), (name, condition)
    assert not spark.sql("select 1 from messages where journal = 'another'").collect()


def test_the_hour_of_a_file_is_in_utc_whatever_the_zone_of_the_session(spark: SparkSession, warehouse: Path) -> None:
    def hours() -> set[int]:
        rows = table(spark, warehouse, "messages").select(F.unix_seconds("hour"), F.unix_seconds("placed")).collect()
        found = {(hour, at // 3600 * 3600) for hour, at in rows}
        assert all(hour == wanted for hour, wanted in found)
        return {hour for hour, _ in found}

    with session_settings(spark, {"spark.sql.session.timeZone": "Asia/Kolkata"}):
        there = hours()
    assert there == hours()


def files_read(query: DataFrame) -> int:
    plan = query._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [plan.apply(number) for number in range(plan.size())]
    return sum(scan.metrics().apply("numFiles").value() for scan in scans)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "select * from mesages",
            "there is no table mesages: did you mean messages? `trunkline pipeline tables` lists them",
        ),
        (
            "select topc from messages",
            "there is no column topc: did you mean topic? `trunkline pipeline tables` lists them",
        ),
        (
            "select * from nothing_like_it",
            "there is no table nothing_like_it. `trunkline pipeline tables` lists them",
        ),
        ("select topic frm messages where", "Syntax error at or near"),
        ("select 1 / (seq - seq) from messages", "Division by zero"),
    ],
)
def test_an_error_of_a_query_is_one_line(spark: SparkSession, warehouse: Path, query: str, said: str) -> None:
    with pytest.raises(tl.UsageError) as refused, one_line(register(spark, warehouse)):
        spark.sql(query).collect()
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_what_is_selected_is_published_again_in_order(spark: SparkSession, warehouse: Path) -> None:
    query = "select seq from messages where topic = 'flow.begin'"
    wanted = [
        row["id"] for row in table(spark, warehouse, "messages").where("topic = 'flow.begin'").orderBy("seq").collect()
    ]

    async def work() -> tuple[list[tl.Message], tl.Replayed, tl.Replayed]:
        async with tl.connect("memory:") as bus, bus.subscribe("again.>") as messages:
            would = await replay(spark, warehouse, query, bus, to="again", dry_run=True)
            assert bus.stats().total_messages == 0
            done = await replay(spark, warehouse, query, bus, to="again", per_s=10_000)
            return [message for _ in wanted if (message := await messages.recv())], would, done

    got, would, done = asyncio.run(work())
    assert list(would.ids) == list(done.ids) == wanted
    assert (would.dry_run, done.failed) == (True, ())
    assert [message.correlation_id for message in got] == wanted
    assert {message.topic for message in got} == {"again.flow.begin"}


def test_a_query_without_numbers_is_refused(spark: SparkSession, warehouse: Path) -> None:
    async def work() -> None:
        async with tl.connect("memory:") as bus:
            await replay(spark, warehouse, "select topic from messages", bus)

    with pytest.raises(tl.UsageError, match="as `seq`; it selects topic"):
        asyncio.run(work())


@pytest.mark.long
def test_what_if_the_price_were_another(spark: SparkSession, warehouse: Path) -> None:
    def as_it_was(bus: tl.Bus) -> None:
        async def price(question: object) -> dict[str, float]:
            return {"price": 9.5}

        bus.handle("pricing", price)

    def dearer(bus: tl.Bus) -> None:
        async def price(question: object) -> dict[str, float]:
            return {"price": 10.5}

        bus.handle("pricing", price)

    def sold_out(bus: tl.Bus) -> None:
        async def price(question: object) -> dict[str, float]:
            raise LookupError("no price")

        bus.handle("pricing", price, retry=tl.Retry(attempts=1))

    same = asyncio.run(what_if(spark, warehouse, PRICES, as_it_was)).collect()
    assert same
    assert {(row["verdict"], row["target"]) for row in same} == {("same", "answer")}
    changed = asyncio.run(what_if(spark, warehouse, PRICES, dearer)).collect()
    assert [row["input"] for row in changed] == [row["input"] for row in same]
    assert {row["verdict"] for row in changed} == {"changed"}
    assert {json.loads(row["then"])["price"] for row in changed} == {9.5}
    (failed,) = asyncio.run(what_if(spark, warehouse, f"{PRICES} limit 1", sold_out)).collect()
    assert failed["verdict"] == "changed"
    assert "no price" in failed["failed"]


def test_status_and_tables_on_the_command_line(
    journal: Path, warehouse: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run_command(["pipeline", "status", str(journal), "--warehouse", str(warehouse), "--json"]) == 0
    found = json.loads(capsysbinary.readouterr().out)
    assert found["seq"] == found["journal_seq"]
    assert run_command(["pipeline", "tables", "--json"]) == 0
    lines = capsysbinary.readouterr().out.splitlines()
    assert "requests" in [json.loads(line)["table"] for line in lines]
    assert run_command(["pipeline", "status", str(journal), "--warehouse", str(journal / "none")]) == 1
    assert b"trunkline pipeline run" in capsysbinary.readouterr().err


PROGRESS = r"\w+ \(\d+ of \d+\)"
COMMAND = "import sys; from trunkline.cli import main; sys.exit(main())"


CALLS = """
import json, sys
from trunkline.cli.main import run
for number, words in enumerate(json.loads(sys.argv[1])):
    code = run(words)
    for stream in (sys.stdout, sys.stderr):
        print(f"--- {number} {code}", file=stream, flush=True)
"""
"""Several commands, one after another in one process: Java starts once."""


class Said(NamedTuple):
    code: int
    out: list[str]
    err: list[str]


def call(*commands: list[str]) -> list[Said]:
    done = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(commands)], capture_output=True, text=True, timeout=600, check=True
    )
    sides = [re.split(r"^--- \d+ (\d+)\n", text, flags=re.M) for text in (done.stdout, done.stderr)]
    out, err = ([text.splitlines() for text in parts[:-1:2]] for parts in sides)
    return [Said(int(code), *texts) for code, *texts in zip(sides[0][1::2], out, err, strict=True)]


@pytest.mark.long
def test_the_pipeline_on_the_command_line(tmp_path: Path) -> None:
    async def live() -> list[str]:
        async with tl.connect("memory:", journal=tmp_path / "journal", name="shop") as bus:
            return [await bus.publish("orders.placed", {"n": number}) for number in range(5)]

    ids = asyncio.run(live())
    journal, page = str(tmp_path / "journal"), tmp_path / "page.html"
    count = "select topic, count(*) as n, avg(seq) as mean from messages group by topic"
    chosen = "select seq from messages where seq > 3"
    first, again, rows, few, none, wrong, dry, hours, written = call(
        ["pipeline", "run", journal],
        ["pipeline", "run", journal, "--json"],
        ["pipeline", "sql", journal, count, "--json"],
        ["pipeline", "sql", journal, "select seq from messages order by seq", "--rows", "2"],
        ["pipeline", "sql", journal, "select seq from messages where seq > 5"],
        ["pipeline", "sql", journal, "select seq from nowhere"],
        ["pipeline", "replay", journal, chosen, "--dry-run", "--json"],
        ["pipeline", "rebuild", journal, "--json"],
        ["pipeline", "report", journal, "--output", str(page)],
    )
    assert first.code == 0
    assert first.err[0] == "messages (1 of 17)", "no terminal: a line a table"
    assert all(re.fullmatch(PROGRESS, line) for line in first.err)
    assert first.out[0].startswith("run 1: 5 messages, ")
    assert [json.loads(line)["messages"] for line in again.out] == [0]
    assert [json.loads(line) for line in rows.out] == [{"topic": "orders.placed", "n": 5, "mean": 3.0}]
    assert [line.strip() for line in few.out if line.strip().isdigit()] == ["1", "2"]
    assert few.err == ["more than 2 rows: --rows 0 shows all"]
    assert (none.code, none.err) == (0, ["no rows"])
    assert wrong.code == 2
    assert "nowhere" in wrong.err[0]
    assert json.loads(dry.out[0])["ids"] == ids[3:]
    assert len(json.loads(hours.out[0])["hours"]) == 1
    assert written.out[0].startswith(f"{page} written: ")
    assert "orders.placed" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "when",
    [pytest.param("in the middle", marks=pytest.mark.slow), pytest.param("between runs", marks=pytest.mark.long)],
)
def test_ctrl_c_ends_a_pipeline_and_leaves_the_warehouse_whole(tmp_path: Path, when: str) -> None:
    async def publish() -> None:
        async with tl.connect("memory:", journal=tmp_path / "journal", name="shop") as bus:
            await bus.publish_many("orders", range(3))

    asyncio.run(publish())
    place = tmp_path / "warehouse"
    command = [sys.executable, "-c", COMMAND, "pipeline", "run", str(tmp_path / "journal")]
    command += ["--warehouse", str(place), "--json"]
    command += ["--follow", "--every", "0.5"] if when == "between runs" else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if when == "between runs":
            assert json.loads(process.stdout.readline())["messages"]
        else:
            assert any(line.startswith("fates (") for line in process.stderr), "it has ended before"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert all(re.fullmatch(PROGRESS, line) for line in errors.splitlines()), "only what it was doing is said"
    with Warehouse(place) as warehouse:
        assert warehouse.manifest.run == (1 if when == "between runs" else 0)
        lying = {file.relative_to(place).as_posix() for file in place.glob("*/journal=*/hour=*/*.parquet")}
        assert lying == warehouse.manifest.paths(), "what was begun is cleared away"
