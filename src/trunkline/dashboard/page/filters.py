"""The filter and the sort order of lists. Both are part of the address, so that a view can be shared."""

from __future__ import annotations

from nicegui import ui

from trunkline.dashboard.page.elements import address
from trunkline.dashboard.page.table import DataTable


class ViewAddress:
    """The address of a view. It is updated when the view changes.

    `sort` has the order of each list of the view: the name of a column, with a minus for descending order.
    """

    def __init__(self, path: str, **query: str) -> None:
        self._path, self._query = path, query
        self._orders = ui.context.client.request.query_params.get("sort", "").split(",")
        self._lists = 0

    def change(self, **query: str) -> None:
        self._query |= query
        orders = ",".join(self._orders).rstrip(",")
        ui.navigate.history.replace(address(self._path, **self._query, sort=orders))

    def keeps_order_of(self, table: DataTable) -> None:
        """Keep the order of a list in the address. Call it for each list of the view, always in the same sequence."""
        index = self._lists
        self._lists += 1
        self._orders += [""] * (self._lists - len(self._orders))
        self._orders[index] = table.sort_by(self._orders[index])

        def sorted_by(order: str) -> None:
            if order != self._orders[index]:
                self._orders[index] = order
                self.change()

        table.on_sorted(sorted_by)


class ListFilter:
    def __init__(self, path: str, begin: str = "") -> None:
        self._address = ViewAddress(path, filter=begin)
        self._tables: list[DataTable] = []
        self.field = ui.input(placeholder="Filter", value=begin).props("outlined dense clearable debounce=150")
        self.field.props["aria-label"] = "filter"
        with self.field.add_slot("prepend"):
            ui.icon("search").style("font-size:18px")
        self.field.on_value_change(self._changed)

    def filters(self, table: DataTable) -> None:
        self._tables.append(table)
        table.filter_by(self.field.value or "")
        self._address.keeps_order_of(table)

    def _changed(self) -> None:
        wanted = self.field.value or ""
        for table in self._tables:
            table.filter_by(wanted)
        self._address.change(filter=wanted)
