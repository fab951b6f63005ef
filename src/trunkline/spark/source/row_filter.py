"""Row filters: conditions that must all hold. They are tested on whole files and batches first, then on rows.

They come from options and from the filters of a query. Times are whole microseconds since 1970, as the columns have
them, except in `timestamp_ns`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from trunkline.journal.body import StoredBatch
from trunkline.journal.lake import SCHEMAS
from trunkline.journal.range import FOREVER
from trunkline.journal.sealed import File
from trunkline.spark.source.spark_schema import KEYS
from trunkline.topic import EVERYTHING, is_wild, matches, regex, validate_pattern

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    column: str
    test: str
    """One of COMPARE, or `in`, `starts` (with a text), `matches` (a pattern of topics)."""
    value: Any

    def holds(self, value: Any) -> bool:
        match self.test:
            case "in":
                return value in self.value
            case "starts":
                return bool(value.startswith(self.value))
            case "matches":
                return matches(self.value, value)
        return bool(COMPARE[self.test](value, self.value))

    def may_hold(self, low: int, high: int) -> bool:
        """Whether it can hold for a value from `low` to `high`."""
        match self.test:
            case "=":
                return bool(low <= self.value <= high)
            case "in":
                return any(low <= value <= high for value in self.value)
            case "<" | "<=":
                return self.holds(low)
        return self.holds(high)

    def expression(self, kind: pa.DataType) -> pc.Expression:
        """The same for Arrow, on a column of this type."""
        column = pc.field(self.column)
        match self.test:
            case "in":
                return column.isin(pa.array(list(self.value), kind))
            case "starts":
                return pc.starts_with(column, self.value)
            case "matches":
                return pc.match_substring_regex(column, regex(self.value))
        return COMPARE[self.test](column, pa.scalar(self.value, kind))


def topic_like(pattern: str) -> list[Condition]:
    """The simplest condition for topics that match a pattern; None if every topic matches."""
    if validate_pattern(pattern) == EVERYTHING:
        return []
    if not is_wild(pattern):
        return [Condition("topic", "=", pattern)]
    if pattern.endswith(".>") and not is_wild(pattern[:-2]):
        return [Condition("topic", "starts", pattern[:-1])]
    return [Condition("topic", "matches", pattern)]


class RowFilter(NamedTuple):
    """A selection of messages or fates."""

    kind: str
    conditions: tuple[Condition, ...] = ()

    def also(self, *conditions: Condition) -> RowFilter:
        return self._replace(conditions=(*self.conditions, *conditions))

    def between(self, first: int, last: int) -> RowFilter:
        """Those of them with numbers from `first` to `last`."""
        key = KEYS[self.kind]
        return self.also(Condition(key, ">=", first), Condition(key, "<=", last))

    @property
    def numbers(self) -> tuple[int, int]:
        """The first and the last number that may be selected."""
        first, last = 1, FOREVER
        for _, test, value in self._on(KEYS[self.kind]):
            low, high = (min(value, default=1), max(value, default=0)) if test == "in" else (value, value)
            if test in ("=", ">", ">=", "in"):
                first = max(first, low + 1 if test == ">" else low)
            if test in ("=", "<", "<=", "in"):
                last = min(last, high - 1 if test == "<" else high)
        return min(first, FOREVER), max(last, 0)

    @property
    def fits(self) -> Callable[[str], bool] | None:
        """Whether a topic is selected; None if every topic is."""
        return self._holds_for_topic if self._on("topic") else None

    def _holds_for_topic(self, topic: str) -> bool:
        return all(condition.holds(topic) for condition in self._on("topic"))

    def may_be_in(self, part: File | StoredBatch) -> bool:
        """Whether a part can have selected rows, by its numbers and times."""
        spans = _spans(self.kind, part)
        return all(
            condition.may_hold(*spans[condition.column]) for condition in self.conditions if condition.column in spans
        )

    def expression(self) -> pc.Expression | None:
        """All conditions, for Arrow; None if there are none."""
        schema = SCHEMAS[self.kind]
        each = [condition.expression(schema.field(condition.column).type) for condition in self.conditions]
        return reduce(operator.and_, each) if each else None

    def _on(self, column: str) -> list[Condition]:
        return [condition for condition in self.conditions if condition.column == column]


def _spans(kind: str, part: File | StoredBatch) -> Mapping[str, tuple[int, int]]:
    """The known minimum and maximum values of columns."""
    numbers = (part.first, part.last)
    own = _micros(part.since_ns, part.until_ns)
    if kind == "fates":
        return {"number": numbers, "time": own}
    taken = _micros(part.at_ns, part.until_at_ns if isinstance(part, File) else part.at_ns)
    return {"seq": numbers, "time": own, "accepted": taken, "timestamp_ns": (part.since_ns, part.until_ns)}


def _micros(low_ns: int, high_ns: int) -> tuple[int, int]:
    # Rounded outwards, so that all values of the column are in the range.
    return low_ns // 1000, -(-high_ns // 1000)
