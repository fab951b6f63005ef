"""Whether a payload fits a schema: the schema is made into functions once, which look at each value once.

Of JSON Schema it knows what msgspec writes and the common rest. A keyword that it does not know is an error when the
schema is read, never ignored. Three things are as msgspec reads payloads, not as the letter of JSON Schema has them:
1.0 is no integer, raw bytes fit a text in base64, and a MessagePack timestamp fits a text. `format` is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import NoneType
from typing import Any, Final

from trunkline.codec import MAX_PLAIN_BYTES
from trunkline.errors import PayloadError, UsageError
from trunkline.message import Message
from trunkline.schema_nodes import KINDS, MAX_NODES, resolve, short
from trunkline.schema_values import (
    CLASSES,
    Check,
    Problem,
    Table,
    anything,
    both,
    check_of,
    choice,
    number_check,
    one_of,
    repeated,
    step,
    text_check,
    words_of,
)

TRIES: Final = 10_000
"""How often alternatives are tried for one payload, beyond what its size explains."""
_ARRAY = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}
_OBJECT = {"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"}


class Checker:
    """Call it with a value, as it was decoded. Raises UsageError, when made, for a schema that cannot be used.

    Without `patterns` no regular expression is run: one can be written so that it does not end, and whoever serves many
    must not wait for it.
    """

    def __init__(self, schema: Any, root: dict[str, Any] | None = None, *, patterns: bool = True) -> None:
        self._tries = [0]
        try:
            compiler = _Compiler(schema if root is None else root, self._tries, patterns)
            self._check = compiler.whole(schema)
        except RecursionError as error:
            raise UsageError("the schema is nested too deeply") from error

        self.parts = compiler.nodes
        """How many parts the schema has."""

    def __call__(self, value: Any, size: int = 0) -> Problem | None:
        """What is wrong with it, if anything; `size` is that of the payload, in bytes."""
        if self._check is None:
            return None
        self._tries[0] = TRIES + size
        try:
            found = self._check(value)
        except RecursionError:
            return "$", "it is nested too deeply"
        return None if found is None else ("$" + found[0], found[1])

    def broken(self, message: Message, max_bytes: int = MAX_PLAIN_BYTES) -> Problem | None:
        """What is wrong with the payload of a message. What cannot be read does not fit."""
        try:
            value = message.decode(max_bytes=max_bytes)
        except PayloadError as error:
            return "$", str(error)
        return self(value, len(message.payload))


class _Compiler:
    def __init__(self, root: Any, tries: list[int], patterns: bool) -> None:
        self._root = root
        self._tries = tries
        self._patterns = patterns
        self._tables: dict[str, Table] = {}
        self._open: set[str] = set()
        self._later: list[tuple[Any, Any, Any, str]] = []
        """Parts that belong to what is inside a value: where the check goes, the schema, and its place."""
        self._tags: dict[Check, dict[str, frozenset[Any]]] = {}
        self.nodes = 0

    def whole(self, schema: Any) -> Check | None:
        check = check_of(self._table(schema, "$"))
        while self._later:
            place, key, node, where = self._later.pop()
            place[key] = check_of(self._table(node, where))
        return check

    def _table(self, node: Any, where: str) -> Table:
        """What is demanded of the value itself. What is inside it comes later, so a schema may lead back to itself."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise UsageError(f"the schema has more than {MAX_NODES} parts")
        if isinstance(node, bool):
            return dict.fromkeys(CLASSES) if node else {}
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {short(node)} is no schema: it must be an object, true or false")
        words = words_of(node, where)
        table = self._own(words, where)
        if "$ref" in words:
            table = both(table, self._follow(words["$ref"], where))
        for each in words.get("allOf", ()):
            table = both(table, self._table(each, where))
        if "anyOf" in words:
            table = both(table, self._either([self._table(each, where) for each in words["anyOf"]], self._any))
        if "oneOf" in words:
            table = both(table, self._either([self._table(each, where) for each in words["oneOf"]], self._one))
        if "enum" in words:
            table = both(table, one_of(words["enum"]))
        if "const" in words:
            table = both(table, one_of([words["const"]]))
        return table

    def _follow(self, ref: str, where: str) -> Table:
        table = self._tables.get(ref)
        if table is None:
            if ref in self._open:
                raise UsageError(f"{where}: {ref} leads back to itself without going deeper")
            self._open.add(ref)
            table = self._tables[ref] = self._table(resolve(self._root, ref), where)
            self._open.discard(ref)
        return table

    def _own(self, words: dict[str, Any], where: str) -> Table:
        kinds = words.get("type")
        table: Table = {} if kinds is not None else {bytes: None, datetime: None}
        for kind in KINDS if kinds is None else kinds if isinstance(kinds, list) else [kinds]:
            match kind:
                case "null":
                    table[NoneType] = None
                case "boolean":
                    table[bool] = None
                case "integer":
                    table[int] = number_check(words)
                case "number":
                    table[int] = table[float] = number_check(words)
                case "string":
                    table[str] = check = text_check(words, self._patterns)
                    if words.get("contentEncoding") == "base64":
                        table[bytes] = None
                    elif check is None:
                        table[datetime] = None
                case "array":
                    table[list] = self._array(words, where)
                case "object":
                    table[dict] = self._object(words, where)
        return table

    def _array(self, words: dict[str, Any], where: str) -> Check | None:
        if not _ARRAY & words.keys():
            return None
        low, high, unique = words.get("minItems", 0), words.get("maxItems"), words.get("uniqueItems", False)
        leading: list[Check | None] = []
        rest: list[Check | None] = [None]
        for index, node in enumerate(words.get("prefixItems", ())):
            leading.append(None)
            self._later.append((leading, index, node, f"{where}[{index}]"))
        if "items" in words:
            self._later.append((rest, 0, words["items"], f"{where}[]"))
        closed = words.get("items") is False

        def check(values: list[Any]) -> Problem | None:
            if len(values) < low:
                return "", f"{len(values)} items, and at least {low} are wanted"
            if high is not None and len(values) > high:
                return "", f"{len(values)} items, and at most {high} are allowed"
            if closed and len(values) > len(leading):
                return f"[{len(leading)}]", "an item too many"
            for index, inner in enumerate(leading[: len(values)]):
                if inner is not None and (found := inner(values[index])) is not None:
                    return f"[{index}]{found[0]}", found[1]
            if (inner := rest[0]) is not None:
                for index in range(len(leading), len(values)):
                    if (found := inner(values[index])) is not None:
                        return f"[{index}]{found[0]}", found[1]
            if unique and (twice := repeated(values)) is not None:
                return f"[{twice}]", "it is there twice"
            return None

        return check

    def _object(self, words: dict[str, Any], where: str) -> Check | None:
        if not _OBJECT & words.keys():
            return None
        required = tuple(words.get("required", ()))
        low, high = words.get("minProperties", 0), words.get("maxProperties")
        closed = words.get("additionalProperties") is False
        known: dict[Any, Check | None] = {}
        rest: list[Check | None] = [None, None]
        for name, node in words.get("properties", {}).items():
            known[name] = None
            self._later.append((known, name, node, where + step(name)))
        for index, key in enumerate(("additionalProperties", "propertyNames")):
            if key in words and not (closed and index == 0):
                self._later.append((rest, index, words[key], f"{where}.*"))

        def check(fields: dict[Any, Any]) -> Problem | None:
            for name in required:
                if name not in fields:
                    return step(name), "a required field is missing"
            if low and len(fields) < low:
                return "", f"{len(fields)} fields, and at least {low} are wanted"
            if high is not None and len(fields) > high:
                return "", f"{len(fields)} fields, and at most {high} are allowed"
            others, names = rest
            for name, value in fields.items():
                if names is not None and (found := names(name)) is not None:
                    return step(name), f"its name: {found[1]}"
                inner = known.get(name, others)
                if inner is not None and (found := inner(value)) is not None:
                    return step(name) + found[0], found[1]
                if closed and name not in known:
                    return step(name), "a field that is not known"
            return None

        properties = words.get("properties", {})
        self._tags[check] = {
            name: values for name in required if (values := self._values(properties.get(name))) is not None
        }
        return check

    def _values(self, node: Any) -> frozenset[Any] | None:
        """The only values a field may have, if it tells alternatives apart."""
        if isinstance(node, dict) and "$ref" in node:
            node = resolve(self._root, node["$ref"])
        if not isinstance(node, dict):
            return None
        values = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(values, list) and all(value.__class__ in (str, int) for value in values):
            return frozenset(values)
        return None

    # Alternatives

    def _either(self, tables: list[Table], combine: Callable[[list[Check]], Check]) -> Table:
        """A value's class says which alternatives it may be: mostly there is one, and its problem is the problem."""
        table: Table = {}
        for kind in CLASSES:
            checks = [each[kind] for each in tables if kind in each]
            if combine == self._any:
                checks = list(dict.fromkeys(checks))
                if None in checks:
                    checks = [None]
            if len(checks) == 1:
                table[kind] = checks[0]
            elif checks:
                some: list[Check] = [check if check is not None else anything for check in checks]
                table[kind] = self._tagged(some) or combine(some)
        return table

    def _tagged(self, checks: list[Check]) -> Check | None:
        """If a field with different values in each of them tells them apart, it chooses."""
        for name, first in self._tags.get(checks[0], {}).items():
            sets = [first, *(self._tags.get(check, {}).get(name, frozenset()) for check in checks[1:])]
            if all(sets) and len(frozenset().union(*sets)) == sum(map(len, sets)):
                pairs = zip(sets, checks, strict=True)
                return choice(name, {value: check for values, check in pairs for value in values})
        return None

    def _any(self, checks: list[Check]) -> Check:
        tries = self._tries

        def check(value: Any) -> Problem | None:
            # Alternatives within alternatives could be tried without end.
            tries[0] -= 1
            if tries[0] < 0:
                return "", "there are too many alternatives to try"
            nearest: Problem | None = None
            for each in checks:
                if (found := each(value)) is None:
                    return None
                if nearest is None or len(found[0]) > len(nearest[0]):
                    nearest = found
            assert nearest is not None
            return nearest[0], f"none of {len(checks)} alternatives fits, and the nearest says: {nearest[1]}"

        return check

    def _one(self, checks: list[Check]) -> Check:
        tries, some = self._tries, self._any(checks)

        def check(value: Any) -> Problem | None:
            tries[0] -= 1
            if tries[0] < 0:
                return "", "there are too many alternatives to try"
            fitting = sum(each(value) is None for each in checks)
            if fitting == 1:
                return None
            return ("", f"{fitting} alternatives fit, and only one may") if fitting else some(value)

        return check
