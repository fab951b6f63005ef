"""A form for a payload, from its schema. Plain values have a field; the rest is edited as JSON. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from trunkline.schema.nodes import resolve

KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "yes or no"}
MAX_FIELDS = 40


class FormField(msgspec.Struct, frozen=True):
    name: str
    kind: str
    """text, whole number, number, yes or no, or choice."""
    value: Any
    required: bool
    choices: list[Any] = []


def form_of(schema: dict[str, Any], value: Any) -> list[FormField]:
    """The fields with plain types. Empty if the payload or the schema is not an object."""
    node = _resolved(schema, schema)
    if not isinstance(value, dict) or not isinstance(node.get("properties"), dict):
        return []
    required = set(node.get("required", ()))
    found = []
    for name, part in list(node["properties"].items())[:MAX_FIELDS]:
        each = _resolved(part, schema)
        given = value.get(name, each.get("default"))
        if isinstance(choices := each.get("enum"), list):
            found.append(FormField(name, "choice", given, name in required, choices))
        elif (kind := KINDS.get(str(each.get("type")))) is not None:
            found.append(FormField(name, kind, given, name in required))
    return found


def _resolved(part: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """The target of a part that is a reference, else the part. Raises UsageError."""
    seen = 0
    while isinstance(part, dict) and "$ref" in part and seen < MAX_FIELDS:
        part, seen = resolve(schema, part["$ref"]), seen + 1
    return part if isinstance(part, dict) else {}


def changed_by(value: dict[str, Any], field: FormField, entered: Any) -> dict[str, Any]:
    """The payload with the value entered into a field. Raises ValueError if the value is not of the field's kind."""
    match field.kind:
        case "whole number":
            entered = int(entered)
        case "number":
            entered = float(entered)
            entered = int(entered) if entered.is_integer() and isinstance(value.get(field.name), int) else entered
    return {**value, field.name: entered}
