"""What people do with the tables: a report, replay of what SQL selects, and what if a handler were another."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

import trunkline as tl
from trunkline.cli.main import run as run_command
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.replay import replay
from trunkline.spark.report import report
from trunkline.spark.tables.views import table
from trunkline.spark.what_if import what_if

PRICES = "select seq from requests where topic = 'pricing' and outcome = 'answered'"


def test_a_report_is_one_file_that_needs_nothing_else(spark: SparkSession, warehouse: Path, tmp_path: Path) -> None:
    path = report(spark, warehouse, tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    for title in ("Traffic over time", "Latency of requests", "Who talks to whom", "Top talkers", "Dead letters"):
        assert f"<h2>{title}" in text
    # Nothing from elsewhere: the one address is the name of SVG.
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in text
    assert "The books add up" in text
    assert "ValueError: bad order" in text
    assert text.count("<svg") == text.count("</svg>") >= 5
    dead = table(spark, warehouse, "dead_letters").count()
    assert f"<b>{dead:,}</b><span>dead letters</span>" in text


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

    with pytest.raises(tl.UsageError, match="as `seq`; it gives topic"):
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
        ["pipeline", "report", journal, "--out", str(page)],
    )
    assert (first.code, first.err) == (0, [])
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


@pytest.mark.long
@pytest.mark.parametrize("when", ["in the middle", "between runs"])
def test_ctrl_c_ends_a_pipeline_quietly(journal: Path, tmp_path: Path, when: str) -> None:
    place = tmp_path / "warehouse"
    command = [sys.executable, "-c", COMMAND, "pipeline", "run", str(journal), "--warehouse", str(place)]
    command += ["--follow", "--every-s", "0.5", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        if when == "between runs":
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["messages"]
        else:
            ends = time.monotonic() + 60
            while not list(place.glob("requests/run=*")):
                assert time.monotonic() < ends
                time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == ""
    assert Warehouse(place).look().run == (1 if when == "between runs" else 0)
    with Warehouse(place):
        assert not list(place.glob("requests/run=000002"))
