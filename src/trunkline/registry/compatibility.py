"""Whether a reader with one schema can read what a writer with another one writes, and if not, at which field.

    backward   the new schema reads what was written with the last one
    forward    the last schema reads what is written with the new one
    full       both

A writer is assumed to write only what its schema declares: an object that allows unknown fields is not treated as if it
had them. What is compared, from the outside in:

- types: an integer is also a number, all other types are distinct; each alternative of the writer (anyOf, oneOf, lists
  of types) must be readable by one of the reader's;
- enum and const: each of the writer's values must match the reader; if only the reader has an enum, it is incompatible;
- fields: a field that the reader requires must be required by the writer; fields of both are compared; a field that
  only the writer has must be allowed by the reader (additionalProperties); names and counts of fields are compared as
  bounds;
- items of arrays, one by one if they have positions (prefixItems); counts are compared as bounds; uniqueItems;
- bounds (minimum, maxLength, …): the reader's must not be narrower; multipleOf must divide the writer's;
- pattern, format and contentEncoding: the reader's must be equal to the writer's.

References are followed, also in cycles. If compatibility cannot be decided, the schemas are incompatible.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from trunkline.errors import UsageError
from trunkline.schema import Checker
from trunkline.schema.nodes import fits_kind, resolve, short, significant, split, text_of
from trunkline.schema.values import step

Node = dict[str, Any]
MAX_STEPS = 15_000
MAX_BREAKS = 20
ANYTHING: Node = {}
TEXT: Node = {"type": "string"}
_SAME = ("pattern", "format", "contentEncoding")
_COUNTS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


class Break(NamedTuple):
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class Side(NamedTuple):
    """A schema, and its name in errors."""

    root: Node
    name: str


def breaks(writer: Side, reader: Side) -> list[Break]:
    """The differences that the reader cannot read.

    Raises UsageError for schemas that are too complicated to compare.
    """
    try:
        return _at("$", _Comparison(writer, reader).nodes(writer.root, reader.root))
    except RecursionError as error:
        raise UsageError("the schema is nested too deeply to be compared") from error


class _Comparison:
    """One comparison. Paths of its findings begin at the part that is compared."""

    def __init__(self, writer: Side, reader: Side) -> None:
        self._budget = Budget()
        self._given = Branches(writer.root, self._budget)
        self._wanted = Branches(reader.root, self._budget)
        self._root = reader.root
        self._w, self._r = writer.name, reader.name
        self._held: dict[tuple[int, int], None] = {}
        """Pairs that are compatible, or being compared: a cycle is compatible if no pair in it breaks."""
        self._broken: dict[tuple[int, int], list[Break]] = {}
        self._kept: list[Any] = []

    def nodes(self, w: Any, r: Any) -> list[Break]:
        pair = (id(w), id(r))
        if pair in self._held:
            return []
        if (known := self._broken.get(pair)) is not None:
            return known
        # Keeps temporary parts alive, so that their ids are not reused.
        self._kept += (w, r)
        before = len(self._held)
        self._held[pair] = None
        found = self._alternatives(w, r)[:MAX_BREAKS]
        if found:
            # Results that assumed that this pair is compatible are discarded.
            while len(self._held) > before:
                self._held.popitem()
            self._broken[pair] = found
        return found

    def _alternatives(self, w: Any, r: Any) -> list[Break]:
        wanted = [(each.get("type"), _tags(each), each) for each in self._wanted.of(r)]
        found: list[Break] = []
        for given in self._given.of(w):
            self._budget.spend(1 + len(wanted) // 20)
            kind, tags = given.get("type"), _tags(given)
            # The alternative of the same type and discriminator comes first: its breaks are reported.
            likeliest = sorted(wanted, key=lambda each: (each[0] != kind, each[1] != tags))
            first: list[Break] = []
            for _, _, each in likeliest:
                attempt = self._flat(given, each)
                if not attempt:
                    break
                first = first or attempt
            else:
                found += first or [Break("", f"nothing is allowed in {self._r}")]
        return found

    def _flat(self, w: Node, r: Node) -> list[Break]:
        """Two parts without alternatives."""
        self._budget.spend(1)
        if not r:
            return []
        if "enum" in w:
            self._budget.spend(len(w["enum"]) + len(r.get("enum", ())))
            fits = Checker(r, self._root)
            self._budget.spend(fits.parts)
            return [
                Break("", f"{short(value)} is allowed in {self._w}, and not in {self._r}")
                for value in w["enum"]
                if ("type" not in w or fits_kind(value, w["type"])) and fits(value) is not None
            ]
        if "enum" in r:
            return [Break("", f"{self._r} allows nothing but {short(r['enum'])}, {self._w} more")]
        kind, wanted = w.get("type"), r.get("type")
        if wanted is not None and kind != wanted and (kind, wanted) != ("integer", "number"):
            return [Break("", f"{kind or 'anything'} in {self._w}, {wanted} in {self._r}")]
        found = [Break("", why) for why in self._bounds(w, r)]
        if kind in (None, "array"):
            found += self._items(w, r)
        if kind in (None, "object"):
            found += self._fields(w, r)
        return found

    def _bounds(self, w: Node, r: Node) -> Iterator[str]:
        for key in _SAME:
            if key in r and w.get(key) != r[key]:
                yield f"{key} is {short(r[key])} in {self._r}, {short(w[key]) if key in w else 'open'} in {self._w}"
        if w.get("contentEncoding") != r.get("contentEncoding") and "contentEncoding" not in r and r.get("type"):
            yield f"bytes in {self._w}, text in {self._r}"
        for sign, inclusive, exclusive in ((1, "minimum", "exclusiveMinimum"), (-1, "maximum", "exclusiveMaximum")):
            narrow, wide = _bound(r, sign, inclusive, exclusive), _bound(w, sign, inclusive, exclusive)
            if narrow is not None and (wide is None or narrow > wide):
                yield self._differs(inclusive, sign * narrow[0], None if wide is None else sign * wide[0])
        for low, high in _COUNTS.values():
            if r.get(low, 0) > max(w.get(low, 0), len(w.get("required", ())) if low == "minProperties" else 0):
                yield self._differs(low, r[low], w.get(low))
            if high in r and (high not in w or r[high] < w[high]):
                yield self._differs(high, r[high], w.get(high))
        if "multipleOf" in r and ("multipleOf" not in w or w["multipleOf"] % r["multipleOf"]):
            yield self._differs("multipleOf", r["multipleOf"], w.get("multipleOf"))
        if r.get("uniqueItems") and not w.get("uniqueItems"):
            yield f"items must be unique in {self._r}, but not in {self._w}"

    def _differs(self, key: str, narrow: Any, wide: Any) -> str:
        return f"{key} is {narrow} in {self._r}, {'open' if wide is None else wide} in {self._w}"

    def _items(self, w: Node, r: Node) -> list[Break]:
        theirs, mine = w.get("prefixItems", []), r.get("prefixItems", [])
        found: list[Break] = []
        for index in range(min(max(len(theirs), len(mine)), w.get("maxItems", MAX_STEPS))):
            if index < len(theirs) or "items" in w or not theirs:
                given = theirs[index] if index < len(theirs) else w.get("items", ANYTHING)
                wanted = mine[index] if index < len(mine) else r.get("items", ANYTHING)
                found += _at(f"[{index}]", self.nodes(given, wanted))
        if "items" in r and ("items" in w or not theirs) and w.get("maxItems", MAX_STEPS) > len(mine):
            found += _at("[]", self.nodes(w.get("items", ANYTHING), r["items"]))
        return found

    def _fields(self, w: Node, r: Node) -> list[Break]:
        theirs, mine = w.get("properties", {}), r.get("properties", {})
        for name in sorted(dict(_tags(w)).keys() & dict(_tags(r)).keys()):
            if found := self.nodes(theirs[name], mine[name]):
                # It is a different alternative, so the rest is not reported.
                return _at(step(name), found)
        sure = set(w.get("required", ()))
        found = [
            Break(step(name), f"{self._r} requires it, {self._w} does not")
            for name in r.get("required", ())
            if name not in sure
        ]
        unknown = r.get("additionalProperties", ANYTHING)
        for name, given in theirs.items():
            if name not in mine and unknown is False and given is not False:
                found.append(Break(step(name), f"{self._r} does not know it, and allows no unknown fields"))
            else:
                found += _at(step(name), self.nodes(given, mine.get(name, unknown)))
        # Without declared fields it is a mapping, by default of any values.
        others = w.get("additionalProperties", True if "properties" in w else ANYTHING)
        if isinstance(others, dict):
            for name in sorted(mine.keys() - theirs.keys()):
                found += _at(step(name), self.nodes(others, mine[name]))
            found += _at(".*", self.nodes(others, unknown))
        if "propertyNames" in r:
            found += _at(".*", self.nodes(w.get("propertyNames", TEXT), r["propertyNames"]))
        return found


def _at(place: str, found: list[Break]) -> list[Break]:
    return [Break(place + path, why) for path, why in found]


def _bound(node: Node, sign: int, inclusive: str, exclusive: str) -> tuple[float, bool] | None:
    """A bound as a pair that compares as larger if the bound is narrower."""
    found = [(sign * node[key], strict) for key, strict in ((inclusive, False), (exclusive, True)) if key in node]
    return max(found, default=None)


def _tags(node: Node) -> list[tuple[str, str]]:
    fields = {name: each for name, each in node.get("properties", {}).items() if isinstance(each, dict)}
    return sorted(
        (name, text_of(fields[name].get("enum", fields[name].get("const"))))
        for name in node.get("required", ())
        if name in fields and fields[name].keys() & {"enum", "const"}
    )


class Budget:
    """Limits the work of a comparison, so that no schema can keep the hub busy."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise UsageError("the schema is too complicated to be compared with another one")


