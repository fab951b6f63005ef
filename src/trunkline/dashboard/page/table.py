"""A list that can be filtered and sorted by mouse and keyboard. Ids are links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nicegui import events, ui

from trunkline.cli import show
from trunkline.dashboard.page.theme import FATES

HEADER = r"""
<q-tr :props="props"><q-th v-for="col in props.cols" :key="col.name" :props="props"
 :tabindex="col.sortable ? 0 : undefined" :aria-sort="!col.__thClass.includes('sorted') ? 'none'
 : col.__thClass.includes('sort-desc') ? 'descending' : 'ascending'" @keydown.enter.prevent="props.sort(col)"
 @keydown.space.prevent="props.sort(col)">{{ col.label }}</q-th></q-tr>
"""
LINK = r"""
<q-td :props="props" :title="props.value"><a v-if="props.row['NAME_href']" :href="props.row['NAME_href']"
 :class="props.row['NAME_class']">{{ props.value }}</a><span v-else :class="props.row['NAME_class']"
 >{{ props.value }}</span></q-td>
"""
NAME = r"""
<q-td :props="props"><a :href="props.row['NAME_href']" :class="props.row['NAME_class']" :title="props.value"
 :aria-label="props.value">{{ props.value.length > MOST ? props.value.slice(0, MOST / 2 - 1) + '…'
 + props.value.slice(-MOST / 2) : props.value }}</a></q-td>
"""
"""A long name is shortened in the middle: both its beginning and its end are needed to identify it."""
ID = r"""
<q-td :props="props"><a :href="props.row['NAME_href']" :title="props.value" :aria-label="props.value"
 class="tl-mono">{{ props.value.length > 20 ? '…' + props.value.slice(-12) : props.value }}</a></q-td>
"""
TAG = r"""
<q-td :props="props"><span class="tl-tag" :class="props.row['NAME_class']">{{ props.value }}</span></q-td>
"""
BAR = r"""
<q-td :props="props"><div class="tl-bar" role="img" :aria-label="props.row['NAME_title']"
 :title="props.row['NAME_title']"><i v-for="part in props.row['NAME_parts']"
 :style="{width: part[0] + '%', background: part[1]}"></i></div></q-td>
