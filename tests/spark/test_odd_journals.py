"""Whole runs on journals that hypothesis makes: whatever is in them, the tables are what plain Python makes of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.journal.journals import Clock, journal_in, message, store
from tests.spark import truth_content, truth_gold, truth_silver
from tests.spark.lakes import files_of, rewrite
from tests.spark.test_whole_runs import like, rows
from tests.spark.traffic import Row, Traffic
from tests.spark.truth_journal import traffic_of
from trunkline.journal import Journal
from trunkline.journal.ledger import FATE
from trunkline.message import MessageType
from trunkline.spark.pipeline.run import Pipeline

pytestmark = pytest.mark.long

START_NS = 1_763_333_400 * 1_000_000_000
MIB = 1024 * 1024
TABLES: list[tuple[str, Callable[[Traffic], list[Row]], tuple[str, ...]]] = [
    ("deliveries", truth_silver.deliveries, ("seq", "subscriber")),
    ("requests", truth_silver.requests, ("seq",)),
    ("conversations", truth_content.conversations, ("root_id",)),
    ("topic_minute", truth_gold.topic_minute, ("topic", "minute")),
    ("sender_minute", truth_gold.sender_minute, ("sender", "minute")),
    ("subscriber_minute", truth_gold.subscriber_minute, ("subscriber", "minute")),
    ("accounting", truth_gold.accounting, ("topic", "subscriber", "hour")),
]

NAMES = st.text(st.characters(codec="utf-8", exclude_characters=".*> \t\n", exclude_categories=["C", "Z"]), min_size=1)
TOPICS = st.sampled_from(["orders.placed", "pricing", "grüße.木", "a.b.c"]) | NAMES.map("odd.{}".format)
PAYLOADS = st.binary(max_size=60) | st.sampled_from([b"", b"{not json", b"\xff\xfe", b'{"a": [1, null]}'])
SKEWS_S = st.sampled_from([0, 0, 0, -1, 1, -300, 500, 7200, -90_000])
FEW = st.sampled_from(["1", "2", "3"])

SAID: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "id": st.integers(0, 60).map("m{}".format),
        "topic": TOPICS,
        "payload": PAYLOADS,
        "type": st.sampled_from(
            [MessageType.PUBLISH, MessageType.REQUEST, MessageType.RESPONSE, MessageType.ERROR],
        ),
        "request_id": st.none() | FEW,
        "correlation_id": st.none() | FEW.map("m{}".format) | st.integers(0, 60).map("m{}".format),
        "sender": st.sampled_from(["shop", "木", "a b"]),
        "headers": st.none() | st.dictionaries(NAMES, NAMES, max_size=2),
        "skew_s": SKEWS_S,
        "pause_s": st.sampled_from([0.0, 0.5, 60.0, 1800.0]),
        "seal": st.sampled_from([False, False, False, True]),
    }
)


def written(directory: Path, said: list[dict[str, Any]]) -> None:
    """A journal in which this was published, sealed here and there, with fates for two subscribers."""
    clock = Clock(START_NS)
    with journal_in(directory, clock, seal_rows=10) as journal:
        for number, each in enumerate(said, 1):
            fields = dict(each)
            skew_s, pause_s, seal = (fields.pop(name) for name in ("skew_s", "pause_s", "seal"))
            if fields["type"] is not MessageType.PUBLISH and fields.get("request_id") is None:
                fields["request_id"] = "0"  # they must have one
            fields["timestamp_ns"] = clock.now_ns + skew_s * 1_000_000_000
            store(journal, [[message(fields.pop("topic"), fields.pop("payload"), **fields)]])
            if number % 5 == 0:
                _settle(journal, clock, number)
            if seal:
                journal.seal(everything=True)
            clock.pass_s(pause_s)


def _settle(journal: Journal, clock: Clock, last: int) -> None:
    rows = [
        ("all", ">", "delivered", last - 4, last, 5, "", clock.now_ns),
        ("one by one", "pricing", "dropped", last, last, 1, "no room", clock.now_ns),
    ]
    journal.writer.call(lambda database: database.executemany(FATE, rows)).result()


def compared(spark: SparkSession, journal: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    truth = traffic_of(journal)
    monkeypatch.setattr(truth_gold, "requests", truth_silver.requests)
    with Pipeline(spark, journal, warehouse) as pipeline:
        assert pipeline.run().messages == len(truth.messages)
    like(rows(spark, warehouse, "messages"), truth.messages, ("seq",))
    for name, make, key in TABLES:
        like(rows(spark, warehouse, name), make(truth), key)
    return truth


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(said=st.lists(SAID, min_size=30, max_size=70))
def test_whatever_is_published_the_tables_are_right(spark: SparkSession, said: list[dict[str, Any]]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="trunkline-odd-"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            written(folder / "journal", said)
            compared(spark, folder / "journal", folder / "warehouse", patch)
    finally:
        shutil.rmtree(folder)


def test_large_payloads_and_columns_of_a_later_version(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"type": MessageType.PUBLISH, "skew_s": 0, "pause_s": 1.0}
    said = [
        {**plain, "id": f"m{number}", "topic": "big", "payload": bytes([number]) * size, "seal": number == 2}
        for number, size in enumerate((10 * MIB, 5, 10 * MIB, 10 * MIB, 0))
    ]
    written(tmp_path / "journal", said)
    (file,) = files_of(tmp_path / "journal")
    table = pq.read_table(tmp_path / "journal" / file.path, partitioning=None)
    future = pa.array([{"what": "is not known yet"}] * table.num_rows)
    rewrite(tmp_path / "journal", file, table.append_column("future", future))
    truth = compared(spark, tmp_path / "journal", tmp_path / "warehouse", monkeypatch)
    assert sum(len(row["payload"]) for row in truth.messages) == 30 * MIB + 5