class Branches:
    """The alternatives of each part of a schema."""

    def __init__(self, root: Node, budget: Budget) -> None:
        self._root = root
        self._budget = budget
        self._known: dict[str, list[Node]] = {}

    def of(self, node: Any) -> list[Node]:
        """The alternatives of a part. Each has one type at most, and its outer references are resolved."""
        self._budget.spend(1)
        if isinstance(node, bool):
            return [{}] if node else []
        words = significant(node)
        demands: list[list[Node]] = []
        if "$ref" in words:
            demands.append(self._follow(words.pop("$ref")))
        demands += [self.of(each) for each in words.pop("allOf", ())]
        for key in ("anyOf", "oneOf"):
            if key in words:
                demands.append([branch for each in words.pop(key) for branch in self.of(each)])
        if "const" in words:
            demands.append([{"enum": [words.pop("const")]}])
        if words or not demands:
            demands.append(split(words))
        found = demands[0]
        for demand in demands[1:]:
            self._budget.spend(len(found) * len(demand))
            merged = (_merged(one, other) for one, other in product(found, demand))
            found = [each for each in merged if each is not None]
        self._budget.spend(len(found))
        return found

    def _follow(self, ref: str) -> list[Node]:
        if ref not in self._known:
            self._known[ref] = self.of(resolve(self._root, ref))
        return self._known[ref]


def _merged(one: Node, other: Node) -> Node | None:
    """The intersection of two schemas; None if it is empty."""
    merged = {**one, **other}
    for key in one.keys() & other.keys():
        a, b = one[key], other[key]
        if a == b:
            continue
        if key == "type":
            if {a, b} != {"integer", "number"}:
                return None
            merged[key] = "integer"
        elif key == "enum":
            texts = set(map(text_of, b))
            merged[key] = [value for value in a if text_of(value) in texts]
        elif key == "required":
            merged[key] = [*a, *b]
        elif key == "properties":
            merged[key] = {**a, **b, **{name: {"allOf": [a[name], b[name]]} for name in a.keys() & b.keys()}}
        elif key in ("items", "additionalProperties", "propertyNames"):
            merged[key] = {"allOf": [a, b]}
        elif key.startswith("min") or key == "exclusiveMinimum":
            merged[key] = max(a, b)
        elif key.startswith("max") or key == "exclusiveMaximum":
            merged[key] = min(a, b)
        elif key == "uniqueItems":
            merged[key] = True
        else:
            raise UsageError(f"two different values of {key} for one part cannot be compared with another schema")
    return merged