"""
WIDE = r"""
<q-td :props="props" class="tl-wide tl-mono" :title="props.value">{{ props.value }}</q-td>
"""
SLOTS = {
    "link": LINK,
    "name": NAME.replace("MOST", "36"),
    "short": NAME.replace("MOST", "22"),
    "id": ID,
    "tag": TAG,
    "bar": BAR,
    "wide": WIDE,
}


CHANGES = "changes"
"""In the state of a list: how often it has changed."""
MANY = 200
MANY_EVERY_S = 2.0


class ListColumn(NamedTuple):
    name: str
    label: str
    kind: str = "text"
    """text, number, link, tag, bar, wrapped, which is text on several lines where space is short, or wide, which uses
    the remaining width. Links with a limited length are name, short, and id, which shows the end.

    A number is sorted by its value, and shown as the text in the field `<name>_text`.
    """
    width: str = ""
    """Of a wrapped column, the least width."""


class DataTable:
    """A row is a dict of plain values by column name. The browser inserts cells as text, not as markup."""

    def __init__(self, columns: Sequence[ListColumn], *, key: str, none: str, rows_per_page: int = 25) -> None:
        self._known: list[dict[str, Any]] | None = None
        self._sent_s = -MANY_EVERY_S
        self._state: dict[str, Any] = {
            "sortBy": None,
            "descending": False,
            "page": 1,
            "rowsPerPage": rows_per_page,
            CHANGES: 0,
        }
        """The page and the order of the list. The browser returns it with each change, see `_is_late`."""
        self._first_order: tuple[str | None, bool] = (None, False)
        self.table = ui.table(
            rows=[], columns=[_column(each) for each in columns], row_key=key, pagination=self._state
        ).props("flat dense")
        self.table.props["no-data-label"] = none
        self.table.props["no-results-label"] = "no rows match the filter"
        self.table.props["rows-per-page-options"] = [10, 25, 50, 100, 500]
        self.table.style("width:100%")
        self.table.add_slot("header", HEADER)
        for each in columns:
            if each.kind in SLOTS:
                self.table.add_slot(f"body-cell-{each.name}", SLOTS[each.kind].replace("NAME", each.name))

    def set(self, rows: list[dict[str, Any]]) -> None:
        """Send the rows to the browser if they have changed. A long list is sent at most every MANY_EVERY_S."""
        now_s = asyncio.get_running_loop().time()
        if len(rows) > MANY and now_s - self._sent_s < MANY_EVERY_S:
            return
        if rows != self._known:
            self._known, self._sent_s = rows, now_s
            # Copies, because the table keeps the rows that it is given.
            self.table.rows = [dict(row) for row in rows]

    def filter_by(self, wanted: str) -> None:
        self.table.props["filter"] = wanted

    def sort_by(self, order: str) -> str:
        """Sort by a column, with a minus in front to descend. Returns the order; empty if the column is unknown."""
        name = order.removeprefix("-")
        if all(column["name"] != name for column in self.table.columns):
            return ""
        self._first_order = name, order.startswith("-")
        self._change({"sortBy": name, "descending": order.startswith("-")})
        return order

    def on_sorted(self, sorted_by: Callable[[str], None]) -> None:
        """Call `sorted_by` with the order, in the form of `sort_by`, when the page or the order of the list changes."""

        def changed(event: events.ValueChangeEventArguments[dict[str, Any]]) -> None:
            if self._is_late(event.value):
                self._change({})
                return
            self._change({**event.value, CHANGES: self._state[CHANGES] + 1})
            name = event.value.get("sortBy") or ""
            sorted_by(f"-{name}" if name and event.value.get("descending") else name)

        self.table.on_pagination_change(changed)

    def _change(self, changes: dict[str, Any]) -> None:
        self._state = {**self._state, **changes}
        self.table.pagination = self._state

    def _is_late(self, value: dict[str, Any]) -> bool:
        """Whether it is the first state of the list, which has changed in the meantime.

        The browser sends the first state when it builds the list. On a slow machine a click can overtake that.
        """
        if not self._state[CHANGES] or value.get(CHANGES):
            return False
        order = value.get("sortBy"), bool(value.get("descending"))
        return order == self._first_order and value.get("page") == 1


def _column(column: ListColumn) -> dict[str, Any]:
    number = column.kind == "number"
    found: dict[str, Any] = {
        "name": column.name,
        "label": column.label,
        "field": column.name,
        "sortable": True,
        "align": "right" if number else "left",
    }
    if number:
        # Sorted by value, shown as formatted text.
        found[":format"] = f"(value, row) => row['{column.name}_text'] ?? value"
    if column.kind == "wrapped":
        found["style"] = f"white-space:normal;min-width:{column.width}"
    elif column.width:
        found["style"] = found["headerStyle"] = f"width:{column.width}"
    return found


def fates_bar(counts: dict[str, int]) -> dict[str, Any]:
    """The fields of a stacked bar of fates in the column `fates`, which sorts by the share of delivered messages."""
    total = sum(counts.values())
    parts = [[round(100 * count / total, 3), FATES[name]] for name, count in counts.items() if count] if total else []
    title = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count) or "nothing yet"
    share = counts.get("delivered", 0) / total if total else 1.0
    return {"fates": share, "fates_parts": parts, "fates_title": title}


def cell(name: str, value: object, href: str = "", kind: str = "") -> dict[str, Any]:
    """The fields of a link or a tag. Control characters in the text are escaped."""
    return {name: show.plain(str(value)), f"{name}_href": href, f"{name}_class": kind}


def number(name: str, value: float, shown: str | None = None) -> dict[str, Any]:
    return {name: value, f"{name}_text": f"{value:,}" if shown is None else shown}
