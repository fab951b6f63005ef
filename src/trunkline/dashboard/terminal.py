"""`trunkline top` on a terminal: tables that are refreshed, and sorted and filtered with keys. Needs Textual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from trunkline.bus.explain import Explanation
from trunkline.cli import show
from trunkline.dashboard.looks import HubLook, LookTable, chosen, tables
from trunkline.dashboard.problems import problems
from trunkline.errors import MissingExtra, TrunklineError

try:
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.screen import ModalScreen, Screen
    from textual.widgets import DataTable, Footer, Header, Input, Static, TabbedContent, TabPane
    from textual.worker import Worker, WorkerState
except ImportError as missing:
    raise MissingExtra("top", "`trunkline top` on a terminal") from missing

MAX_NAME = 36
"""Characters. A longer name is shortened in the middle: its beginning and its end are needed to identify it."""
TABS = ("subscribers", "clients", "topics", "actors", "kernels", "channels")


class LifeScreen(ModalScreen[None]):
    """The life of one message."""

    BINDINGS: ClassVar = [Binding("escape,q,enter", "dismiss", "Back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Static(self.text, id="life", markup=False)
        yield Footer()


class TopApp(App[None]):
    """Queries the hub every `every_s` while it is open."""

    TITLE = "trunkline top"
    CSS = (
        "#filter, #message { display: none; } #filter.shown, #message.shown { display: block; } #life { padding: 1 2; }"
    )
    BINDINGS: ClassVar = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort by the next column"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("e", "explain", "History of a message"),
        Binding("escape", "leave_field", "Back", show=False),
        *(Binding(str(number), f"tab('{name}')", name, show=False) for number, name in enumerate(TABS, 1)),
    ]

    def __init__(
        self,
        look: Callable[[], Awaitable[HubLook]],
        explain: Callable[[str], Awaitable[Explanation]],
        plain: Callable[[str], str],
        every_s: float,
    ) -> None:
        super().__init__()
        self._look = look
        self._explain = explain
        self._plain = plain
        self._every_s = every_s
        self._before: HubLook | None = None
        self.now: dict[str, LookTable] = {}
        self.sorted_by: dict[str, tuple[int, bool]] = {}
        """The column for each tab, and whether the largest value comes first."""
        self.wanted = ""
        self.looks = 0

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static("", id="state", markup=False)
        with TabbedContent(initial="subscribers"):
            for number, name in enumerate(TABS, 1):
                # The title has the key that opens the tab.
                with TabPane(f"{number} {name}", id=name):
                    yield DataTable(id=f"table-{name}", cursor_type="row", zebra_stripes=True)
        yield Input(placeholder="rows that contain this text", id="filter", disabled=True)
        yield Input(placeholder="the id of a message", id="message", disabled=True)
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(self._every_s, self.refresh_look)
        self.refresh_look()

    def refresh_look(self) -> None:
        if not any(worker.name == "look" and worker.state is WorkerState.RUNNING for worker in self.workers):
            # Pass the function, not a coroutine: a worker that is cancelled before it starts never awaits it.
            _: Worker[None] = self.run_worker(self._look_once, name="look", exclusive=False)

    async def _look_once(self) -> None:
        state = self.main.query_one("#state", Static)
        try:
            found = await self._look()
        except TrunklineError as error:
            state.update(self._plain(str(error)))
            return
        self.now = tables(found, self._before)
        self._before = found
        wrong = problems(found.snapshot)
        more = f"; {wrong[0].text}: {wrong[0].next_step}" if wrong else ""
        counts = f"{show.counted(found.snapshot.published, 'message')}, {show.counted(len(wrong), 'problem')}"
        state.update(self._plain(counts + more))
        self.looks += 1
        for name in TABS:
            self._show(name)

    def _show(self, name: str) -> None:
        if name not in self.now:
            return
        table = self.main.query_one(f"#table-{name}", DataTable)
        place = table.cursor_row
        table.clear(columns=True)
        by, falling = self.sorted_by.get(name, (None, True))
        for index, column in enumerate(self.now[name].columns):
            table.add_column(f"{column} {'v' if falling else '^'}" if index == by else column)
        for row in chosen(self.now[name], self.wanted, by, falling=falling):
            table.add_row(*(f"{cell:,}" if isinstance(cell, int) else self._shown(name, str(cell)) for cell in row))
        table.move_cursor(row=place)

    def _shown(self, tab: str, text: str) -> str:
        """Shorten the names and patterns of subscribers, so that the numbers beside them fit on a terminal."""
        text = self._plain(text)
        if tab != "subscribers" or len(text) <= MAX_NAME:
            return text
        return f"{text[: MAX_NAME // 2 - 1]}…{text[-MAX_NAME // 2 :]}"

    @property
    def main(self) -> Screen[object]:
        """The screen with the tables, also while the life of a message is shown on top of it."""
        return self.screen_stack[0]

    @property
    def tab(self) -> str:
        return self.main.query_one(TabbedContent).active

    def rows(self, name: str) -> list[list[str]]:
        """The rows that a tab shows."""
        table = self.main.query_one(f"#table-{name}", DataTable)
        return [[str(cell) for cell in table.get_row_at(index)] for index in range(table.row_count)]

    # Keys

    def action_tab(self, name: str) -> None:
        self.main.query_one(TabbedContent).active = name
        self.main.query_one(f"#table-{name}", DataTable).focus()

    def action_sort(self) -> None:
        if self.tab in self.now:
            by, _ = self.sorted_by.get(self.tab, (-1, True))
            self.sorted_by[self.tab] = ((by + 1) % len(self.now[self.tab].columns), True)
            self._show(self.tab)

    def action_reverse(self) -> None:
        by, falling = self.sorted_by.get(self.tab, (0, False))
        self.sorted_by[self.tab] = (by, not falling)
        self._show(self.tab)

    def action_filter(self) -> None:
        self._open("filter")

    def action_explain(self) -> None:
        self._open("message")

    def _open(self, name: str) -> None:
        field = self.main.query_one(f"#{name}", Input)
        # Hidden fields are disabled. A hidden field with the focus would receive the keys.
        field.disabled = False
        field.add_class("shown")
        field.focus()

    def action_leave_field(self) -> None:
        for name in ("filter", "message"):
            field = self.main.query_one(f"#{name}", Input)
            field.value = ""
            field.remove_class("shown")
            field.disabled = True
        self.main.query_one(f"#table-{self.tab}", DataTable).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self.wanted = event.value
            for name in TABS:
                self._show(name)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "message" and (message_id := event.value.strip()):
            try:
                text = str(await self._explain(message_id))
            except TrunklineError as error:
                text = str(error)
            self.action_leave_field()
            self.push_screen(LifeScreen("\n".join(map(self._plain, text.splitlines()))))
        elif event.input.id == "filter":
            self.main.query_one(f"#table-{self.tab}", DataTable).focus()
