"""Schemas from types, and the hash of a schema's meaning, taken from its canonical form.

Schemas of the same meaning have the same hash, wherever it is computed:

- annotations do not count: titles, descriptions, defaults, …, and keywords that begin with `x-`;
- the order of keys, of required fields, of enum values and of alternatives does not count;
- a definition counts as if it were written in place of each reference to it: its name does not matter. Except for
  definitions that form a cycle, it also does not matter whether a definition is used at all;
- `const` counts as an enum with one value, a list of types as an anyOf, and a type beside an enum only selects from its
  values;
- a keyword without an effect (`minItems: 0`, `items: true`), or for another type, is left out;
- `format` counts, although payloads are not checked against it: a date is not any text.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import msgspec

from trunkline.errors import UsageError
from trunkline.schema.nodes import MAX_NODES, fits_kind, resolve, short, significant, split, text_of

MAX_STEPS: Final = 10 * MAX_NODES
"""The maximum number of steps to compute a hash."""


def schema_of(type: Any) -> dict[str, Any]:
    """The JSON Schema of a type that msgspec supports: a Struct, a dataclass, a TypedDict.

    A schema is returned unchanged.
    """
    if isinstance(type, dict):
        return type
    try:
        return msgspec.json.schema(type)
    except (TypeError, NameError, RecursionError) as error:
        raise UsageError(f"cannot make a schema from {type!r}: {error}") from error


def hash_of(schema: Any) -> str:
    """The hash of the meaning of a schema, or of the schema of a type. Raises UsageError for an invalid schema."""
    root = schema_of(schema)
    try:
        return _Digest(root).whole()
    except RecursionError as error:
        raise UsageError("the schema is nested too deeply") from error


# The canonical form


def _sha(meaning: Any) -> str:
    return sha256(text_of(meaning).encode()).hexdigest()


_ANYTHING = _sha({})
_NOTHING = _sha(False)
_NO_EFFECT: dict[str, Any] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), 0),
    "required": [],
    "prefixItems": [],
    "properties": {},
    "uniqueItems": False,
}
_ONE = ("items", "additionalProperties", "propertyNames")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")


class _Digest:
    """The hash of each part, computed from the hashes of its own parts."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._final: dict[str, str] = {}
        """The hashes of definitions."""
        self._so_far: dict[str, str] = {}
        """Intermediate hashes of definitions that form a cycle."""
        self._places: dict[str, int] = {}
        self._open: list[str] = []
        self._steps = 0

    def whole(self) -> str:
        self._visit("#")
        return self._final["#"]

    def _visit(self, ref: str) -> int:
        """Hash a definition after those it refers to, and those of a cycle together (Tarjan's algorithm).

        Returns the index of the earliest open definition that it refers back to.
        """
        earliest = place = self._places[ref] = len(self._places)
        self._open.append(ref)
        for other in _references(resolve(self._root, ref)):
            resolve(self._root, other)
            if other not in self._final:
                known = self._places.get(other)
                earliest = min(earliest, self._visit(other) if known is None else known)
        if earliest == place:
            at = self._open.index(ref)
            circle = self._open[at:]
            del self._open[at:]
            self._settle(circle)
        return earliest

    def _settle(self, circle: list[str]) -> None:
        """The definitions of a cycle are refined round by round, until no round distinguishes more of them.

        Each hash then covers the relevant definitions around it, and all hashes together cover the rest.
        """
        contents = {ref: resolve(self._root, ref) for ref in circle}
        if len(circle) == 1 and circle[0] not in _references(contents[circle[0]]):
            self._final[circle[0]] = self.of(contents[circle[0]])
            return
        before = dict.fromkeys(circle, "")
        while True:
            self._so_far = before
            after = {ref: self.of(content) for ref, content in contents.items()}
            if len(set(after.values())) == len(set(before.values())):
                break
            before = after
        self._so_far = {}
        among = sorted(set(after.values()))
        self._final.update({ref: _sha({"of": digest, "among": among}) for ref, digest in after.items()})

    def of(self, node: Any) -> str:
        """The constraints of a part in canonical form: its own keywords, its references, its alternatives."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise UsageError("the schema is too large, or its parts refer to each other in too many ways")
        if isinstance(node, bool):
            return _ANYTHING if node else _NOTHING
        if not isinstance(node, dict):
            raise UsageError(f"{short(node)} is not a schema: it must be an object, true or false")
        words = significant(node)
        demands: list[str] = []
        if "$ref" in words:
            ref = words.pop("$ref")
            demands.append(self._so_far[ref] if ref in self._so_far else self._final[ref])
        demands += [self.of(each) for each in _parts(words.pop("allOf", []))]
        if "anyOf" in words:
            demands.append(_any_of([self.of(each) for each in _parts(words.pop("anyOf"))]))
        if "oneOf" in words:
            demands.append(_sha({"oneOf": sorted(self.of(each) for each in _parts(words.pop("oneOf")))}))
        if words:
            demands.append(_any_of([self._own(each) for each in split(words)]))
        different = sorted(set(demands) - {_ANYTHING})
        if not different:
            return _ANYTHING
        return different[0] if len(different) == 1 else _sha({"allOf": different})

    def _own(self, words: dict[str, Any]) -> str:
        if "const" in words and "enum" not in words:
            words = {**words, "enum": [words["const"]]}
            del words["const"]
        meaning: dict[str, Any] = {}
        for key, value in words.items():
            if key in _NO_EFFECT and value == _NO_EFFECT[key]:
                continue
            if key in _ONE:
                if (digest := self.of(value)) != _ANYTHING:
                    meaning[key] = digest
            elif key == "properties":
                if not isinstance(value, dict):
                    raise UsageError(f"{key} cannot be {short(value)}")
                meaning[key] = {name: self.of(each) for name, each in value.items()}
            elif key == "prefixItems":
                meaning[key] = [self.of(each) for each in _parts(value)]
            elif key in ("required", "enum"):
                meaning[key] = sorted({text_of(each) for each in _parts(value)})
            else:
                meaning[key] = value
        if "enum" in words and "type" in words:
            kind = meaning.pop("type")
            meaning["enum"] = sorted({text_of(each) for each in words["enum"] if fits_kind(each, kind)})
        return _sha(meaning)


def _references(node: Any) -> Iterator[str]:
    """All references inside a part."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == "$ref":
            yield value
        elif key in _ONE:
            yield from _references(value)
        elif key in _SEVERAL or key == "properties":
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for each in inside:
                yield from _references(each)


def _any_of(digests: list[str]) -> str:
    different = sorted(set(digests) - {_NOTHING})
    if not different:
        return _NOTHING
    if _ANYTHING in different:
        return _ANYTHING
    return different[0] if len(different) == 1 else _sha({"anyOf": different})


def _parts(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{short(value)} must be a list")
    return value
