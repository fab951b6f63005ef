"""Payloads against schemas: the same verdict as msgspec, each keyword, and hostile schemas."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from tests.hub.shapes import SCHEMAS, written
from trunkline import Message, UsageError, codec
from trunkline.schema import Checker, schema_of
from trunkline.schema.reading import KEYWORDS

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


def accepts(type: Any, value: Any) -> bool:
    """Whether msgspec reads it like JSON Schema: bytes are base64 text, and 1.0 is the integer 1."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(as_json(value)), type=type)
    except msgspec.ValidationError:
        return False
    return True


EXT = msgspec.msgpack.Ext(5, b"")


def named(value: object) -> str:
    """The same name in every process: by default the repr of an Ext has its address."""
    return str(value).replace(repr(EXT), "Ext")


def as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return msgspec.to_builtins(value)


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_agrees_with_msgspec(type: Any) -> None:
    checker = Checker(schema_of(type))
    for value in VALUES:
        found = checker(msgspec.msgpack.decode(msgspec.msgpack.encode(value)))
        assert (found is None) == accepts(type, value), f"{value!r}: {found}"


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


ORDER = {"properties": {"lines": {"items": {"properties": {"price": {"type": "number"}}}}}}
INTEGERS = {"additionalProperties": {"type": "integer"}}
SHAPES = schema_of(Circle | Square)


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "object", "required": ["price"]}, {}, ("$.price", "a required field is missing")),
        ({"properties": {"a": {"items": {"maximum": 1}}}}, {"a": [1, 2]}, ("$.a[1]", "2 is above 1")),
        ({"properties": {"a b": {"maximum": 1}}}, {"a b": 2}, ("$['a b']", "2 is above 1")),
        ({"additionalProperties": False, "properties": {"a": {}}}, {"b": 1}, ("$.b", "an unknown field")),
        ({"additionalProperties": {"type": "integer"}}, {"b": None}, ("$.b", "null instead of integer")),
        ({"propertyNames": {"maxLength": 1}}, {"bb": 1}, ("$.bb", "its name: 2 characters, and at most 1 are allowed")),
        ({"minProperties": 1}, {}, ("$", "0 fields, and at least 1 are required")),
        ({"maxProperties": 0}, {"a": 1}, ("$", "1 fields, and at most 0 are allowed")),
        ({"minItems": 1}, [], ("$", "0 items, and at least 1 are required")),
        ({"maxItems": 1}, [1, 2], ("$", "2 items, and at most 1 are allowed")),
        ({"prefixItems": [{"type": "null"}], "items": False}, [None, 1], ("$[1]", "too many items")),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ("$", "an item is repeated")),
        ({"uniqueItems": True}, [{1: 1}, {1: 1}], ("$", "an item is repeated")),
        ({"type": ["integer", "null"]}, "x", ("$", "string instead of null or integer")),
        ({"type": "number"}, None, ("$", "null instead of number")),
        ({"const": {"a": [1]}}, {"a": [2]}, ("$", "it is not {'a': [1]}")),
        ({"enum": [1]}, True, ("$", "it is not one of [1]")),
        ({"minLength": 2}, "x", ("$", "1 characters, and at least 2 are required")),
        ({"pattern": "^a"}, "b", ("$", "'b' does not match '^a'")),
        ({"multipleOf": 0.1}, 0.25, ("$", "0.25 is not a multiple of 0.1")),
        ({"multipleOf": 7}, 10**400, ("$", "1" + "0" * 58 + "… is not a multiple of 7")),
        ({"exclusiveMaximum": 3}, 3, ("$", "3 is not below 3")),
        ({"type": "number", "minimum": 0}, float("nan"), ("$", "nan is below 0")),
        ({"type": "number", "maximum": 0}, float("nan"), ("$", "nan is above 0")),
        ({"type": "number", "maximum": 1e308}, float("inf"), ("$", "inf is above 1e+308")),
        ({"items": {"type": "integer"}}, [float("inf")], ("$[0]", "number instead of integer")),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 3, ("$", "3 is above 2")),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, 1, ("$", "not exactly one of 2 alternatives matches")),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, ("$", "none of 2 alternatives matches")),
        (False, 1, ("$", "integer instead of nothing")),
        ({"items": {"type": "integer"}}, [EXT], ("$[0]", "Ext is not a JSON value")),
        ({}, EXT, ("$", "Ext is not a JSON value")),
        ({"type": "object"}, {"1": "a", 1: "b"}, ("$['1']", "two keys are the same in JSON")),
        ({"type": "object"}, {None: 1}, ("$", "NoneType is not a key in JSON")),
        (
            {"properties": {"order": ORDER}},
            {"order": {"lines": [{"price": 1}, {"price": "1"}]}},
            ("$.order.lines[1].price", "string instead of number"),
        ),
        (
            {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/o"}], "$defs": {"o": ORDER}},
            {"lines": [{"price": "1"}]},
            ("$.lines[0].price", "string instead of number"),
        ),
        (INTEGERS, {"0": None}, ("$['0']", "null instead of integer")),
        (INTEGERS, {"01": None}, ("$['01']", "null instead of integer")),
        (INTEGERS, {"": None}, ("$", "null instead of integer")),
        ({"additionalProperties": INTEGERS}, {"": {"a": None}}, ("$[''].a", "null instead of integer")),
        (SHAPES, {"type": "circle", "radius": 0}, ("$.radius", "0 is not above 0")),
        (SHAPES, {"type": "oval"}, ("$.type", "it is not one of ['circle', 'square']")),
        (SHAPES, {}, ("$.type", "a required field is missing")),
        (SHAPES, [], ("$", "array instead of object")),
    ],
    ids=named,
)
def test_names_the_field_and_why(schema: Any, value: Any, problem: tuple[str, str]) -> None:
    assert Checker(schema)(value) == problem


