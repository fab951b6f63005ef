"""The fields of a JSON Schema as columns of Spark: the type of each, and how it is read from JSON text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from pyspark.sql import Column, types
from pyspark.sql import functions as F

from trunkline.schema.nodes import resolve, significant

MAX_PARTS = 2000
"""After this many parts of a schema, references are no longer followed. Their values become JSON text."""
_MOMENT = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?$"
_WORD = re.compile(r"\w+")


class FieldType(Protocol):
    """The type of a field: `ddl` of its column, `parsed` for the JSON parser, and `read` to convert a parsed value."""

    @property
    def ddl(self) -> str: ...

    @property
    def parsed(self) -> types.DataType: ...

    def read(self, parsed: Column) -> Column: ...


class Plain(NamedTuple):
    ddl: str
    parsed: types.DataType

    def read(self, parsed: Column) -> Column:
        return parsed


class Moment(NamedTuple):
    """A text with the format date-time. The format was not checked before: another text becomes null."""

    ddl: str = "timestamp"
    parsed: types.DataType = types.StringType()

    def read(self, parsed: Column) -> Column:
        # Spark would also accept a time without a date, and add the current date.
        return F.when(parsed.rlike(_MOMENT), F.upper(parsed).try_cast("timestamp"))


class Other(NamedTuple):
    """Anything else, as JSON text."""

    ddl: str = "string"
    parsed: types.DataType = types.VariantType()

    def read(self, parsed: Column) -> Column:
        return F.when(~F.is_variant_null(parsed), F.to_json(parsed))


class List(NamedTuple):
    item: FieldType

    @property
    def ddl(self) -> str:
        return f"array<{self.item.ddl}>"

    @property
    def parsed(self) -> types.DataType:
        return types.ArrayType(self.item.parsed)

    def read(self, parsed: Column) -> Column:
        return F.transform(parsed, self.item.read)


class Struct(NamedTuple):
    fields: tuple[tuple[str, FieldType], ...]

    @property
    def ddl(self) -> str:
        return f"struct<{', '.join(f'`{name}`: {kind.ddl}' for name, kind in self.fields)}>"

    @property
    def parsed(self) -> types.DataType:
        return types.StructType([types.StructField(name, kind.parsed) for name, kind in self.fields])

    def read(self, parsed: Column) -> Column:
        inside = F.struct(*(kind.read(parsed.getField(name)).alias(name) for name, kind in self.fields))
        return F.when(parsed.isNotNull(), inside)


TEXT = Plain("string", types.StringType())
WHOLE = Plain("bigint", types.LongType())
NUMBER = Plain("double", types.DoubleType())
TRUTH = Plain("boolean", types.BooleanType())
MOMENT = Moment()
OTHER = Other()


def properties(schema: Any) -> dict[str, FieldType] | None:
    """The top-level fields of a schema; None if it does not describe a plain object with fields."""
    return _SchemaReader(schema).fields(schema, frozenset()) or None


def kind_of(schema: Any) -> FieldType:
    return _SchemaReader(schema).kind(schema, frozenset())


class _SchemaReader:
    """`path` has the references followed so far. The value of a recursive reference becomes JSON text."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MAX_PARTS

    def fields(self, node: Any, path: frozenset[str]) -> dict[str, FieldType]:
        """The fields of an object. Empty for other types, and for objects with a schema for additional properties."""
        words, path = self._words(node, path)
        if _types(words) != ["object"] or isinstance(words.get("additionalProperties"), dict):
            return {}
        return {name: self.kind(each, path) for name, each in words.get("properties", {}).items()}

    def kind(self, node: Any, path: frozenset[str]) -> FieldType:
        self._left -= 1
        words, inner = self._words(node, path)
        for several in ("anyOf", "oneOf"):
            if several in words:
                return _common(self.kind(each, inner) for each in words[several] if not self._is_null(each, inner))
        if "type" not in words and ("enum" in words or "const" in words):
            values = words["enum"] if "enum" in words else [words["const"]]
            return _common(_kind_of_value(value) for value in values if value is not None)
        match _types(words):
            case ["boolean"]:
                return TRUTH
            case ["integer"]:
                return WHOLE
            case ["number"] | ["integer", "number"]:
                return NUMBER
            case ["string"]:
                return MOMENT if words.get("format") == "date-time" else TEXT
            case ["array"] if "items" in words and "prefixItems" not in words:
                item = self.kind(words["items"], inner)
                return OTHER if item == OTHER else List(item)
            case ["object"]:
                return _record(self.fields(node, path))
        return OTHER

    def _words(self, node: Any, path: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
        """The keywords of a node, with references resolved. Empty for unsupported forms such as `allOf`."""
        while isinstance(node, dict) and "$ref" in node:
            if node["$ref"] in path or self._left < 0:
                return {}, path
            path |= {node["$ref"]}
            node = resolve(self._root, node["$ref"])
        words = significant(node) if isinstance(node, dict) else {}
        return ({} if "allOf" in words else words), path

    def _is_null(self, node: Any, path: frozenset[str]) -> bool:
        words, _ = self._words(node, path)
        return words.get("type") == "null" or words.get("const", 0) is None


def _types(words: dict[str, Any]) -> list[str]:
    """The declared types without null: every column is nullable."""
    declared = words.get("type", [])
    return sorted(({declared} if isinstance(declared, str) else set(declared)) - {"null"})


def _kind_of_value(value: Any) -> FieldType:
    kinds: dict[type, FieldType] = {bool: TRUTH, int: WHOLE, float: NUMBER, str: TEXT}
    return kinds.get(value.__class__, OTHER)


def _common(kinds: Iterable[FieldType]) -> FieldType:
    """The type that fits all of them."""
    different = list(dict.fromkeys(kinds))
    if len(different) == 1:
        return different[0]
    return NUMBER if different and set(different) <= {WHOLE, NUMBER} else OTHER


def _record(fields: dict[str, FieldType]) -> FieldType:
    """The type of an object: a struct if possible, else JSON text.

    In a struct, names are words that differ in more than case, and no field is JSON text.
    """
    plain = all(_WORD.fullmatch(name) for name in fields) and OTHER not in fields.values()
    distinct = len({name.lower() for name in fields}) == len(fields)
    return Struct(tuple(fields.items())) if fields and plain and distinct else OTHER


# Names


def column_names(fields: Iterable[str], taken: Iterable[str]) -> Iterator[str]:
    """A unique column name for each field. Spark ignores case in names."""
    used = {name.lower() for name in taken}
    for field in fields:
        name = re.sub(r"\W", "_", field) or "_"
        while name.lower() in used:
            name += "_"
        used.add(name.lower())
        yield name
