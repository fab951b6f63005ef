"""Payloads to and from bytes: all kinds of values, refused values, and compression bombs."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import re
import uuid
import zlib
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trunkline import codec
from trunkline.codec import JSON, MSGPACK, RAW, Zlib
from trunkline.errors import EncodeError, InvalidPayload, MessageTooLarge
from trunkline.message import Message


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Order(msgspec.Struct):
    sku: str
    count: int
    at: dt.datetime | None = None
    points: list[Point] = []


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


AWARE = dt.datetime(2026, 7, 4, 12, 30, 15, 250_000, tzinfo=dt.UTC)

TYPED: list[tuple[Any, Any]] = [
    (Point(1, 2.5), Point),
    (Order("a1", 3, AWARE, [Point(1), Point(2, -1.0)]), Order),
    ([Point(1), Point(2)], list[Point]),
    ({"a": Point(1)}, dict[str, Point]),
    (AWARE, dt.datetime),
    (dt.datetime(2026, 7, 4, 12, 30), dt.datetime),
    (dt.date(2026, 7, 4), dt.date),
    (dt.timedelta(seconds=90), dt.timedelta),
    (uuid.UUID(int=7), uuid.UUID),
    (decimal.Decimal("9.50"), decimal.Decimal),
    (Level.HIGH, Level),
    ((1, "a"), tuple[int, str]),
    ({1, 2, 3}, set[int]),
    (None, None),
    (5, int | None),
    ("x", Literal["x", "y"]),
    ({"raw": b"\x00\xff"}, dict[str, bytes]),
]

PLAIN: list[Any] = [
    None,
    True,
    False,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    -0.0,
    "",
    "Straße 日本 \U0001f680",
    "\x00\n",
    [],
    [1, [2, [3]]],
    {},
    {"a": 1, "b": {"c": [None, True, 1.5, "x"]}},
]

recursive_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


# Round trips


@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
@pytest.mark.parametrize(("value", "type"), TYPED, ids=lambda value: None)
def test_a_typed_value_comes_back(value: Any, type: Any, content_type: str) -> None:
    payload, label = codec.encode(value, content_type)
    assert label == content_type
    assert payload.__class__ is bytes
    assert codec.decode(payload, label, type) == value


@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_a_plain_value_comes_back_without_a_type(value: Any, content_type: str) -> None:
    payload, label = codec.encode(value, content_type)
    assert codec.decode(payload, label) == value
    assert codec.decode(payload, label, object) == value


@given(recursive_values)
@settings(max_examples=100)
def test_any_plain_value_comes_back(value: Any) -> None:
    payload, label = codec.encode(value)
    assert label == MSGPACK
    assert codec.decode(payload, label) == value


def test_a_dataclass_or_struct_is_read_as_plain_values_if_nobody_names_a_type() -> None:
    assert codec.decode(*codec.encode(Point(1, 2.5))) == {"x": 1, "y": 2.5}
    assert codec.decode(*codec.encode(Order("a1", 3))) == {"sku": "a1", "count": 3, "at": None, "points": []}


def test_an_aware_datetime_needs_no_type_in_messagepack() -> None:
    assert codec.decode(*codec.encode(AWARE)) == AWARE


def test_messagepack_is_what_is_written_unless_json_is_asked_for() -> None:
    assert codec.encode({"a": 1}) == (msgspec.msgpack.encode({"a": 1}), MSGPACK)
    assert codec.encode({"a": 1}, JSON) == (b'{"a":1}', JSON)


@pytest.mark.parametrize("content_type", [MSGPACK, JSON, RAW])
@pytest.mark.parametrize("value", [b"", b"\x00\xff", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"abcdef")[::2]])
def test_raw_bytes_travel_as_they_are(value: bytes | bytearray | memoryview, content_type: str) -> None:
    payload, label = codec.encode(value, content_type)
    assert payload.__class__ is bytes
    assert (payload, label) == (bytes(value), RAW)


def test_raw_bytes_are_a_copy_of_what_may_change() -> None:
    buffer = bytearray(b"abc")
    payload, _ = codec.encode(buffer)
    buffer[0] = 0
    assert payload == b"abc"


@pytest.mark.parametrize("type", [bytes, Any, object])
def test_raw_bytes_are_read_as_bytes(type: Any) -> None:
    assert codec.decode(b"\xc1\x00", RAW, type) == b"\xc1\x00"


@pytest.mark.parametrize(
    ("type", "name"), [(int, "int"), (str, "str"), (Point, "Point"), (Order, "Order"), (dict[str, int], "dict")]
)
def test_raw_bytes_are_read_as_nothing_else(type: Any, name: str) -> None:
    with pytest.raises(InvalidPayload, match=f"raw bytes, and {name} was requested"):
        codec.decode(b"\x01", RAW, type)


# What cannot be sent


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="object"),
        pytest.param({"a": object()}, id="object inside"),
        pytest.param(lambda: None, id="function"),
        pytest.param(2**64, id="above 64 bit"),
        pytest.param(-(2**63) - 1, id="below 64 bit"),
        pytest.param([1, {"n": 2**70}], id="above 64 bit inside"),
        pytest.param(1j, id="complex"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param(deep(100_000), id="deep"),
        pytest.param(circular(), id="circular"),
    ],
)
def test_what_cannot_be_written_is_refused(value: object) -> None:
    with pytest.raises(
        EncodeError, match=f"cannot send a value of type {type(value).__name__}: .*send plain values"
    ) as caught:
        codec.encode(value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("value", [object(), "\ud800", deep(100_000), {"a": object()}], ids=lambda _: None)
def test_what_cannot_be_written_as_json_is_refused(value: object) -> None:
    with pytest.raises(EncodeError):
        codec.encode(value, JSON)


def test_a_view_that_was_released_is_refused() -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(EncodeError):
        codec.encode(view)


# What cannot be read


@pytest.mark.parametrize(
    ("value", "type", "where"),
    [
        ({"x": "one"}, Point, "$.x"),
        ({}, Point, "`x`"),
        ({"sku": "a1", "count": None}, Order, "$.count"),
        ({"sku": "a1", "count": 1, "points": [{"x": 1}, {"x": "?"}]}, Order, "$.points[1].x"),
        ({"sku": "a1", "count": 1, "at": "yesterday"}, Order, "$.at"),
        ([1, "two"], list[int], "$[1]"),
        ({"a": 1.5}, dict[str, int], "$[...]"),
    ],
)
@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
def test_a_value_that_does_not_fit_names_the_field(value: Any, type: Any, where: str, content_type: str) -> None:
    payload, label = codec.encode(value, content_type)
    with pytest.raises(InvalidPayload, match=re.escape(where)) as caught:
        codec.decode(payload, label, type)
    assert caught.value.__cause__ is not None
    read = codec.reader(content_type, type)
    assert read is not None
    with pytest.raises(InvalidPayload) as also:
        read(payload)
    assert str(also.value) == str(caught.value)


def test_a_reader_reads_as_decode_does() -> None:
    read = codec.reader(MSGPACK, Point)
    assert read is not None
    assert read(codec.encode(Point(1, 2))[0]) == [Point(1, 2)]
    assert codec.reader("text/plain", str) is None


def test_a_value_that_does_not_fit_names_the_type() -> None:
    with pytest.raises(InvalidPayload, match="the payload does not match Point"):
        codec.decode(*codec.encode("x"), Point)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/xml", "APPLICATION/JSON"])
def test_an_unknown_content_type_names_the_known_ones(content_type: str) -> None:
    with pytest.raises(InvalidPayload, match=re.escape(repr(content_type))) as caught:
        codec.decode(b"\x01", content_type)
    for known in (MSGPACK, JSON, RAW):
        assert known in str(caught.value)


@pytest.mark.parametrize("content_type", ["", RAW, "text/plain", "application/xml"])
def test_a_value_is_not_written_in_a_format_nobody_knows(content_type: str) -> None:
    with pytest.raises(EncodeError, match=re.escape(repr(content_type))) as caught:
        codec.encode({"a": 1}, content_type)
    for known in (MSGPACK, JSON):
        assert known in str(caught.value)


@pytest.mark.parametrize(
    "type",
    [
        pytest.param(Point | Order, id="a union nobody can tell apart"),
        pytest.param([int], id="a list"),
        pytest.param({"x": int}, id="a dict"),
        pytest.param(dataclasses.make_dataclass("Broken", [("x", "Nowhere")]), id="a name nobody defined"),
    ],
)
@pytest.mark.parametrize("content_type", [MSGPACK, JSON])
def test_a_type_that_payloads_cannot_be_read_as_is_refused(type: Any, content_type: str) -> None:
    for _ in range(2):
        with pytest.raises(InvalidPayload):
            codec.decode(b"1", content_type, type)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", b"\xa5abc", b"\x01\x01", b"\xa1\xff", b"\x81\x80\x01"])
def test_broken_messagepack_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidPayload):
        codec.decode(payload, MSGPACK)


@pytest.mark.parametrize("payload", [b"", b"{", b"[1,]", b"nul", b'"\xff"', b'"\\ud800"', b"1 2", b'{"a":1,}'])
def test_broken_json_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidPayload):
        codec.decode(payload, JSON)


@pytest.mark.parametrize(("payload", "content_type"), [(b"\x91" * 100_000, MSGPACK), (b"[" * 100_000, JSON)])
def test_deeply_nested_bytes_are_refused(payload: bytes, content_type: str) -> None:
    with pytest.raises(InvalidPayload):
        codec.decode(payload, content_type)


READ_AS: list[Any] = [
    Any,
    object,
    int,
    str,
    bytes,
    float,
    bool,
    None,
    Point,
    Order,
    Level,
    dt.datetime,
    dt.date,
    dt.timedelta,
    uuid.UUID,
    decimal.Decimal,
    list[int],
    dict[str, Point],
    dict[int, list[str]],
    set[str],
    tuple[int, str],
    int | None,
]

random_bytes = st.one_of(
    st.binary(max_size=40),
    recursive_values.map(lambda value: codec.encode(value)[0]),
    recursive_values.map(lambda value: codec.encode(value, JSON)[0]),
    st.tuples(st.sampled_from([b"\xc7", b"\xd6", b"\xd7", b"\xd8", b"\xff"]), st.binary(max_size=20)).map(b"".join),
)


@given(random_bytes, st.sampled_from([MSGPACK, JSON, RAW, "text/plain"]))
@settings(max_examples=100)
def test_no_bytes_raise_anything_but_our_own_error(payload: bytes, content_type: str) -> None:
    for type in READ_AS:
        with contextlib.suppress(InvalidPayload):
            codec.decode(payload, content_type, type)


# Compression


@given(st.binary(max_size=2_000), st.integers(0, 9))
@settings(max_examples=60)
def test_compressed_bytes_come_back(payload: bytes, level: int) -> None:
    packed = Zlib(level).apply(payload)
    assert Zlib().restore(packed, 10_000) == payload
    assert codec.restore(packed, "zlib") == payload


@given(
    st.integers(0, 40_000),
    st.one_of(st.integers(0, 40_000), st.none()),
    st.sampled_from([b"\x00", b"0123456789abcdef", bytes(range(256))]),
)
@example(1000, 0, b"\x00")
@example(40_000, None, b"\x00")
@settings(max_examples=100)
def test_nothing_above_the_limit_is_unpacked_and_everything_up_to_it_is(
    size: int, limit: int | None, pattern: bytes
) -> None:
    limit = size if limit is None else limit
    payload = (pattern * (size // len(pattern) + 1))[:size]
    packed = Zlib().apply(payload)
    if size <= limit:
        assert Zlib().restore(packed, limit) == payload
    else:
        with pytest.raises(MessageTooLarge) as caught:
            Zlib().restore(packed, limit)
        assert caught.value.limit == limit
        assert caught.value.size > limit


def test_a_bomb_is_stopped_before_it_unpacks() -> None:
    engine = zlib.compressobj(9)
    chunk = bytes(1024 * 1024)
    bomb = b"".join(engine.compress(chunk) for _ in range(64)) + engine.flush()
    assert len(bomb) < 100_000
    with pytest.raises(MessageTooLarge):
        codec.restore(bomb, "zlib")
    with pytest.raises(MessageTooLarge):
        codec.restore(bomb, "zlib", limit=1)


@given(st.binary(min_size=1, max_size=500), st.data())
@settings(max_examples=60)
def test_data_cut_short_is_refused(payload: bytes, data: st.DataObject) -> None:
    packed = Zlib().apply(payload)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(InvalidPayload):
        Zlib().restore(packed[:cut], 10_000)


@pytest.mark.parametrize("garbage", [b"", b"x", b"hello world", b"\x78\x9c", b"\x78\x9c\xff\xff\xff\xff"])
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidPayload, match="zlib data"):
        Zlib().restore(garbage, 10_000)


def test_garbage_behind_the_data_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        Zlib().restore(Zlib().apply(b"hello") + b"garbage", 10_000)


@given(st.binary(max_size=60), st.integers(0, 1000))
@settings(max_examples=100)
def test_no_bytes_make_unpacking_raise_anything_but_our_own_error(payload: bytes, limit: int) -> None:
    for packed in (payload, b"\x78\x9c" + payload):
        with contextlib.suppress(InvalidPayload, MessageTooLarge):
            assert len(Zlib().restore(packed, limit)) <= limit


def test_an_unknown_encoding_names_the_known_ones() -> None:
    with pytest.raises(InvalidPayload, match="'brotli'; known: zlib"):
        codec.restore(b"", "brotli")


def test_a_message_undoes_its_encoding_by_itself() -> None:
    plain, content_type = codec.encode({"a": "x" * 1000})
    message = Message(topic="a", payload=Zlib().apply(plain), content_type=content_type, encoding="zlib")
    assert message.size < 100
    assert message.decode() == {"a": "x" * 1000}
    assert message.decode(dict[str, str]) == {"a": "x" * 1000}


def test_a_message_that_would_explode_is_refused_when_it_is_read() -> None:
    packed = Zlib().apply(bytes(codec.MAX_PLAIN_BYTES + 1))
    with pytest.raises(MessageTooLarge):
        Message(topic="a", payload=packed, encoding="zlib").decode()
