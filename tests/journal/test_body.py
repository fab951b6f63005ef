"""Rows of the journal: they are read as written, as messages and as Arrow columns, and a changed byte is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from trunkline.errors import JournalDamaged
from trunkline.journal import layout
from trunkline.journal.body import StoredBatch, checksum, make_batch
from trunkline.message import Message, MessageType

AT_NS = 1_700_000_000_123_456_789
TOPIC = "t.é.1"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.sampled_from(["ann", "böb", ""]) | texts
maybe = st.none() | names
payloads = st.sampled_from([b"", b"x", b"1234"]) | st.binary(max_size=20)
times = st.sampled_from([0, 1, AT_NS]) | st.integers(0, 2**63 - 1)
plain = st.fixed_dictionaries(
    {"id": names, "payload": payloads, "timestamp_ns": times},
    optional={"sender": names, "content_type": names},
)
full = st.fixed_dictionaries(
    {"id": names, "payload": payloads, "timestamp_ns": times},
    optional={
        "sender": names,
        "content_type": names,
        "type": st.sampled_from(MessageType),
        "recipient": maybe,
        "priority": st.integers(0, 100),
        "ttl_s": st.none() | st.floats(0.001, 1e9) | st.integers(1, 10),
        "request_id": maybe,
        "correlation_id": maybe,
        "reply_to": maybe,
        "attempts": st.integers(0, 2**63 - 1),
        "requires_ack": st.booleans(),
        "encoding": names,
        "schema": maybe,
        "trace": maybe,
        "headers": st.none() | st.dictionaries(texts, texts, max_size=3),
    },
)


def alike(fields: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Batches: arbitrary ones, and those whose messages differ only in their number."""
    return st.lists(fields, min_size=1, max_size=12) | st.builds(
        lambda one, count: [one] * count, fields, st.integers(1, 40)
    )


def numbered(batch: Sequence[dict[str, Any]], first: int = 7, topic: str = TOPIC) -> list[Message]:
    return [Message(**{**fields, "topic": topic, "seq": seq}) for seq, fields in enumerate(batch, first)]


def test_a_message_has_no_field_that_is_not_tried_here() -> None:
    rich = Message(
        id="1",
        topic=TOPIC,
        payload=b"p",
        timestamp_ns=1,
        seq=7,
        sender="s",
        content_type="c",
        type=MessageType.REQUEST,
        recipient="r",
        priority=1,
        ttl_s=1.5,
        request_id="q",
        correlation_id="o",
        reply_to="y",
        attempts=2,
        requires_ack=True,
        encoding="zlib",
        schema="m",
        trace="t",
        headers={"ü": "…"},
    )
    for name, value in zip(Message.__struct_fields__, astuple(rich), strict=True):
        assert value != getattr(Message(seq=1), name), f"give {name} a value of its own here, and in `full` above"
    assert make_batch([rich], AT_NS).messages() == [rich]
    (arrow,) = layout.of_rows([make_batch([rich], AT_NS)], damaged)
    assert layout.to_messages(arrow) == [rich]


@given(alike(full))
def test_any_batch_survives(batch: list[dict[str, Any]]) -> None:
    messages = numbered(batch)
    row = make_batch(messages, AT_NS)
    assert row.messages() == messages
    assert (row.first, row.last, row.count) == (7, 6 + len(messages), len(messages))
    assert row.since_ns == min(message.timestamp_ns for message in messages)
    assert row.until_ns == max(message.timestamp_ns for message in messages)
    for message in row.messages():
        assert message.type.__class__ is MessageType
        assert message.payload.__class__ is bytes


@given(alike(plain))
def test_plain_messages_may_be_written_as_such(batch: list[dict[str, Any]]) -> None:
    messages = numbered(batch)
    assert make_batch(messages, AT_NS, plain=True).messages() == messages
    assert make_batch(messages, AT_NS, plain=True) == make_batch(messages, AT_NS)


@given(alike(plain), st.text(), st.text())
def test_plain_messages_of_one_sender_and_format(batch: list[dict[str, Any]], sender: str, content_type: str) -> None:
    messages = numbered([{**fields, "sender": sender, "content_type": content_type} for fields in batch])
    assert make_batch(messages, AT_NS, plain=True, alike=True) == make_batch(messages, AT_NS)


def damaged(damage: JournalDamaged) -> None:
    raise damage


