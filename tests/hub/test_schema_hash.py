"""The hash of a schema depends on its meaning, not on order, descriptions or names. And names of shared memory."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub.shapes import SCHEMAS, dressed, with_definitions
from trunkline import UsageError
from trunkline.schema import Checker, hash_of, schema_of
from trunkline.topic import logical_name

SEEDS = st.integers(0, 2**32)


@given(SCHEMAS, SEEDS)
def test_the_same_meaning_has_the_same_hash(schema: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    other = dressed(schema, chance)
    definitions: dict[str, Any] = {}
    root = with_definitions(other, definitions, chance)
    assert hash_of({**root, "$defs": definitions}) == hash_of(schema)
    assert hash_of(json.loads(json.dumps(schema))) == hash_of(schema)


@given(SCHEMAS, SCHEMAS, st.lists(st.recursive(st.none() | st.integers(-1, 10) | st.text(max_size=2), st.lists)))
def test_what_has_the_same_hash_takes_the_same_values(one: Any, other: Any, values: list[Any]) -> None:
    if hash_of(one) == hash_of(other):
        for value in values:
            assert (Checker(one)(value) is None) == (Checker(other)(value) is None)


class Order(msgspec.Struct):
    """An order."""

    id: str
    price: float
    lines: list[Line] = []


class Line(msgspec.Struct):
    article: str
    count: int = 1


class Purchase(msgspec.Struct):
    """The same fields as an order, with other descriptions."""

    price: float
    id: str
    lines: list[Item] = []


class Item(msgspec.Struct, kw_only=True):
    count: int = 0
    article: str


class Tree(msgspec.Struct):
    left: Tree | None = None
    right: Tree | None = None


class Plant(msgspec.Struct):
    right: Plant | None = None
    left: Plant | None = None


def test_types_of_one_shape_have_one_hash() -> None:
    assert hash_of(Order) == hash_of(Purchase) == hash_of(schema_of(Order))
    assert hash_of(Tree) == hash_of(Plant) != hash_of(Order)
    assert hash_of(int | None) == hash_of({"type": ["null", "integer"]})
    assert hash_of(Literal["a", "b"]) == hash_of({"type": "string", "enum": ["b", "a", 3]})
    assert hash_of({"type": "string", "minLength": 0, "maximum": 3}) == hash_of(str)
    assert hash_of({"anyOf": [{}, {"type": "null"}]}) == hash_of({}) == hash_of({"allOf": [True]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "integer"}, {"type": "number"}),
        ({"minimum": 1}, {"minimum": 2}),
        ({"minimum": 1}, {"exclusiveMinimum": 1}),
        ({"enum": [1]}, {"enum": [True]}),
        ({"enum": ["1"]}, {"enum": [1]}),
        ({"prefixItems": [{"type": "null"}, {}]}, {"prefixItems": [{}, {"type": "null"}]}),
        ({"type": "string", "format": "date"}, {"type": "string"}),
        ({"anyOf": [{"minimum": 1}, {"minLength": 1}]}, {"allOf": [{"minimum": 1}, {"minLength": 1}]}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"additionalProperties": False}),
        ({"items": {"$ref": "#"}}, {"items": {"items": {"$ref": "#"}, "minItems": 1}}),
        (True, False),
    ],
    ids=str,
)
def test_another_meaning_has_another_hash(one: Any, other: Any) -> None:
    assert hash_of({"allOf": [one]}) != hash_of({"allOf": [other]})


@pytest.mark.parametrize("wrong", [3, {"anyOf": 1}, {"properties": []}, {"$ref": "#/$defs/a"}, {"enum": 1}, object])
def test_what_is_no_schema_has_no_hash(wrong: Any) -> None:
    with pytest.raises(UsageError):
        hash_of(wrong)


def circle(names: dict[str, str], **last: Any) -> dict[str, Any]:
    """Definitions that refer to each other in a chain, under other names, in another order."""
    keys = list(names)
    definitions = {
        names[key]: {"properties": {key: {"$ref": f"#/$defs/{names[keys[(n + 1) % len(keys)]]}"}}}
        for n, key in enumerate(keys)
    }
    definitions[names[keys[-1]]].update(last)
    return {"$ref": f"#/$defs/{names[keys[0]]}", "$defs": dict(sorted(definitions.items()))}


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_circles_are_known_by_what_is_in_them(size: int, chance: random.Random) -> None:
    keys = [f"k{n}" for n in range(size)]
    one = circle({key: f"One{key}" for key in keys})
    other = circle(dict(zip(keys, chance.sample([f"Other{key}" for key in keys], size), strict=True)))
    assert hash_of(one) == hash_of(other)
    assert hash_of(one) != hash_of(circle({key: key for key in keys}, minProperties=1)), "also far from where it begins"
    twice = {key: f"Twin{key}" for key in keys}
    assert hash_of({"anyOf": [{"$ref": one["$ref"]}], "$defs": {**one["$defs"], **circle(twice)["$defs"]}}) == hash_of(
        one
    )


def test_many_definitions_that_lead_everywhere() -> None:
    names = [f"d{n}" for n in range(40)]
    every = {"properties": {name: {"$ref": f"#/$defs/{name}"} for name in names}}
    tagged = {name: {**every, "required": [name]} for name in names}
    assert hash_of({**every, "$defs": tagged}) != hash_of({**every, "$defs": dict.fromkeys(names, every)})
    others = dict(reversed(tagged.items()))
    assert hash_of({**every, "$defs": tagged}) == hash_of({**every, "$defs": others})
    doubled: dict[str, Any] = {"d0": {"type": "null"}}
    for n in range(1, 100):
        doubled[f"d{n}"] = {"prefixItems": [{"$ref": f"#/$defs/d{n - 1}"}] * 2}
    assert len(hash_of({"$ref": "#/$defs/d99", "$defs": doubled})) == 64


TOPICS = st.lists(st.text("aZ09_-/=%é", min_size=1, max_size=90), min_size=1, max_size=4).map(".".join)


@given(TOPICS, TOPICS)
def test_logical_names_are_names_and_tell_channels_apart(one: str, other: str) -> None:
    if len(one) > 255 or len(other) > 255:
        return
    name = logical_name(one)
    assert name.startswith("/trunkline_")
    assert "/" not in name[1:]
    assert name.isascii()
    assert len(name) <= 250
    assert (name == logical_name(other)) == (one == other)


def test_logical_names_read_like_their_channel() -> None:
    assert logical_name("sensor_data", "pylabhub") == "/pylabhub_sensor_data"
