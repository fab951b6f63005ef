"""Reads a schema from outside into an equivalent document for jsonschema-rs that uses only known keywords.

- An unknown keyword is an error and is never ignored: it may constrain values, and neither the hash of a schema nor the
  rules of compatibility would cover it.
- References point to definitions of the schema itself; each definition that is used gets a number. Nothing is fetched.
- Annotations are left out.
- A choice (anyOf, oneOf) is decided by the type of the value, and among objects by a discriminating field. Then only
  one alternative is checked, and its problem is reported. If alternatives cannot be distinguished, the choice is
  written as `not not`, which only gives yes or no. Otherwise the library would list the problems of all nested
  alternatives, and there may be exponentially many.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

from trunkline.errors import UsageError
from trunkline.schema.library import make, validation_error
from trunkline.schema.nodes import KINDS, MAX_NODES, resolve, short, significant
from trunkline.schema.values import step

MAX_DEPTH: Final = 32
"""The maximum nesting depth of a schema."""
MAX_PATTERN_CHARS: Final = 1000
_VALUES: Final = frozenset(
    (
        *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "required"),
        *("minProperties", "maxProperties", "format", "contentEncoding"),
    )
)
"""Keywords that contain no schema."""
_ONE: Final = ("items", "additionalProperties", "propertyNames")
_CHOICES: Final = ("anyOf", "oneOf")
KEYWORDS: Final = _VALUES | {*_ONE, *_CHOICES, "$ref", "allOf", "prefixItems", "properties"}
"""Known keywords that constrain."""
_ALL: Final = frozenset(KINDS)


class Reading:
    """A schema that was read. The constructor raises UsageError for a schema that cannot be used, with the field."""

    def __init__(self, schema: Any, root: Any) -> None:
        self._root = root
        self._numbers: dict[str, int] = {}
        self._later: list[tuple[str, str]] = []
        self._kinds: dict[int, frozenset[str]] = {}
        self.parts = 0
        self.goes_deep = False
        """Whether a check may descend as deep as the value: the schema is recursive, or items must be unique."""
        self.definitions: dict[str, Any] = {}
        top = self._node(schema, "$", 0)
        while self._later:
            ref, where = self._later.pop()
            self.definitions[str(self._numbers[ref])] = self._node(resolve(root, ref), where, 0)
        self.document: Any = {**top, "$defs": self.definitions} if isinstance(top, dict) else top

    def target(self, ref: str) -> Any:
        """The definition that a reference of the document points to."""
        return self.definitions[ref.rpartition("/")[2]]

    # One part

    def _node(self, node: Any, where: str, depth: int) -> Any:
        self.parts += 1
        if self.parts > MAX_NODES:
            raise UsageError(f"the schema has more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise UsageError(f"{where}: the schema is nested too deeply, more than {MAX_DEPTH} levels")
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {short(node)} is not a schema: it must be an object, true or false")
        words = significant(node)
        found = self._values(words, where)
        depth += 1
        if "$ref" in words:
            found["$ref"] = self._reference(words["$ref"], where)
        for key in _ONE:
            if key in words:
                found[key] = self._node(words[key], where + ("[]" if key == "items" else ".*"), depth)
        if "prefixItems" in words:
            places = _listed(words, "prefixItems", where, least=0)
            # The library requires at least one, and leaving it out means the same.
            if places:
                found["prefixItems"] = [
                    self._node(each, f"{where}[{index}]", depth) for index, each in enumerate(places)
                ]
        if "properties" in words:
            fields = words["properties"]
            if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
                raise UsageError(f"{where}: properties cannot be {short(fields)}")
            found["properties"] = {name: self._node(each, where + step(name), depth) for name, each in fields.items()}
        demands = [self._node(each, where, depth) for each in _listed(words, "allOf", where)]
        for key in _CHOICES:
            if key in words:
                demands.append(self._choice(key, _listed(words, key, where), where, depth))
        if demands:
            found["allOf"] = demands
        return found

    def _values(self, words: dict[str, Any], where: str) -> dict[str, Any]:
        for key in words:
            if key not in KEYWORDS:
                near = difflib.get_close_matches(str(key), KEYWORDS, n=1)
                hint = "use another keyword, or begin its name with x- if it is only a description"
                hint = f"did you mean {near[0]!r}?" if near else hint
                raise UsageError(
                    f"{where}: the keyword {short(key)} is not supported, and might be a constraint: {hint}"
                )
        found = {key: value for key, value in words.items() if key in _VALUES}
        for key, value in found.items():
            self._check_value(key, value, where)
        if found.get("uniqueItems"):
            self.goes_deep = True
        found.pop("format", None)
        found.pop("contentEncoding", None)
        return found

    def _check_value(self, key: str, value: Any, where: str) -> None:
        try:
            if key == "pattern" and isinstance(value, str) and len(value) > MAX_PATTERN_CHARS:
                raise UsageError(f"{where}: a pattern may have {MAX_PATTERN_CHARS} characters, not {len(value)}")
            make({key: value})
        except validation_error() as error:
            why = ""
            if key == "pattern" and isinstance(value, str):
                why = (
                    ": it is not a regular expression, is too large (write maxLength for a long repetition), or has "
                    "look-around or back-references, which can take unlimited time"
                )
            raise UsageError(f"{where}: {key} cannot be {short(value)}{why}") from error
        except ValueError as error:
            raise UsageError(f"{where}: {key} cannot be {short(value)}: {error}") from error

    def _reference(self, ref: Any, where: str) -> str:
        resolve(self._root, ref)
        if ref not in self._numbers:
            self._numbers[ref] = len(self._numbers)
            self._later.append((ref, where))
        return f"#/$defs/{self._numbers[ref]}"

    # Choices

    def _choice(self, key: str, choices: list[Any], where: str, depth: int) -> Any:
        nodes = [self._node(each, where, depth) for each in choices]
        kinds = [self._kinds_of(each) for each in choices]
        allowed = frozenset[str]().union(*kinds)
        if not allowed:
            return False
        groups: dict[tuple[int, ...], list[str]] = {}
        for kind in KINDS:
            if kind in allowed and kind != "integer":
                fitting = tuple(index for index, each in enumerate(kinds) if kind in each)
                groups.setdefault(fitting, []).append(kind)
        if "integer" in allowed:
            # An integer fits both `number` and `integer`, so both alternatives are checked.
            fitting = tuple(index for index, each in enumerate(kinds) if "integer" in each)
            if "number" in allowed:
                groups = _without(groups, "number")
                groups.setdefault(fitting, []).append("number")
            else:
                groups.setdefault(fitting, []).append("integer")
        used = [index for group in groups for index in group]
        shared = {index for index in used if used.count(index) > 1}
        for index in shared:
            nodes[index] = self._defined(nodes[index])
        cases = []
        for group, types in groups.items():
            then = self._one_of_group(key, [(choices[index], nodes[index]) for index in group], types)
            if then is not True:
                cases.append({"if": {"type": types}, "then": then})
        found: dict[str, Any] = {} if allowed == _ALL else {"type": _types(allowed)}
        if cases:
            found["allOf"] = cases
        return found

    def _one_of_group(self, key: str, group: list[tuple[Any, Any]], types: list[str]) -> Any:
        """The schema for values of some types that may match one of these alternatives."""
        nodes = [node for _, node in group]
        if len(nodes) == 1:
            return True if _only_type(nodes[0]) else nodes[0]
        if key == "anyOf" and any(_only_type(node) and _covers(node, types) for node in nodes):
            return True
        if types == ["object"] and (discriminator := self._discriminator([choice for choice, _ in group])) is not None:
            name, values = discriminator
            cases = [
                {"if": {"required": [name], "properties": {name: {"enum": each}}}, "then": node}
                for each, node in zip(values, nodes, strict=True)
            ]
            every = [value for each in values for value in each]
            return {"required": [name], "properties": {name: {"enum": every}}, "allOf": cases}
        return {"not": {"not": {key: nodes}}}

    def _defined(self, node: Any) -> Any:
        """A reference to the same schema as a shared definition."""
        if isinstance(node, bool) or node.keys() == {"$ref"}:
            return node
        number = f"part{len(self.definitions)}"
        self.definitions[number] = node
        return {"$ref": f"#/$defs/{number}"}

    def _kinds_of(self, node: Any) -> frozenset[str]:
        """The types of values that may match. `number` includes integers."""
        if isinstance(node, bool):
            return _ALL if node else frozenset()
        known = self._kinds.get(id(node))
        if known is not None:
            return known
        self._kinds[id(node)] = _ALL
        found = _ALL
        if "type" in node:
            kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
            found &= {*kinds, "integer"} if "number" in kinds else frozenset(kinds)
        if "const" in node:
            found &= _kinds_of_values([node["const"]])
        if "enum" in node:
            found &= _kinds_of_values(node["enum"])
        if "$ref" in node:
            found &= self._kinds_of(resolve(self._root, node["$ref"]))
        for each in node.get("allOf", ()):
            found &= self._kinds_of(each)
        for key in _CHOICES:
            if key in node:
                found &= frozenset[str]().union(*map(self._kinds_of, node[key]))
        self._kinds[id(node)] = found
        return found

    def _discriminator(self, choices: Iterable[Any]) -> tuple[str, list[list[Any]]] | None:
        """A required field whose values differ between the alternatives, and these values."""
        tags = [self._tags(each) for each in choices]
        for name in tags[0]:
            values = [each.get(name, []) for each in tags]
            if all(values) and len({value for each in values for value in each}) == sum(map(len, values)):
                return name, values
        return None

    def _tags(self, node: Any) -> dict[str, list[Any]]:
        node = self._followed(node)
        if not isinstance(node, dict):
            return {}
        fields = node.get("properties", {})
        found = {}
        for name in node.get("required", ()):
            field = self._followed(fields.get(name))
            if isinstance(field, dict):
                values = [field["const"]] if "const" in field else field.get("enum", [])
                if all(value.__class__ in (str, int) for value in values):
                    found[name] = list(dict.fromkeys(values))
        return found

    def _followed(self, node: Any) -> Any:
        return resolve(self._root, node["$ref"]) if isinstance(node, dict) and "$ref" in node else node


def _listed(words: dict[str, Any], key: str, where: str, least: int = 1) -> list[Any]:
    if key not in words:
        return []
    value = words[key]
    if not isinstance(value, list) or len(value) < least:
        raise UsageError(f"{where}: {key} cannot be {short(value)}")
    return value


def _kinds_of_values(values: list[Any]) -> frozenset[str]:
    found: set[str] = set()
    for value in values:
        match value:
            case None:
                found.add("null")
            case bool():
                found.add("boolean")
            case int() | float():
                found |= {"integer", "number"}
            case str():
                found.add("string")
            case list():
                found.add("array")
            case _:
                found.add("object")
    return frozenset(found)


def _types(kinds: frozenset[str]) -> list[str]:
    return [kind for kind in KINDS if kind in kinds and (kind != "integer" or "number" not in kinds)]


def _without(groups: dict[tuple[int, ...], list[str]], kind: str) -> dict[tuple[int, ...], list[str]]:
    left = {group: [each for each in kinds if each != kind] for group, kinds in groups.items()}
    return {group: kinds for group, kinds in left.items() if kinds}


def _only_type(node: Any) -> bool:
    return node is True or (isinstance(node, dict) and not node.keys() - {"type"})


def _covers(node: Any, types: list[str]) -> bool:
    if node is True or "type" not in node:
        return True
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    return all(kind in kinds or (kind == "integer" and "number" in kinds) for kind in types)
