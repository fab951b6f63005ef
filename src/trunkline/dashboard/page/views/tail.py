"""The live tail: messages as they are published. It can be filtered and paused."""

from __future__ import annotations

from nicegui import ui

from trunkline.dashboard.page.elements import box, empty, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable
from trunkline.dashboard.page.views.messages import COLUMNS, row_of
from trunkline.errors import InvalidTopic
from trunkline.topic import EVERYTHING, matches, validate_pattern

MAX_ROWS = 100


def register(model: PageModel) -> None:
    @ui.page("/tail")
    def tail(topic: str = "", filter: str = "") -> None:
        with framed(model, "Live tail", "/tail") as shell:
            live = model.tail
            if live is None:
                empty("A journal alone has no live traffic: its messages are under Messages.", "history")
                return
            with box("tl-tools"):
                wanted = ListFilter("/tail", filter)
                pattern = ui.input(placeholder="Topic, such as orders.>", value=topic).props("outlined dense")
                pattern.props["aria-label"] = "topic pattern"
                paused = ui.switch("Pause").props("dense")
                own = ui.switch("Topics of the bus itself").props("dense")
                box("tl-grow")
                note = text("", "tl-note")
            table = DataTable(COLUMNS, key="key", none="nothing has been published since this page was opened")
            wanted.filters(table)

            def refresh() -> None:
                live.want(3.0)
                if paused.value:
                    return
                chosen = pattern.value or EVERYTHING
                try:
                    validate_pattern(chosen)
                except InvalidTopic as error:
                    shell.complain(str(error))
                    return
                shell.complain(live.trouble)
                found = [
                    each
                    for each in live.newest(2000)
                    if matches(chosen, each.topic) and (own.value or not each.topic.startswith("_"))
                ]
                table.set([row_of(each) for each in found[:MAX_ROWS]])
                if not live.following:
                    note.text = "subscribing …"
                    return
                note.text = f"{live.count:,} seen, the newest {min(len(found), MAX_ROWS)} shown"

            shell.every(0.5, refresh)
