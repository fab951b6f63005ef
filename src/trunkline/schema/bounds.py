"""Bounds the work that a schema can cause for a payload. Schemas that exceed the bounds are refused when they are read.

A part is applied to a value once for each path that leads to it, through references, `allOf` and alternatives. The
number of paths multiplies from level to level, so a small schema could cause exponential work for a deep value. Here
the paths to each part are counted. A cycle in which they grow is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter
from operator import add
from typing import Any, Final, NamedTuple

from trunkline.errors import UsageError
from trunkline.schema.reading import Reading

MAX_LOOKS: Final = 10_000
"""The maximum number of times that a schema may check one value."""
MAX_STEPS: Final = 32
"""The maximum depth of nested references and combinations for one value."""
_ITEMS: Final = 0
_NAMES: Final = 1
_OTHERS: Final = 2
_Place = int | str
"""Places inside a value: items, names of fields, other fields; or the name of a field."""


class _Inside(NamedTuple):
    """The number of parts that apply at each place inside a value."""

    counts: dict[_Place, int]

    def at(self, place: _Place) -> int:
        return self.counts.get(place, self.counts.get(_OTHERS, 0) if isinstance(place, str) else 0)

    def most(self, place: _Place) -> int:
        """The highest count. A part for other fields may apply to any field."""
        if place != _OTHERS:
            return self.at(place)
        return max(count for each, count in self.counts.items() if isinstance(each, str) or each == _OTHERS)

    def joined(self, other: _Inside, join: Callable[[int, int], int]) -> _Inside:
        if not other.counts or not self.counts:
            return self if self.counts else other
        places = self.counts.keys() | other.counts.keys()
        return _Inside({place: join(self.at(place), other.at(place)) for place in places})


class _Look(NamedTuple):
    """The work of a part for one value."""

    looks: int
    """The number of parts that check it."""
    steps: int
    """The depth of nested parts."""
    inside: _Inside
    parts: list[tuple[_Place, Any]]
    """The parts that apply inside it."""


def check_bounds(reading: Reading) -> None:
    """Check a schema. Raises UsageError, which says what to change.

    Notes in the reading whether checks go as deep as the value.
    """
    _Bounds(reading).check()


class _Bounds:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._known: dict[int, _Look] = {}
        self._open: set[int] = set()

    def check(self) -> None:
        top = self._reading.document
        ways: dict[int, int] = {id(top): 1}
        leads_to: dict[int, set[int]] = {}
        waiting = [top]
        while waiting:
            part = waiting.pop()
            look = self._look(part, 0)
            if ways[id(part)] * look.looks > MAX_LOOKS:
                raise UsageError(
                    f"the schema can look at one value more than {MAX_LOOKS:,} times: allOf, or alternatives without a "
                    "required field that tells them apart by its const or enum, lead to the same part in many ways"
                )
            for place, inner in look.parts:
                unit = self._named(inner)
                leads_to.setdefault(id(part), set()).add(id(unit))
                count = ways[id(part)] * look.inside.most(place)
                if count > ways.get(id(unit), 0):
                    ways[id(unit)] = count
                    waiting.append(unit)
        try:
            TopologicalSorter(leads_to).prepare()
        except CycleError:
            self._reading.goes_deep = True

    def _named(self, part: Any) -> Any:
        """Resolves a plain reference, so that a definition is the same part wherever it is used."""
        seen: set[str] = set()
        while isinstance(part, dict) and part.keys() == {"$ref"} and part["$ref"] not in seen:
            seen.add(part["$ref"])
            part = self._reading.target(part["$ref"])
        return part

    def _look(self, part: Any, depth: int) -> _Look:
        if isinstance(part, bool):
            return _Look(1, 0, _Inside({}), [])
        if (known := self._known.get(id(part))) is not None:
            return known
        if id(part) in self._open:
            raise UsageError("the schema refers to itself without descending into the value")
        if depth > MAX_STEPS:
            raise _too_many()
        self._open.add(id(part))
        parts = [(place, each) for place, each in _inside(part) if not isinstance(each, bool)]
        inside = _Inside({place: 1 for place, _ in parts})
        looks, steps = 1, 0
        for several in self._applied(part):
            found = [self._look(each, depth + 1) for each in several]
            looks += sum(each.looks for each in found)
            steps = max([steps, *(each.steps + 1 for each in found)])
            more = _Inside({})
            for each in found:
                more = more.joined(each.inside, max)
                parts += each.parts
            inside = inside.joined(more, add)
        if steps > MAX_STEPS:
            raise _too_many()
        self._open.discard(id(part))
        # Each successor is listed once; `inside` has the number of paths to it.
        unique = {id(each): (place, each) for place, each in parts}
        look = self._known[id(part)] = _Look(looks, steps, inside, list(unique.values()))
        return look

    def _applied(self, part: dict[str, Any]) -> Iterable[list[Any]]:
        """The parts that apply to the same value. At most one of each list descends into it."""
        if "$ref" in part:
            yield [self._reading.target(part["$ref"])]
        demands = part.get("allOf", [])
        if demands and all(isinstance(each, dict) and "if" in each for each in demands):
            yield [each["then"] for each in demands]
        else:
            for each in demands:
                yield [each]
        if "not" in part:
            ((_, choices),) = part["not"]["not"].items()
            for each in choices:
                yield [each]


def _inside(part: dict[str, Any]) -> Iterable[tuple[_Place, Any]]:
    for name, each in part.get("properties", {}).items():
        yield name, each
    for each in part.get("prefixItems", ()):
        yield _ITEMS, each
    for key, place in (("items", _ITEMS), ("propertyNames", _NAMES), ("additionalProperties", _OTHERS)):
        if key in part:
            yield place, part[key]


def _too_many() -> UsageError:
    return UsageError(f"the schema combines more than {MAX_STEPS} parts, each inside the other, for one value")
