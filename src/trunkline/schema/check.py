"""Checks payloads against a schema with jsonschema-rs, and names the field that does not match.

The result is that of JSON Schema (draft 2020-12) for the payload as a JSON value (see values.py). `format` is not
checked. The time of a check is bounded for every schema: see reading.py and bounds.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trunkline import arrays
from trunkline.codec import MAX_PLAIN_BYTES
from trunkline.errors import PayloadError, UsageError
from trunkline.message import Message
from trunkline.schema.bounds import check_bounds
from trunkline.schema.library import make, validation_error
from trunkline.schema.nodes import KINDS, short
from trunkline.schema.reading import Reading
from trunkline.schema.values import MAX_DEPTH, JsonValue, NotJson, TooDeep, nested_too_deeply, shown, step

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

Problem = tuple[str, str]
"""The place, as a path such as `$.price`, and the problem there."""
TOO_DEEP: Problem = ("$", "it is nested too deeply")


class Checker:
    """Call it with a decoded value. The constructor raises UsageError for a schema that cannot be used.

    `root` is the schema to which references belong, if `schema` is a part of it.
    """

    def __init__(self, schema: Any, root: dict[str, Any] | None = None) -> None:
        try:
            reading = Reading(schema, schema if root is None else root)
            check_bounds(reading)
        except RecursionError as error:
            raise UsageError("the schema is nested too deeply") from error
        self.parts = reading.parts
        """The number of parts of the schema."""
        self._goes_deep = reading.goes_deep
        self._validator = make(reading.document)
        self._fits = self._validator.is_valid
        self._error = validation_error()

    def __call__(self, value: Any, size: int = 0) -> Problem | None:
        """The problem, or None. `size` is the encoded size of the value in bytes, if known."""
        # A value of this size cannot be too deep.
        if self._goes_deep and not 0 < size <= MAX_DEPTH and nested_too_deeply(value):
            return TOO_DEEP
        try:
            if self._fits(value):
                return None
        except ValueError:
            # It has values that JSON does not have: bytes, timestamps, keys that are not text.
            pass
        return self._problem(value)

    def broken(self, message: Message, max_bytes: int = MAX_PLAIN_BYTES) -> Problem | None:
        """The problem of a message's payload, or None.

        Payloads that cannot be read, or are not JSON values, do not match.
        """
        if message.content_type in arrays.FORMATS:
            return "$", f"{message.content_type} is not a JSON value: a schema describes values, not arrays and tables"
        try:
            value = message.decode(max_bytes=max_bytes)
        except PayloadError as error:
            return "$", str(error)
        return self(value, 0 if message.encoding else len(message.payload))

    def _problem(self, value: Any) -> Problem | None:
        try:
            read = JsonValue(value)
        except TooDeep:
            return TOO_DEEP
        except NotJson as error:
            return "$" + error.path, error.why
        problem = self._first(read.value)
        if problem is None and (other := read.below()) is not None:
            problem = self._first(other)
        return problem

    def _first(self, value: Any) -> Problem | None:
        try:
            # Finding the first problem takes longer than a plain yes or no.
            if self._fits(value):
                return None
            self._validator.validate(value)
        except self._error as error:
            return _named(error, value)
        except ValueError as error:
            return "$", f"it cannot be checked: {error}"
        return "$", "it does not match"


def _named(error: ValidationError, whole: Any) -> Problem:
    path = _path(error.instance_path, whole)
    value: Any = error.instance
    kind: Any = error.kind
    match kind.name:
        case "required":
            return path + step(kind.property), "a required field is missing"
        case "additionalProperties":
            return path + step(kind.unexpected[0]), "an unknown field"
        case "propertyNames":
            name = kind.error.instance
            return path + step(name), f"its name: {_why(kind.error.kind, name)}"
        case "falseSchema" if error.schema_path[-1:] == ["additionalProperties"]:
            return path + step(next(iter(value))), "an unknown field"
        case "falseSchema" if error.schema_path[-1:] == ["items"]:
            return path, "too many items"
    return path, _why(kind, value)


def _path(steps: Iterable[str | int], value: Any) -> str:
    """The path of a problem.

    The library omits empty keys, and turns keys of digits into integers, so the original keys are looked up in the
    value.
    """
    path = "$"
    for key in steps:
        while isinstance(value, dict) and key not in value:
            alike = (
                [name for name in value if name.isdecimal() and len(name) < 20 and int(name) == key]
                if isinstance(key, int)
                else []
            )
            if not alike and "" not in value:
                return path
            if alike:
                key = alike[0]
            else:
                value, path = value[""], path + step("")
        value = value[key]
        path += f"[{key}]" if isinstance(key, int) else step(key)
    return path


def _why(kind: Any, value: Any) -> str:
    match kind.name:
        case "type":
            wanted = [
                each for each in KINDS if each in kind.types and (each != "integer" or "number" not in kind.types)
            ]
            return f"{kind_of(value)} instead of {' or '.join(wanted)}"
        case "falseSchema":
            return f"{kind_of(value)} instead of nothing"
        case "enum":
            return f"it is not one of {short(kind.options)}"
        case "const":
            return f"it is not {short(kind.expected_value)}"
        case "minimum":
            return f"{short(shown(value))} is below {kind.limit}"
        case "maximum":
            return f"{short(shown(value))} is above {kind.limit}"
        case "exclusiveMinimum":
            return f"{short(shown(value))} is not above {kind.limit}"
        case "exclusiveMaximum":
            return f"{short(shown(value))} is not below {kind.limit}"
        case "multipleOf":
            return f"{short(shown(value))} is not a multiple of {kind.multiple_of}"
        case "pattern":
            return f"{short(value)} does not match {short(kind.pattern)}"
        case "uniqueItems":
            return "an item is repeated"
        case "not":
            return _alternatives(kind.schema["not"])
        case "minLength" | "minItems" | "minProperties" as name:
            return f"{len(value)} {_COUNTED[name[3:]]}, and at least {kind.limit} are required"
        case "maxLength" | "maxItems" | "maxProperties" as name:
            return f"{len(value)} {_COUNTED[name[3:]]}, and at most {kind.limit} are allowed"
        case other:
            return f"it violates {other}"


_COUNTED = {"Length": "characters", "Items": "items", "Properties": "fields"}


def _alternatives(words: dict[str, Any]) -> str:
    """The problem of a choice that is written as `not not` (see reading.py)."""
    ((keyword, choices),) = words.items()
    if keyword == "anyOf":
        return f"none of {len(choices)} alternatives matches"
    return f"not exactly one of {len(choices)} alternatives matches"


def kind_of(value: Any) -> str:
    """The type of a JSON value, as JSON Schema calls it."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"
