"""Payloads against schemas: as msgspec judges the same payloads, each keyword, and what hostile schemas may try."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from trunkline import Message, UsageError, codec
from trunkline.schema import schema_of
from trunkline.schema_check import Checker
from trunkline.schema_values import KEYWORDS

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Circle(msgspec.Struct, tag="circle"):
    radius: Annotated[float, Meta(gt=0)]


class Square(msgspec.Struct, tag="square"):
    side: float


class Node(msgspec.Struct):
    value: int
    next: Node | None = None
    children: list[Node] = []


class Row(msgspec.Struct, array_like=True):
    name: str
    count: int = 0


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 1


class Settings(TypedDict, total=False):
    depth: int


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Box(msgspec.Struct, Generic[T]):
    content: T


@dataclass
class Reading:
    sensor: Annotated[str, Meta(min_length=1, max_length=8, pattern="^[a-z]+$")]
    value: float
    unit: str | None = None


# Without bytes: they are a text in JSON, and none in MessagePack, and a schema is for both.
TYPES: list[Any] = [
    int,
    float,
    bool,
    str,
    None,
    Any,
    int | None,
    int | str | None,
    list[int],
    tuple[int, str],
    tuple[int, ...],
    dict[str, int],
    Literal["a", 1, None],
    Annotated[int, Meta(ge=0, le=10)],
    Annotated[int, Meta(gt=0, lt=10, multiple_of=2)],
    Annotated[list[int], Meta(min_length=1, max_length=2)],
    Annotated[dict[str, int], Meta(max_length=1)],
    Annotated[str, Meta(pattern="^a")],
    Colour,
    Level,
    Circle | Square,
    Circle | Square | None,
    Node,
    Row,
    Closed,
    Settings,
    Point,
    Box[int],
    Reading,
    list[Reading | int],
]

VALUES: list[Any] = [
    *(None, True, 0, 1, 2, 5, 10, 11, -1, 1.5, 1.0, "", "a", "ab", "red", "green", b"", b"x", 2**64 - 1),
    *([], [1], [1, 2], [1, 2, 3], [1, "a"], ["a", 1], ["a"], [None], [[1]], ["a", "b"]),
    *({}, {"a": 1}, {"a": "x"}, {"a": 1, "b": 2}, {"b": 2}, {"depth": 3}, {"depth": None}),
    *({"type": "circle", "radius": 1.5}, {"type": "circle", "radius": 0}, {"type": "circle"}, {"radius": 1.5}),
    *({"type": "square", "side": 2}, {"type": "square", "side": "2"}, {"type": "oval"}, {"type": ["circle"]}),
    *({"value": 1}, {"value": 1, "next": {"value": 2, "children": [{"value": 3}]}}, {"value": "1"}),
    *({"value": 1, "next": {"value": None}}, {"value": 1, "children": [{"value": 1}, {}]}, {"value": 1, "other": 0}),
    *({"content": 1}, {"content": "1"}, [0.5], [0.5, 1, 2], ["a", 1, True]),
    *({"sensor": "abc", "value": 1.5}, {"sensor": "", "value": 1}, {"sensor": "abcdefghi", "value": 1}),
    *({"sensor": "ABC", "value": 1}, {"sensor": "abc", "value": "1"}, {"sensor": "abc", "value": 1, "unit": "m"}),
    *({"sensor": "abc", "value": 1, "unit": 3}, [{"sensor": "abc", "value": 1}, 4], [{"sensor": "abc"}]),
]


def accepts(type: Any, payload: bytes) -> bool:
    try:
        msgspec.msgpack.decode(payload, type=type)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_agrees_with_msgspec(type: Any) -> None:
    checker = Checker(schema_of(type))
    for value in VALUES:
        payload = msgspec.msgpack.encode(value)
        found = checker(msgspec.msgpack.decode(payload))
        assert (found is None) == accepts(type, payload), f"{value!r}: {found}"


WRITTEN: list[tuple[Any, Any]] = [
    (datetime.datetime, datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
    (datetime.datetime, datetime.datetime(2026, 1, 2)),
    (datetime.date, datetime.date(2026, 1, 2)),
    (datetime.time, datetime.time(1, 2)),
    (datetime.timedelta, datetime.timedelta(1)),
    (uuid.UUID, uuid.UUID(int=1)),
    (decimal.Decimal, decimal.Decimal("1.5")),
    (list[bytes], [b"raw"]),
    (set[int], {1, 2}),
    (dict[int, str], {1: "a"}),
    (Colour, Colour.RED),
    (list[Circle | Square], [Circle(1.0), Square(2.0)]),
    (Node, Node(1, Node(2), [Node(3)])),
    (Row, Row("a")),
    (Point, Point(1.0)),
    (Reading, Reading("abc", 1.5)),
]


@pytest.mark.parametrize("content_type", [codec.MSGPACK, codec.JSON])
@pytest.mark.parametrize(("type", "value"), WRITTEN, ids=lambda each: str(each)[:40])
def test_what_a_type_writes_fits_its_schema(type: Any, value: Any, content_type: str) -> None:
    message = Message(topic="t", payload=value, content_type=content_type)
    assert Checker(schema_of(type)).broken(message) is None


NONE_FITS = "none of 2 alternatives fits, and the nearest says: a required field is missing"


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "object", "required": ["price"]}, {}, ("$.price", "a required field is missing")),
        ({"properties": {"a": {"items": {"maximum": 1}}}}, {"a": [1, 2]}, ("$.a[1]", "2 is above 1")),
        ({"properties": {"a b": {"maximum": 1}}}, {"a b": 2}, ("$['a b']", "2 is above 1")),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"b": 1}, ("$.b", "a field that is not known")),
        ({"additionalProperties": {"type": "integer"}}, {"b": None}, ("$.b", "null instead of integer")),
        ({"propertyNames": {"maxLength": 1}}, {"bb": 1}, ("$.bb", "its name: 2 characters, and at most 1 are allowed")),
        ({"minProperties": 1}, {}, ("$", "0 fields, and at least 1 are wanted")),
        ({"maxProperties": 0}, {"a": 1}, ("$", "1 fields, and at most 0 are allowed")),
        ({"minItems": 1}, [], ("$", "0 items, and at least 1 are wanted")),
        ({"maxItems": 1}, [1, 2], ("$", "2 items, and at most 1 are allowed")),
        ({"prefixItems": [{"type": "null"}], "items": False}, [None, 1], ("$[1]", "an item too many")),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ("$[1]", "it is there twice")),
        ({"uniqueItems": True}, [{1: 1}, {1: 1}], ("$[1]", "it is there twice")),
        ({"type": ["integer", "null"]}, "x", ("$", "string instead of null or integer")),
        ({"type": "number"}, None, ("$", "null instead of number")),
        ({"const": {"a": [1]}}, {"a": [2]}, ("$", "it is none of [{'a': [1]}]")),
        ({"enum": [1]}, True, ("$", "boolean instead of integer")),
        ({"minLength": 2}, "x", ("$", "1 characters, and at least 2 are wanted")),
        ({"pattern": "^a"}, "b", ("$", "'b' does not match '^a'")),
        ({"multipleOf": 0.1}, 0.25, ("$", "0.25 is no multiple of 0.1")),
        ({"multipleOf": 0.5}, 10**400, ("$", "1" + "0" * 58 + "… is no multiple of 0.5")),
        ({"exclusiveMaximum": 3}, 3, ("$", "3 is not below 3")),
        ({"minimum": 0}, float("nan"), ("$", "nan is below 0")),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 3, ("$", "3 is above 2")),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, 1, ("$", "2 alternatives fit, and only one may")),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, ("$.a", NONE_FITS)),
        (False, 1, ("$", "integer instead of nothing")),
        ({"type": "integer"}, msgspec.msgpack.Ext(5, b""), ("$", "Ext instead of integer")),
    ],
    ids=str,
)
def test_names_the_field_and_why(schema: Any, value: Any, problem: tuple[str, str]) -> None:
    assert Checker(schema)(value) == problem


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, msgspec.msgpack.Ext(5, b"")),
        (True, 1),
        ({"type": "string", "format": "date"}, "no date at all"),
        ({"minimum": 3}, "not a number"),
        ({"multipleOf": 0.1}, 0.3),
        ({"uniqueItems": True}, [1, True, "1", [1]]),
        ({"enum": [1.0]}, 1),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 1),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "integer"}}}, 1),
        ({"title": "T", "x-mine": 1, "default": 3, "$schema": "…"}, None),
        ({"items": {"$ref": "#"}, "type": "array"}, [[], [[]]]),
        ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"minimum": 1}}}, 2),
    ],
    ids=str,
)
def test_fits(schema: Any, value: Any) -> None:
    assert Checker(schema)(value) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"minimun": 1}, "did you mean 'minimum'?"),
        ({"not": {}}, "the keyword 'not' is not known"),
        ({"properties": {"a": {"if": {}}}}, "$.a: the keyword 'if'"),
        ({"items": [{}]}, "items cannot be"),
        ({"type": "int"}, "type cannot be 'int'"),
        ({"minLength": -1}, "minLength cannot be -1"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum cannot be True"),
        ({"pattern": "("}, "pattern cannot be '('"),
        ({"required": "a"}, "required cannot be 'a'"),
        ({"anyOf": []}, "anyOf cannot be []"),
        ({"$ref": "http://example.com/x"}, "refers to nothing that is known"),
        ({"$ref": "#/$defs/a"}, "refers to nothing that is known"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "leads back to itself"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"properties": {"a": 3}}, "properties cannot be"),
    ],
    ids=str,
)
def test_refuses_what_it_could_only_ignore(schema: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Checker(schema)
    assert says in str(caught.value)


def test_every_keyword_is_tried_above() -> None:
    """A table of what is known, against a table of what must be refused."""
    assert not KEYWORDS & {"not", "if", "then", "else", "contains", "patternProperties", "dependentRequired"}


def test_a_schema_in_a_circle_of_which_only_a_part_goes_deeper() -> None:
    circle = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"properties": {"x": {"$ref": "#/$defs/b"}}, "allOf": [{"$ref": "#/$defs/b"}]},
            "b": {"allOf": [{"$ref": "#/$defs/a"}]},
        },
    }
    with pytest.raises(UsageError, match="leads back to itself"):
        Checker(circle)


def test_alternatives_within_alternatives_end() -> None:
    """Each level has two alternatives that both go down: tried without a bound, that would be 2 to the 200."""
    tree = {
        "anyOf": [
            {"properties": {"a": {"$ref": "#"}}, "required": ["b"]},
            {"properties": {"a": {"$ref": "#"}}, "required": ["c"]},
        ]
    }
    value: Any = {}
    for _ in range(200):
        value = {"a": value}
    found = Checker(tree)(value)
    assert found is not None


def test_deep_payloads_and_deep_schemas_are_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    checker = Checker({"type": "array", "items": {"$ref": "#"}})
    assert checker(deep) == ("$", "it is nested too deeply")
    schema: Any = {}
    for _ in range(100_000):
        schema = {"allOf": [schema]}
    with pytest.raises(UsageError, match="nested too deeply"):
        Checker(schema)
    while deep:  # taken apart by hand: the interpreter would recurse
        deep = deep.pop()
    while schema:
        schema = schema.pop("allOf").pop()


def test_without_patterns_no_regular_expression_runs() -> None:
    evil = {"type": "string", "pattern": "^(a+)+$", "maxLength": 50}
    assert Checker(evil, patterns=False)("a" * 40 + "!") is None
    assert Checker(evil, patterns=False)("a" * 51) is not None


def test_encodings_are_restored_within_a_limit() -> None:
    checker = Checker({"type": "string"})
    text = codec.encode("x" * 10_000)[0]
    packed = Message(topic="t", payload=codec.Zlib().apply(text), content_type=codec.MSGPACK, encoding="zlib")
    assert checker.broken(packed) is None
    field, why = checker.broken(packed, 100) or ("", "")
    assert (field, why[:28]) == ("$", "Message exceeds maximum size")
    secret = Message(topic="t", payload=b"?", content_type=codec.MSGPACK, encoding="sealed")
    assert "no way to undo" in (checker.broken(secret) or ("", ""))[1]
    assert "no decoder" in (checker.broken(Message(topic="t", payload=b"?", content_type="image/png")) or ("", ""))[1]
    assert (checker.broken(Message(topic="t", payload=b"\xff\xff")) or ("", ""))[1] == "bytes instead of string"
    assert Checker(schema_of(bytes)).broken(Message(topic="t", payload=b"\xff\xff")) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(JSON, st.sampled_from(TYPES))
def test_never_fails_and_agrees_on_any_value(value: Any, type: Any) -> None:
    payload = msgspec.msgpack.encode(value)
    found = Checker(schema_of(type))(msgspec.msgpack.decode(payload))
    if _has_odd_keys(value):
        return
    assert (found is None) == accepts(type, payload)


def _has_odd_keys(value: Any) -> bool:
    """msgspec reads no keys but texts into a Struct; a schema says nothing of what JSON does not have."""
    if isinstance(value, dict):
        return any(not isinstance(key, str) or _has_odd_keys(each) for key, each in value.items())
    return isinstance(value, list) and any(map(_has_odd_keys, value))
