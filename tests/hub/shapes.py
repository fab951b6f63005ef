"""Schemas of all kinds, equivalent spellings of them, and matching values."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

SCALARS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string"},
        {"type": "string", "minLength": 1, "format": "date"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", "b", 1, None]},
        {"const": "x"},
        {},
    ]
)
NAMES = st.sampled_from(["a", "b", "c", "long name"])


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    extra: dict[str, Any] = draw(
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "string"}}])
    )
    return {"type": "object", "properties": properties, "required": required, **extra}


def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return (
        objects(inner)
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda some: {"type": "array", "prefixItems": some}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3))
    )


SCHEMAS = st.recursive(SCALARS, grown, max_leaves=8)


def dressed(node: Any, random: random.Random) -> Any:
    """An equivalent schema: keys, fields and alternatives in another order, with descriptions and a definition."""
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, value in node.items():
        match key:
            case "properties":
                pairs = [(name, dressed(each, random)) for name, each in value.items()]
                found[key] = dict(random.sample(pairs, len(pairs)))
            case "anyOf":
                found[key] = random.sample([dressed(each, random) for each in value], len(value))
            case "prefixItems":
                found[key] = [dressed(each, random) for each in value]
            case "items" | "additionalProperties":
                found[key] = dressed(value, random)
            case "required" | "enum":
                found[key] = random.sample(value, len(value))
            case "const" if random.random() < 0.5:
                found["enum"] = [value]
            case "type" if random.random() < 0.3:
                found[key] = [value]
            case _:
                found[key] = float(value) if value.__class__ is int and random.random() < 0.5 else value
    notes: list[dict[str, Any]] = [
        {"title": "T"},
        {"description": "D"},
        {"examples": [1]},
        {"$comment": "C"},
        {"x-a": {}},
    ]
    for words in notes:
        if random.random() < 0.3:
            found |= words
    return dict(random.sample(list(found.items()), len(found)))


def with_definitions(node: Any, definitions: dict[str, Any], random: random.Random) -> Any:
    """The same with some parts as named definitions."""
    if not isinstance(node, dict):
        return node
    found = dict(node)
    for key, value in node.items():
        if key == "properties":
            found[key] = {name: with_definitions(each, definitions, random) for name, each in value.items()}
        elif key in ("anyOf", "prefixItems"):
            found[key] = [with_definitions(each, definitions, random) for each in value]
        elif key in ("items", "additionalProperties"):
            found[key] = with_definitions(value, definitions, random)
    if random.random() < 0.5:
        name = f"D{len(definitions)}/{random.random()}"
        definitions[name] = found
        return {"$ref": "#/$defs/" + name.replace("/", "~1")}
    return found


def written(node: Any) -> st.SearchStrategy[Any]:
    """Values of a schema of the kind above."""
    if "anyOf" in node:
        return st.one_of([written(each) for each in node["anyOf"]])
    if "enum" in node or "const" in node:
        return st.sampled_from(node.get("enum") or [node["const"]])
    match node.get("type"):
        case "integer":
            return st.integers(0, 9)
        case "number":
            return st.integers(1, 9) | st.floats(0.5, 9)
        case "string":
            return st.text("ab", min_size=1)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array" if "items" in node:
            return st.lists(written(node["items"]), max_size=3)
        case "array":
            return st.tuples(*map(written, node["prefixItems"])).map(list)
        case "object":
            fields = {name: written(each) for name, each in node["properties"].items()}
            needed = {name: fields[name] for name in node["required"]}
            others = {name: each for name, each in fields.items() if name not in needed}
            return st.fixed_dictionaries(needed, optional=others)
    return st.none() | st.integers() | st.text() | st.lists(st.none()) | st.dictionaries(NAMES, st.booleans())
