"""The parts of a schema: which keywords constrain which values, and references."""

from __future__ import annotations

import json
from typing import Any, Final

from trunkline.errors import UsageError

_META = ("$schema", "$id", "id", "$anchor", "$vocabulary", "$comment", "$defs", "definitions", "discriminator")
ANNOTATIONS: Final = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", *_META)
) | {"contentMediaType", "contentSchema"}
"""Keywords that do not constrain values."""
KINDS: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_NUMBER = ("integer", "number")
APPLIES: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "contentEncoding"), ("string",)),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems"), ("array",)),
    **dict.fromkeys(("properties", "required", "additionalProperties", "propertyNames"), ("object",)),
    **dict.fromkeys(("minProperties", "maxProperties"), ("object",)),
    "format": ("string", *_NUMBER),
}
"""Keywords that constrain only values of some types."""
MAX_NODES: Final = 2000
"""The maximum number of parts of a schema."""


def significant(node: dict[str, Any]) -> dict[str, Any]:
    """The part without annotations."""
    return {key: value for key, value in node.items() if key not in ANNOTATIONS and not key.startswith("x-")}


def split(words: dict[str, Any]) -> list[dict[str, Any]]:
    """One part for each of its types, with the keywords of that type."""
    kinds = words.get("type")
    if kinds is None:
        return [words]
    return [
        {key: value for key, value in words.items() if kind in APPLIES.get(key, KINDS)} | {"type": kind}
        for kind in (kinds if isinstance(kinds, list) else [kinds])
    ]


def resolve(root: dict[str, Any], ref: Any) -> Any:
    """The target of `ref`: `#`, `#/$defs/NAME` or `#/definitions/NAME`. Raises UsageError."""
    if ref == "#":
        return root
    parts = ref.split("/") if isinstance(ref, str) else []
    if len(parts) == 3 and parts[0] == "#" and parts[1] in ("$defs", "definitions"):
        name = parts[2].replace("~1", "/").replace("~0", "~")
        definitions = root.get(parts[1])
        if isinstance(definitions, dict) and name in definitions:
            return definitions[name]
    raise UsageError(f"{short(ref)} refers to an unknown definition: put definitions into $defs of the schema itself")


def fits_kind(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a type."""
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def text_of(value: Any) -> str:
    """The canonical text of a JSON value: 1.0 is 1. Raises UsageError."""
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{short(value)} cannot be written as JSON") from error


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def short(value: Any, limit: int = 60) -> str:
    """A shortened value, for errors."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
