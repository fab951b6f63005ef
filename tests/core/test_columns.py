"""Columns: every batch survives encoding and decoding, and arbitrary bytes give valid messages or an error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import InvalidPayload, Message, MessageType, columns
from trunkline.codec import RAW
from trunkline.columns import Strings, pack
from trunkline.message import MAX_HEADER_BYTES

texts = st.text(max_size=12)
optional_texts = st.none() | texts


@st.composite
def messages(draw: st.DrawFn, plain: bool = False) -> Message:
    fields: dict[str, Any] = {}
    if not plain:
        kind = draw(st.sampled_from(MessageType))
        answers = kind in (MessageType.RESPONSE, MessageType.ACK)
        fields = {
            "type": kind,
            "request_id": draw(st.text(min_size=1, max_size=8) if answers else optional_texts),
            "priority": draw(st.integers(0, 100)),
            "ttl_s": draw(st.none() | st.floats(1e-6, 1e9) | st.integers(1, 10**9)),
            "attempts": draw(st.integers(0, 2**63 - 1)),
            "requires_ack": draw(st.booleans()),
            "headers": draw(st.none() | st.dictionaries(texts, texts, max_size=3)),
            "encoding": draw(texts),
        }
        for name in ("recipient", "correlation_id", "reply_to", "schema", "trace"):
            fields[name] = draw(optional_texts)
    return Message(
        id=draw(texts),
        topic="t",
        payload=draw(st.binary(max_size=40)),
        timestamp_ns=draw(st.integers(0, 2**63 - 1)),
        sender=draw(texts),
        content_type=draw(st.text(max_size=8)),
        **fields,
    )


def written(batch: list[Message], **promises: bool) -> bytes:
    return columns.encode(batch, [message.timestamp_ns for message in batch], **promises)


def numbered(batch: list[Message], first: int = 1) -> list[Message]:
    return [msgspec.structs.replace(message, seq=seq) for seq, message in enumerate(batch, first)]


def read(data: bytes, count: int) -> list[Message]:
    return columns.read("t", data, range(1, count + 1))


@given(st.lists(messages(), min_size=1, max_size=8))
def test_any_batch_survives(batch: list[Message]) -> None:
    found, plain = columns.read_batch("t", written(batch), range(7, 7 + len(batch)))
    assert found == numbered(batch, 7)
    for message in found:
        if plain:
            assert (message.priority, message.ttl_s, message.requires_ack) == (50, None, False)


@given(messages(), st.integers(-1, 5))
def test_a_message_alone_survives(message: Message, seq: int) -> None:
    """Whatever number it had: a number of its own must not bypass the checks."""
    sent = msgspec.structs.replace(message, seq=seq)
    assert columns.read_batch("t", columns.pack_batch([sent]), [7])[0] == numbered([message], 7)


def test_a_message_alone_is_told_from_a_plain_one() -> None:
    for special in (
        Message(topic="t", ttl_s=5),
        Message(topic="t", priority=75),
        Message(topic="t", requires_ack=True),
    ):
        assert columns.read_batch("t", columns.pack_batch([special]), [1])[1] is False
    assert columns.read_batch("t", columns.pack_batch([Message(topic="t")]), [1])[1] is True


def test_a_message_alone_must_be_of_its_topic() -> None:
    with pytest.raises(InvalidPayload):
        columns.read("u", columns.pack_batch([Message(topic="t")]), [1])


def test_every_field_is_among_them() -> None:
    """The strategy above must cover every field."""
    covered = {"id", "topic", "payload", "timestamp_ns", "seq", *columns._VALID}
    assert covered == set(Message.__struct_fields__)


@given(st.lists(messages(plain=True), min_size=1, max_size=8))
def test_a_plain_batch_survives(batch: list[Message]) -> None:
    found, plain = columns.read_batch("t", written(batch, plain=True), range(1, len(batch) + 1))
    assert found == numbered(batch)
    assert plain


def test_one_special_message_makes_a_batch_special() -> None:
    """Also if the first is plain: a reader that checks only that one is fooled."""
    batch = [Message(topic="t"), Message(topic="t", ttl_s=5)]
    assert columns.read_batch("t", written(batch), [1, 2])[1] is False


def well_formed(message: Message) -> None:
    """As if it had been built by hand and checked. It can be written again."""
    checked = message.replace()
    assert msgspec.structs.replace(checked, seq=message.seq) == message
    assert Message.from_bytes(message.to_bytes()) == message
    assert read(written([message]), 1) == numbered([message])


@given(st.data())
def test_any_change_is_refused_or_harmless(data: st.DataObject) -> None:
    batch = data.draw(st.lists(messages(), min_size=1, max_size=4))
    body = bytearray(columns.pack_batch(batch) if data.draw(st.booleans()) else written(batch))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255) | st.sampled_from([0xC0, 0xC3, 0xCB, 0xDF, 0x7F, 0xFF]))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    body += data.draw(st.binary(max_size=4))
    look(bytes(body), len(batch))


@given(st.binary(max_size=200), st.integers(1, 5))
def test_any_bytes_are_refused_or_harmless(data: bytes, count: int) -> None:
    look(data, count)


def look(data: bytes, count: int) -> None:
    try:
        found = read(data, count)
    except InvalidPayload:
        return
    assert len(found) == count
    for message in found:
        well_formed(message)


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=12)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([*columns.REST, "id", "seq", "nonsense"]), anything, max_size=4), st.integers(1, 3)
)
def test_any_other_fields_are_refused_or_harmless(rest: dict[str, Any], count: int) -> None:
    look(body_of(count, rest), count)


@given(st.dictionaries(st.sampled_from([*Message.__struct_fields__, "nonsense"]), anything, max_size=5))
def test_any_fields_of_a_message_alone_are_refused_or_harmless(fields: dict[str, Any]) -> None:
    look(msgspec.msgpack.encode({"topic": "t", "content_type": RAW, "seq": -1, **fields}), 1)


@given(anything, anything, anything, anything)
def test_any_four_columns_are_refused_or_harmless(ids: Any, times: Any, payloads: Any, rest: Any) -> None:
    look(msgspec.msgpack.encode([ids, times, payloads, rest]), 2)


def body_of(count: int, rest: Any = (), **columns_: Any) -> bytes:
    parts = {
        "ids": Strings(b"ab" * count, 2),
        "times": bytes(8 * count),
        "payloads": Strings(b"", 0),
        "rest": dict(rest),
        **columns_,
    }
    return msgspec.msgpack.encode(list(parts.values()))


def test_the_plainest_body_is_read() -> None:
    assert [(message.id, message.content_type) for message in read(body_of(2), 2)] == [("ab", RAW)] * 2


@pytest.mark.parametrize(
    "rest",
    [
        {"type": 99},
        {"type": True},
        {"type": 1.0},
        {"type": "PUBLISH"},
        {"type": [1, 99]},
        {"type": MessageType.RESPONSE.value},
        {"type": [1, MessageType.ACK.value], "request_id": ["r", None]},
        {"type": MessageType.RESPONSE.value, "request_id": ""},
        {"headers": "text"},
        {"headers": {"a": 1}},
        {"headers": {1: "a"}},
        {"headers": [{"a": "b"}, {"a": b"b"}]},
        {"headers": [{"a": "b"}]},
        {"sender": None},
        {"sender": b"bytes"},
        {"content_type": ""},
        {"content_type": 5},
        {"priority": True},
        {"priority": 101},
        {"priority": -1},
        {"priority": 50.0},
        {"ttl_s": 0},
        {"ttl_s": -1.0},
        {"ttl_s": True},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"ttl_s": 2e9},
        {"attempts": -1},
        {"attempts": 2**63},
        {"attempts": False},
        {"requires_ack": 1},
        {"encoding": None},
        {"recipient": 7},
        {"request_id": ["r"]},
        {"seq": 5},
        {"payload": b"x"},
        {"": 1},
    ],
    ids=str,
)
def test_fields_no_message_may_have(rest: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        read(body_of(2, rest), 2)


@pytest.mark.parametrize(
    "parts",
    [
        {"ids": Strings(b"\xff\xfe\xff\xfe", 2)},
        {"ids": Strings("ü".encode() * 2, pack("i", [1, 3]))},
        {"ids": Strings(b"\xed\xa0\x80" * 2, 3)},
        {"ids": Strings(b"abcd", 3)},
        {"ids": Strings(b"abcd", -2)},
        {"ids": Strings(b"abcd", pack("i", [6, -2]))},
        {"ids": Strings(b"abcd", pack("i", [-1, 5]))},
        {"ids": Strings(b"abcd", pack("i", [2, 2, 0]))},
        {"ids": Strings(b"abcd", pack("i", [2, 2])[:-1])},
        {"ids": Strings(b"abcd", 2**63)},
        {"payloads": Strings(b"abcd", pack("i", [2**31 - 1, 2**31 - 1]))},
        {"payloads": Strings(b"", -1)},
        {"payloads": "text"},
        {"times": bytes(15)},
        {"times": bytes(24)},
        {"times": pack("q", [1, -1])},
        {"times": "x" * 16},
    ],
    ids=str,
)
def test_columns_no_batch_may_have(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        read(body_of(2, **parts), 2)


def test_nesting_without_end_is_refused() -> None:
    deep = b"\x81\xa7headers" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(InvalidPayload):
        read(body_of(1)[:-1] + deep, 1)


def test_a_count_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        columns.read("t", body_of(1), range(1, 2**70))


def test_a_message_alone_has_no_more_headers_than_any_other() -> None:
    fields = {"id": "i", "topic": "t", "payload": bytes(MAX_HEADER_BYTES)}
    assert read(msgspec.msgpack.encode(fields), 1)[0].content_type == RAW
    with pytest.raises(InvalidPayload, match="header"):
        read(msgspec.msgpack.encode({**fields, "headers": {"a": "b" * MAX_HEADER_BYTES}}), 1)


@given(st.lists(messages(), min_size=2, max_size=8), st.data())
def test_any_part_of_a_batch_is_a_batch(batch: list[Message], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(batch) - 1))
    end = data.draw(st.integers(start + 1, len(batch)))
    body = columns.open_batch(written(batch), len(batch))
    assert read(columns.pack_part(body, start, end), end - start) == numbered(batch[start:end])


def test_what_is_no_batch_is_not_opened() -> None:
    batch = [Message(id="a", topic="t"), Message(id="b", topic="t")]
    for bad, count in ((b"", 2), (b"\x00", 2), (written(batch), 3), (written(batch)[:-1], 2)):
        with pytest.raises(InvalidPayload, match="not a batch"):
            columns.open_batch(bad, count)
