"""The filter of a list. It is part of the address, so that what one sees can be sent to a colleague."""

from __future__ import annotations

from nicegui import ui

from trunkline.dashboard.page.elements import address
from trunkline.dashboard.page.table import DataTable


class ListFilter:
    def __init__(self, path: str, begin: str = "", **query: str) -> None:
        self._path, self._query = path, query
        self._tables: list[DataTable] = []
        self.field = ui.input(placeholder="Filter", value=begin).props("outlined dense clearable debounce=150")
        self.field.props["aria-label"] = "filter"
        with self.field.add_slot("prepend"):
            ui.icon("search").style("font-size:18px")
        self.field.on_value_change(self._changed)

    def filters(self, table: DataTable) -> None:
        self._tables.append(table)
        table.filter_by(self.field.value or "")

    def _changed(self) -> None:
        wanted = self.field.value or ""
        for table in self._tables:
            table.filter_by(wanted)
        ui.navigate.history.replace(address(self._path, filter=wanted, **self._query))
