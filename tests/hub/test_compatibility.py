"""Compatibility of schemas: each kind of change breaks what it should, and the field is named."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub.shapes import SCHEMAS, written
from trunkline.registry.compatibility import Side, breaks
from trunkline.schema import Checker, schema_of

PRICE: dict[str, Any] = {"type": "number"}
BASE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "price": PRICE,
        "side": {"enum": ["buy", "sell"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "legs": {"type": "array", "items": {"$ref": "#/$defs/Leg"}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "pair": {"type": "array", "prefixItems": [PRICE, {"type": "string"}], "minItems": 2, "maxItems": 2},
        "shape": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
    },
    "required": ["price"],
    "$defs": {
        "Leg": {"type": "object", "properties": {"size": {"type": "integer", "maximum": 10}}, "required": ["size"]},
        "Circle": {
            "type": "object",
            "properties": {"type": {"enum": ["circle"]}, "radius": {"type": "number"}},
            "required": ["type", "radius"],
        },
        "Square": {
            "type": "object",
            "properties": {"type": {"enum": ["square"]}, "side": {"type": "number"}},
            "required": ["type", "side"],
        },
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """BASE with one part replaced; `-` removes it."""
    schema: dict[str, Any] = json.loads(json.dumps(BASE))
    *steps, last = path.split("/")
    node: Any = schema
    for each in steps:
        node = node[int(each)] if isinstance(node, list) else node[each]
    if value == "-":
        del node[last]
    elif isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    return schema


CHANGES: list[tuple[str, str, Any, str, str]] = [
    # what is changed, to what, the field that breaks for new readers, the field that breaks for old readers
    ("a required field more", "required", ["price", "note"], "$.note", ""),
    ("a required field less", "required", [], "", "$.price"),
    ("an optional field more", "properties/extra", {"type": "integer"}, "", ""),
    ("an optional field less", "properties/note", "-", "", ""),
    ("a type widened", "properties/legs/items", {}, "", "$.legs[]"),
    ("a type narrowed", "properties/price/type", "integer", "$.price", ""),
    ("another type", "properties/price", {"type": "string"}, "$.price", "$.price"),
    ("an alternative more", "properties/price", {"type": ["number", "null"]}, "", "$.price"),
    ("an alternative less", "properties/note", {"type": "string"}, "$.note", ""),
    ("an enum value more", "properties/side/enum", ["buy", "sell", "hold"], "", "$.side"),
    ("an enum value less", "properties/side/enum", ["buy"], "$.side", ""),
    ("an enum opened", "properties/side", {"type": "string"}, "", "$.side"),
    ("no unknown fields", "additionalProperties", False, "", ""),
    ("a nested field required", "$defs/Leg/required", ["size", "at"], "$.legs[].at", ""),
    ("a nested type", "$defs/Leg/properties/size/type", "string", "$.legs[].size", "$.legs[].size"),
    ("a bound narrowed", "$defs/Leg/properties/size/maximum", 9, "$.legs[].size", ""),
    ("a bound widened", "$defs/Leg/properties/size/maximum", 11, "", "$.legs[].size"),
    ("a bound added", "$defs/Leg/properties/size/exclusiveMinimum", 0, "$.legs[].size", ""),
    ("a mapping's values", "properties/tags/additionalProperties", {"type": "integer"}, "$.tags.*", "$.tags.*"),
    ("a mapping bounded", "properties/tags/maxProperties", 3, "$.tags", ""),
    ("names of a mapping", "properties/tags/propertyNames", {"maxLength": 3}, "$.tags.*", ""),
    ("a place in a tuple", "properties/pair/prefixItems/1", {"type": "integer"}, "$.pair[1]", "$.pair[1]"),
    ("a longer tuple", "properties/pair/maxItems", 3, "", "$.pair"),
    ("items must differ", "properties/legs/uniqueItems", True, "$.legs", ""),
    ("a format", "properties/note", {"type": ["string", "null"], "format": "date"}, "$.note", ""),
    ("a union of more", "properties/shape/anyOf", [*BASE["properties"]["shape"]["anyOf"], PRICE], "", "$.shape"),
    ("a union of less", "properties/shape/anyOf", [{"$ref": "#/$defs/Circle"}], "$.shape.type", ""),
    ("inside a union", "$defs/Square/properties/side/minimum", 0, "$.shape.side", ""),
    ("multiples", "properties/price/multipleOf", 0.5, "$.price", ""),
    ("as an intersection", "properties/price", {"allOf": [PRICE, {"minimum": 0}]}, "$.price", ""),
    ("nothing at all", "properties/price", False, "$.price", ""),
    ("anything at all", "properties/price", True, "", "$.price"),
]


@pytest.mark.parametrize(
    ("path", "value", "backward", "forward"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_each_change_names_its_field(path: str, value: Any, backward: str, forward: str) -> None:
    new = changed(path, value)
    found = breaks(writer=Side(BASE, "1.0.0"), reader=Side(new, "the new one"))
    assert {each.path for each in found} == ({backward} if backward else set()), found
    found = breaks(writer=Side(new, "the new one"), reader=Side(BASE, "1.0.0"))
    assert {each.path for each in found} == ({forward} if forward else set()), found


def test_closed_objects_know_no_new_fields() -> None:
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    wider = {**closed, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    assert breaks(Side(closed, "old"), Side(wider, "new")) == []
    (found,) = breaks(Side(wider, "new"), Side(closed, "old"))
    assert str(found) == "$.b: old does not know it, and allows no unknown fields"


@given(SCHEMAS)
def test_a_schema_reads_itself(schema: dict[str, Any]) -> None:
    assert breaks(Side(schema, "one"), Side(schema, "other")) == []


@given(SCHEMAS, SCHEMAS, st.data())
def test_what_is_readable_is_accepted(writer: Any, reader: Any, data: st.DataObject) -> None:
    """A reader without breaks accepts everything that a writer writes within its declared fields."""
    if not breaks(Side(writer, "writer"), Side(reader, "reader")):
        value = data.draw(written(writer))
        if Checker(writer)(value) is None:
            assert Checker(reader)(value) is None


class Tree(msgspec.Struct):
    left: Tree | None = None
    right: Tree | None = None


def test_recursive_schemas_are_compared() -> None:
    tree = schema_of(Tree)
    other = json.loads(json.dumps(tree).replace('"type": "null"', '"type": "integer"'))
    assert breaks(Side(tree, "one"), Side(tree, "other")) == []
    assert {each.path for each in breaks(Side(tree, "one"), Side(other, "other"))} >= {"$.left", "$.right"}