@pytest.mark.parametrize(
    ("schema", "value"),
    [
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
    ids=named,
)
def test_fits(schema: Any, value: Any) -> None:
    assert Checker(schema)(value) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"minimun": 1}, "did you mean 'minimum'?"),
        ({"not": {}}, "the keyword 'not' is not supported"),
        ({"properties": {"a": {"if": {}}}}, "$.a: the keyword 'if'"),
        ({"items": [{}]}, "$[]: [{}] is not a schema"),
        ({"type": "int"}, "type cannot be 'int'"),
        ({"minLength": -1}, "minLength cannot be -1"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum cannot be True"),
        ({"pattern": "("}, "pattern cannot be '('"),
        ({"required": "a"}, "required cannot be 'a'"),
        ({"anyOf": []}, "anyOf cannot be []"),
        ({"$ref": "http://example.com/x"}, "refers to an unknown definition"),
        ({"$ref": "#/$defs/a"}, "refers to an unknown definition"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "refers to itself"),
        ({"$ref": "#"}, "refers to itself"),
        ({"properties": {"a": 3}}, "$.a: 3 is not a schema"),
        ({"properties": [3]}, "properties cannot be [3]"),
    ],
    ids=str,
)
def test_refuses_what_it_could_only_ignore(schema: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Checker(schema)
    assert says in str(caught.value)


def test_every_keyword_is_tried_above() -> None:
    """A table of known keywords, compared with a table of keywords that must be refused."""
    assert not KEYWORDS & {"not", "if", "then", "else", "contains", "patternProperties", "dependentRequired"}


def test_a_schema_in_a_circle_of_which_only_a_part_goes_deeper() -> None:
    circle = {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"properties": {"x": {"$ref": "#/$defs/b"}}, "allOf": [{"$ref": "#/$defs/b"}]},
            "b": {"allOf": [{"$ref": "#/$defs/a"}]},
        },
    }
    with pytest.raises(UsageError, match="refers to itself"):
        Checker(circle)


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


def test_encodings_are_restored_within_a_limit() -> None:
    checker = Checker({"type": "string"})
    text = codec.encode("x" * 10_000)[0]
    packed = Message(topic="t", payload=codec.Zlib().apply(text), content_type=codec.MSGPACK, encoding="zlib")
    assert checker.broken(packed) is None
    field, why = checker.broken(packed, 100) or ("", "")
    assert (field, why[:28]) == ("$", "Message exceeds maximum size")
    secret = Message(topic="t", payload=b"?", content_type=codec.MSGPACK, encoding="sealed")
    assert "cannot decode" in (checker.broken(secret) or ("", ""))[1]
    assert "no decoder" in (checker.broken(Message(topic="t", payload=b"?", content_type="image/png")) or ("", ""))[1]
    assert checker.broken(Message(topic="t", payload=b"\xff\xff")) is None, "bytes are a text in base64"
    too_short = Checker(schema_of(Annotated[bytes, Meta(min_length=4)])).broken(Message(topic="t", payload=b"\xff\xff"))
    assert too_short == ("$", "4 characters, and at least 8 are required")
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
    found = Checker(schema_of(type))(msgspec.msgpack.decode(msgspec.msgpack.encode(value)))
    if _differs_in_json(value):
        return
    assert (found is None) == accepts(type, value)


TAGGED = st.builds(
    lambda key, parts, names: {
        key: [
            {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": [name]}, "a": part}}
            for name, part in zip(names, parts, strict=False)
        ]
    },
    st.sampled_from(["anyOf", "oneOf"]),
    st.lists(SCHEMAS, min_size=1, max_size=3),
    st.permutations(["x", "y", 1]),
)
CHOICES = st.builds(lambda some: {"oneOf": some}, st.lists(SCHEMAS, min_size=1, max_size=3)) | TAGGED | SCHEMAS
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 12) | st.sampled_from([0.0, 1.0, 1.5, "a", "b", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "kind"]), inner, max_size=3)
        | st.builds(lambda kind, a: {"kind": kind, "a": a}, st.sampled_from(["x", "y", 1, 2]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=400)
@given(CHOICES, st.data())
def test_agrees_with_the_library_on_the_schema_as_it_is(schema: dict[str, Any], data: st.DataObject) -> None:
    """How alternatives are arranged (see schema/reading.py) changes no verdict."""
    value = data.draw(PLAIN | written(schema) if "oneOf" not in schema and "kind" not in str(schema) else PLAIN)
    assert (Checker(schema)(value) is None) == jsonschema_rs.is_valid(schema, value, validate_formats=False)


def _differs_in_json(value: Any) -> bool:
    """msgspec reads only text keys into a Struct, and no integer from a float of more than 64 bits."""
    if isinstance(value, dict):
        return any(not isinstance(key, str) or _differs_in_json(each) for key, each in value.items())
    if isinstance(value, float):
        return value.is_integer() and abs(value) >= 2**63
    return isinstance(value, list) and any(map(_differs_in_json, value))
