"""The overview: rates, backlog, answer times and problems, with an hour of history."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from trunkline.dashboard.page.elements import Stat, address, box, card, empty, link, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.history import TrafficHistory
from trunkline.dashboard.page.model.model import STEP_S, PageModel
from trunkline.dashboard.page.model.text import age, rate
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.dashboard.page.theme import AXIS, GRID, SERIES
from trunkline.dashboard.problems import Problem

TOPICS = [
    ListColumn("topic", "topic", "link"),
    ListColumn("rate", "per second", "number"),
    ListColumn("published", "messages", "number"),
]


def register(model: PageModel) -> None:
    @ui.page("/")
    def overview(filter: str = "") -> None:
        with framed(model, "Overview", "/") as shell:
            view = OverviewView(model, filter)
            shell.with_model(view.refresh)


class OverviewView:
    def __init__(self, model: PageModel, filter: str) -> None:
        self._model = model
        self._problems: list[Problem] | None = None
        self._looks = 0
        self._delays_ms: tuple[float, float, float] | None = None
        with box("tl-grid tl-stats"):
            self._published = Stat("Published / s")
            self._delivered = Stat("Delivered / s")
            self._waiting = Stat("Waiting", "/subscribers")
            self._letters = Stat("Dead letters", "/dead-letters")
            self._lost = Stat("Lost", "/subscribers")
            self._delays = Stat("Delivered within", "/subscribers")
            self._clients = Stat("Clients", "/subscribers#clients")
        with card("Problems", "tl-wrong") as self._wrong_card:
            self._wrong = box("")
        with box("tl-grid tl-thirds"):
            self._rates = Plot("Messages per second", ["published", "delivered", "lost"])
            self._backlog = Plot("Backlog", ["waiting", "behind"])
            self._answers = Plot("Answer time of the hub, ms", ["answer_ms"])
        with box("tl-tools"):
            text("Busiest topics", "tl-h2")
            box("tl-grow")
            wanted = ListFilter("/", filter)
        self._topics = DataTable(TOPICS, key="topic", none="nothing has been published yet", rows_per_page=10)
        wanted.filters(self._topics)

    async def refresh(self) -> None:
        model, snapshot = self._model, self._model.snapshot
        assert snapshot is not None
        points = model.history.points
        last = points[-1] if points else None
        account = snapshot.account
        self._published.set(rate(last.published) if last else "–", f"{snapshot.published:,} in all")
        self._delivered.set(rate(last.delivered or 0.0) if last else "–", f"{account.get('delivered', 0):,} in all")
        waiting = sum(each.waiting for each in snapshot.subscribers)
        behind = sum(each.behind for each in snapshot.subscribers)
        self._waiting.set(f"{waiting:,}", f"{behind:,} behind", bad=waiting > 10_000)
        self._letters.set(f"{snapshot.dead_letters:,}", "messages that failed", bad=snapshot.dead_letters > 0)
        lost = account.get("dropped", 0) + account.get("expired", 0)
        self._lost.set(f"{lost:,}", "dropped or expired", bad=account.get("dropped", 0) > 0)
        up = f"up for {age((snapshot.at_ns - snapshot.since_ns) / 1e9)}" if snapshot.since_ns else "history only"
        self._clients.set(f"{snapshot.clients_total:,}", up)
        self._show_problems(model.problems())
        if (delays := await self._known_delays()) is not None:
            median, most, nearly_all = (age(each / 1e3) for each in delays)
            self._delays.set(median, f"p95 {most} · p99 {nearly_all}")
        else:
            self._delays.set("–", "needs a journal here")
        for plot in (self._rates, self._backlog, self._answers):
            plot.show(model.history)
        self._topics.set(
            [
                {
                    **cell("topic", each.topic, address("/messages", topic=each.topic), "tl-mono"),
                    **number("rate", (per_s := round(model.history.topic_rate(each.topic), 2)), rate(per_s)),
                    **number("published", each.published),
                }
                for each in snapshot.topics[:100]
                if not each.topic.startswith("_")
            ]
        )

    async def _known_delays(self) -> tuple[float, float, float] | None:
        """The delivery times. They are read from the journal once in DELAYS_EVERY refreshes."""
        self._looks += 1
        if self._looks % DELAYS_EVERY == 1:
            self._delays_ms = await self._model.delays_ms()
        return self._delays_ms

    def _show_problems(self, found: list[Problem]) -> None:
        if found == self._problems:
            return
        self._problems = found
        self._wrong.clear()
        with self._wrong:
            for each in found[:20]:
                with box("tl-problem"):
                    ui.icon("error_outline")
                    text(each.text, "t")
                    with box("s"):
                        text(f"Next: {each.next_step}", tag="span")
                        if path := PLACES.get(each.kind, ""):
                            link("Show", path).style("margin-left:8px")
            if len(found) > 20:
                text(f"and {len(found) - 20:,} more", "tl-note")
            if not found:
                if self._model.live:
                    empty("No problems.", "check_circle")
                else:
                    empty("This is a journal without its hub: problems of a hub are not shown.", "history")


DELAYS_EVERY = 5
PLACES = {
    "dropped": "/subscribers",
    "dead letters": "/dead-letters",
    "not connected": "/subscribers",
    "slow": "/subscribers",
    "silent": "/subscribers#clients",
}
"""The view with more information on each kind of problem."""
NAMES = {"lost": "lost", "answer_ms": "answer", "behind": "behind (durable)"}


class Plot:
    """Lines over the last hour. They survive a reload, because the process of the page keeps the history."""

    def __init__(self, title: str, fields: list[str]) -> None:
        self._fields = fields
        with card(title):
            self._chart = ui.echart(_options(fields)).style("height:210px;width:100%")

    def show(self, history: TrafficHistory) -> None:
        points = list(history.points)
        # A line of 300 points is as readable as one of 3,600.
        step = max(1, len(points) // 300)
        for at, name in enumerate(self._fields):
            data: list[list[Any]] = []
            before = 0
            for place in range(len(points) % step, len(points), step):
                point = points[place]
                if before and point.at_s - before > max(2 * STEP_S, 5 * step):
                    # No snapshots were taken: show a gap, not a line across it.
                    data.append([(before + 1) * 1000, None])
                before = point.at_s
                value = getattr(point, name)
                data.append([point.at_s * 1000, None if value is None else round(float(value), 2)])
            self._chart.options["series"][at]["data"] = data
        self._chart.update()


def _options(fields: list[str]) -> dict[str, Any]:
    axis = {
        "axisLabel": {"color": AXIS, "fontSize": 11, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": GRID}},
    }
    return {
        "animation": False,
        "color": list(SERIES),
        "grid": {"left": 8, "right": 14, "top": 30, "bottom": 4, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "icon": "roundRect",
            "itemWidth": 10,
            "itemHeight": 10,
            "textStyle": {"color": AXIS},
        },
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time", "splitNumber": 5, "splitLine": {"show": False}, **axis},
        "yAxis": {"type": "value", "min": 0, "splitLine": {"lineStyle": {"color": GRID}}, **axis},
        "series": [
            {
                "name": NAMES.get(name, name),
                "type": "line",
                "showSymbol": False,
                "lineStyle": {"width": 1.8},
                "areaStyle": {"opacity": 0.07},
                "data": [],
            }
            for name in fields
        ],
    }