@given(st.lists(st.tuples(st.sampled_from(["a", "b.c", "ü"]), st.integers(0, 3), alike(full)), min_size=1, max_size=5))
def test_rows_become_arrow_and_messages_again(batches: list[tuple[str, int, list[dict[str, Any]]]]) -> None:
    rows: list[StoredBatch] = []
    messages: list[Message] = []
    seq = 1
    for topic, gap, batch in batches:
        more = numbered(batch, seq + gap, topic)
        seq = more[-1].seq + 1
        rows.append(make_batch(more, AT_NS))
        messages += more
    (arrow,) = layout.of_rows(rows, damaged)
    arrow.validate(full=True)
    assert arrow.schema.equals(layout.MESSAGES, check_metadata=True)
    assert layout.to_messages(arrow) == messages
    assert arrow.column("seq").to_pylist() == [message.seq for message in messages]
    assert set(arrow.column("accepted").cast("int64").to_pylist()) <= {AT_NS // 1000}
    assert arrow.column("time").cast("int64").to_pylist() == [message.timestamp_ns // 1000 for message in messages]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.booleans())
def test_large_and_small_rows_together_become_arrow(counts: list[int], same: bool) -> None:
    """Long rows are built as a whole, short ones message by message: both ways, and mixed."""
    rows: list[StoredBatch] = []
    messages: list[Message] = []
    for count in counts:
        first = len(messages) + 1
        fields: dict[str, Any] = {"id": "é", "sender": "s" if same else f"s{count}"}
        more = numbered([{**fields, "payload": b"x" * (at % 3)} for at in range(count + 1)], first)
        rows.append(make_batch(more, AT_NS, plain=True))
        messages += more
    (arrow,) = layout.of_rows(rows, damaged)
    assert layout.to_messages(arrow) == messages


BATCH = numbered(
    [
        {"id": "one", "payload": b"", "timestamp_ns": 5, "headers": {"a": "b"}},
        {"id": "twö", "payload": b"12345", "timestamp_ns": 9, "sender": "s", "priority": 3},
        {"id": "3", "payload": b"\x00", "timestamp_ns": 6, "ttl_s": 1.5},
    ]
)


def test_any_changed_byte_of_a_body_is_noticed() -> None:
    row = make_batch(BATCH, AT_NS)
    for at in range(len(row.body)):
        for bit in (0x01, 0x80):
            changed = bytearray(row.body)
            changed[at] ^= bit
            with pytest.raises(JournalDamaged, match="checksum"):
                replace(row, body=bytes(changed)).messages()


@pytest.mark.parametrize(
    "change",
    [
        {"first": 6},
        {"first": 8},
        {"last": 8},
        {"last": 10},
        {"topic": "t.é.2"},
        {"at_ns": AT_NS + 1},
        {"since_ns": 4},
        {"until_ns": 10},
        {"checksum": 0},
        {"body": b""},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_other_change_of_a_row_is_noticed(change: dict[str, Any]) -> None:
    row = make_batch(BATCH, AT_NS)
    changed = replace(row, **change)
    with pytest.raises(JournalDamaged) as caught:
        changed.messages()
    assert (caught.value.first, caught.value.last) == (changed.first, changed.last)


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x94", b"\x90", bytes(100)], ids=["none", "nil", "cut", "short", "0"])
def test_a_body_that_was_never_one_is_damage_even_with_its_checksum(body: bytes) -> None:
    row = StoredBatch(1, 1, TOPIC, AT_NS, 1, 1, checksum(1, TOPIC, AT_NS, 1, 1, body), body)
    with pytest.raises(JournalDamaged):
        row.messages()


def test_a_damaged_row_is_told_and_left_out_of_arrow() -> None:
    rows = [make_batch(numbered([{"id": str(first)}], first), AT_NS, plain=True) for first in (1, 2, 3)]
    rows[1] = replace(rows[1], checksum=rows[1].checksum ^ 1)
    told: list[JournalDamaged] = []
    (arrow,) = layout.of_rows(rows, told.append)
    assert [message.seq for message in layout.to_messages(arrow)] == [1, 3]
    assert [(damage.first, damage.last, damage.where) for damage in told] == [(2, 2, TOPIC)]


def test_a_row_says_whether_it_may_hold_an_id() -> None:
    row = make_batch(BATCH, AT_NS)
    for message in BATCH:
        assert row.holds(message.id)
    assert not row.holds("four")
