"""From rows to messages, without a bus: chunks, ids, kinds, and batches that may already be published."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import MapType, StringType, StructType

from trunkline.errors import InvalidMessage, InvalidTopic, MessageTooLarge, MissingCorrelationId, TrunklineError
from trunkline.spark.sink.row_columns import columns_of
from trunkline.spark.sink.rows import Chunk, Chunker, Encoded, Encoder
from trunkline.spark.sink.task_position import Repeats, SeenEpochs, TaskPosition

PLACE = TaskPosition("q", 3, 7)
TYPES: dict[str, Any] = {
    "priority": "integer",
    "ttl_s": "double",
    "requires_ack": "boolean",
    "payload": "binary",
    "headers": MapType(StringType(), StringType()),
}


def encoded(columns: dict[str, Any], first: int = 0) -> Encoded:
    schema = StructType()
    arrays = {}
    for name, values in columns.items():
        schema = schema.add(name, TYPES.get(name, "string"))
        map_type = pa.map_(pa.string(), pa.string()) if name == "headers" else None
        arrays[name] = pa.array(values, map_type)
    encoder = Encoder(columns_of(schema, "plain", None), PLACE, "me", max_bytes=1000)
    return encoder.encode(Chunk(first, pa.record_batch(arrays)), now_ns=5)


# Chunks and ids


@given(st.lists(st.integers(0, 40)), st.integers(1, 30))
def test_chunks_do_not_depend_on_how_batches_are_cut(sizes: list[int], rows: int) -> None:
    values = list(range(sum(sizes)))
    chunker = Chunker(rows)
    chunks: list[Chunk] = []
    start = 0
    for size in sizes:
        chunks += chunker.feed(pa.record_batch({"n": pa.array(values[start : start + size], pa.int64())}))
        start += size
    chunks += chunker.rest()
    found = [(chunk.first, chunk.batch.column(0).to_pylist()) for chunk in chunks]
    assert found == [(first, values[first : first + rows]) for first in range(0, len(values), rows)]


places = st.builds(TaskPosition, st.text(), st.integers(0, 9), st.integers(0, 9))


@given(places, places, st.integers(0, 2**33), st.integers(0, 2**33))
def test_an_id_names_one_row_of_one_place(one: TaskPosition, other: TaskPosition, row: int, another: int) -> None:
    same = (one[:3], row) == (other[:3], another)
    assert (one.ids(row, 1) == other.ids(another, 1)) is same
    assert one._replace(attempt=2, run="r").ids(row, 1) == one.ids(row, 1), "whatever the attempt"
    assert one.ids(row, 1) != one.ids(row, 1, "letter")
    assert uuid.UUID(one.ids(row, 1)[0]).version == 8


def test_ids_go_on_beyond_their_digits() -> None:
    ids = PLACE.ids(2**32 - 2, 4)
    assert len(set(ids)) == 4
    assert ids == [*PLACE.ids(2**32 - 2, 1), *PLACE.ids(2**32 - 1, 2), *PLACE.ids(2**32 + 1, 1)]


# Messages


def test_rows_of_a_kind_are_a_run_and_stay_in_order() -> None:
    found = encoded(
        {
            "topic": ["a", "b", "a", "a", "b", "a"],
            "priority": [50, 50, 50, 75, None, 50],
            "ttl_s": [None, None, 9.0, None, None, None],
            "payload": [b"0", b"1", b"2", b"3", b"4", b"5"],
        },
        first=100,
    )
    assert [(run.topic, [message.payload for message in run.messages], run.rows) for run in found.runs] == [
        ("a", [b"0"], [100]),
        ("a", [b"2"], [102]),
        ("a", [b"5"], [105]),
        ("b", [b"1", b"4"], [101, 104]),
        ("a", [b"3"], [103]),
    ]
    assert [message.id for message in found.runs[3].messages] == [*PLACE.ids(101, 1), *PLACE.ids(104, 1)]


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("topic", "a b", InvalidTopic),
        ("topic", "a.*", InvalidTopic),
        ("priority", -1, InvalidMessage),
        ("ttl_s", float("nan"), InvalidMessage),
        ("ttl_s", 0.0, InvalidMessage),
        ("type", "shout", InvalidMessage),
        ("type", "subscribe", InvalidMessage),
        ("type", "response", MissingCorrelationId),
        ("headers", [("k", None)], InvalidMessage),
        ("payload", b"x" * 1001, MessageTooLarge),
    ],
)
def test_a_row_that_makes_no_message_is_told_with_why(column: str, value: Any, error: type[TrunklineError]) -> None:
    found = encoded({"payload": [b"a", b"b", b"c"], column: [None, value, None]})
    (bad,) = found.bad
    assert bad.row == 1
    assert isinstance(bad.error, error)
    assert [row for run in found.runs for row in run.rows] == [0, 2]


def test_what_has_no_topic_goes_to_its_recipient() -> None:
    schema = StructType().add("recipient", "string").add("payload", "binary")
    encoder = Encoder(columns_of(schema, None, None), PLACE, "me", max_bytes=1000)
    batch = pa.record_batch({"recipient": pa.array(["agent", None]), "payload": pa.array([b"x", b"y"])})
    found = encoder.encode(Chunk(0, batch), now_ns=5)
    assert [run.topic for run in found.runs] == ["_to.agent"]
    assert isinstance(found.bad[0].error, InvalidTopic)


def test_a_run_is_no_larger_than_a_frame() -> None:
    schema = StructType().add("payload", "binary")
    encoder = Encoder(columns_of(schema, "a", None), PLACE, "me", max_bytes=10_000_000)
    batch = pa.record_batch({"payload": pa.array([b"x" * 600_000] * 3 + [b"y" * 3_000_000])})
    assert [len(run.messages) for run in encoder.encode(Chunk(0, batch), 5).runs] == [1, 1, 1, 1]


# What may be there already


def test_only_the_first_epoch_of_a_run_can_be_a_repetition() -> None:
    memory = SeenEpochs()
    assert memory.may_repeat(TaskPosition("q", 4, 0, run="a"))
    assert memory.may_repeat(TaskPosition("q", 4, 1, run="a"))
    assert not memory.may_repeat(TaskPosition("q", 5, 0, run="a"))
    assert memory.may_repeat(TaskPosition("q", 5, 0, run="b"))
    assert memory.may_repeat(TaskPosition("p", 5, 0, run="a"))


@given(st.integers(0, 12), st.sets(st.integers(0, 3)))
def test_everything_an_earlier_attempt_has_stored_is_looked_for(prefix: int, beyond: set[int]) -> None:
    """It had stored the first batches of a topic, and any of the four that were in flight."""
    there = {*range(prefix), *(prefix + place for place in beyond)} if prefix else set()
    repeats = Repeats(5 * 10, suspected=True)
    for place in range(40):
        if place in there:
            assert repeats.again("a", 10 * place)
        if repeats.again("a", 10 * place):
            repeats.record("a", 10 * place, known=place in there)
    assert not repeats.again("a", 400), "and no more than that"
    assert repeats.again("b", 400)
    assert not Repeats(50, suspected=False).again("a", 0)
