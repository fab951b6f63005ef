"""Dead letters, one row per bug. The view of one bug shows its dead letters, to edit, replay or drop them."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from trunkline.brokers.store import KeptDeadLetter
from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, card, code, empty, facts, notify, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.letters import LetterGroup
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import clock
from trunkline.dashboard.page.shell import Shell, framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.dashboard.page.views.letter import LetterList
from trunkline.errors import TrunklineError

COLUMNS = [
    ListColumn("last", "last (UTC)", width="130px"),
    ListColumn("reason", "what went wrong", "link"),
    ListColumn("cause", "cause", "tag"),
    ListColumn("subscriber", "subscriber"),
    ListColumn("topics", "topics", "link"),
    ListColumn("count", "letters", "number"),
]
NONE = "there are no dead letters"


def register(model: PageModel) -> None:
    @ui.page("/dead-letters")
    def dead_letters(filter: str = "") -> None:
        with framed(model, "Dead letters", "/dead-letters") as shell:
            with box("tl-tools"):
                wanted = ListFilter("/dead-letters", filter)
            table = DataTable(COLUMNS, key="key", none=NONE)
            wanted.filters(table)

            async def refresh() -> None:
                table.set([_row(each) for each in await model.letter_groups()])

            shell.with_model(refresh)

    @ui.page("/dead-letters/{key}")
    def group(key: str, filter: str = "") -> None:
        with framed(model, "Dead letters with one cause", "/dead-letters") as shell:
            GroupView(model, shell, key, filter)


def _row(group: LetterGroup) -> dict[str, Any]:
    topics = ", ".join(group.topics[:3]) + (f" and {len(group.topics) - 3} more" if len(group.topics) > 3 else "")
    return {
        "key": group.key,
        "last": clock(group.last_ns),
        **cell("reason", group.reason[:200] or group.cause, f"/dead-letters/{group.key}"),
        **cell("cause", group.cause, kind="bad"),
        "subscriber": show.plain(group.subscriber),
        **cell("topics", topics, address("/messages", topic=group.topics[0]) if len(group.topics) == 1 else ""),
        **number("count", group.count),
    }


class GroupView:
    """One cause: its description, its newest traceback, and its dead letters."""

    def __init__(self, model: PageModel, shell: Shell, key: str, filter: str) -> None:
        self._model, self._key = model, key
        self._group: LetterGroup | None = None
        self._about = box("")
        with box("tl-tools"):
            self._all = ui.button("Replay all", icon="replay", on_click=self._replay_all).props("unelevated no-caps")
            self._dry = ui.button("Dry run", icon="science", on_click=self._dry_run).props("outline no-caps")
            self._drop = ui.button("Drop all", icon="delete_outline", on_click=self._ask_drop).props(
                "outline no-caps color=negative"
            )
            box("tl-grow")
            wanted = ListFilter(f"/dead-letters/{key}", filter)
        self._letters = LetterList(model, self._act)
        wanted.filters(self._letters.table)
        if not model.live:
            text("A journal alone is read-only: open the page of its hub to replay or drop.", "tl-note")
            for button in (self._all, self._dry, self._drop):
                button.disable()
        shell.with_model(self._refresh)

    async def _refresh(self) -> None:
        groups = await self._model.letter_groups()
        found = next((each for each in groups if each.key == self._key), None)
        if found == self._group and found is not None:
            return
        newest = None
        if found is not None:
            last = found.letters[0].letter
            newest = await self._model.letter(last.message.id, last.subscriber)
        self._group = found
        self._about.clear()
        for button in (self._all, self._dry, self._drop):
            button.set_visibility(found is not None)
        self._letters.show([] if found is None else list(found.letters))
        with self._about:
            if found is None:
                with card():
                    empty("No dead letters with this cause are left.", "task_alt")
                return
            with card(found.reason or found.cause):
                facts(
                    {
                        "subscriber": found.subscriber,
                        "cause": found.cause,
                        "error": found.error_type or "–",
                        "topics": ", ".join(found.topics),
                        "first, last": f"{clock(found.first_ns)} to {clock(found.last_ns)} UTC",
                        "letters": f"{found.count:,}; the hub can redeliver {found.returns:,}",
                    }
                )
            if newest is not None and newest.letter.traceback:
                with card("Traceback of the newest"):
                    code(newest.letter.traceback)

    async def _replay_all(self) -> None:
        if self._group is not None:
            await self._try(list(self._group.letters), "replay")

    def _dry_run(self) -> None:
        if self._group is not None:
            group = self._group
            rest = group.count - group.returns
            notify(
                f"Dry run: {show.counted(group.returns, 'dead letter')} would be redelivered to {group.subscriber}"
                + (f"; {rest:,} would stay: only the process of the subscriber can replay them" if rest else "")
            )

    def _ask_drop(self) -> None:
        group = self._group
        if group is None:
            return
        with ui.dialog() as dialog, ui.card().classes("tl-dialog"):
            text(
                f"Drop {show.counted(group.count, 'dead letter')} of {group.subscriber}? This cannot be undone.",
                "tl-h2",
            )
            with box("tl-tools"):

                async def drop() -> None:
                    dialog.close()
                    await self._try(list(group.letters), "drop")

                ui.button("Drop", on_click=drop).props("unelevated no-caps color=negative")
                ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
        dialog.open()

    async def _try(self, letters: list[KeptDeadLetter], what: str) -> None:
        try:
            await self._act(letters, what, None)
        except TrunklineError as error:
            notify(str(error), bad=True)

    async def _act(self, letters: list[KeptDeadLetter], what: str, payload: object) -> None:
        """Replay or drop dead letters. Raises TrunklineError, as the model does."""
        if what == "drop":
            gone = await self._model.drop(letters)
            notify(f"{show.counted(gone, 'dead letter')} dropped", bad=gone < len(letters))
        else:
            failures = await self._model.replay(letters, payload)
            done = len(letters) - len(failures)
            notify(
                f"{show.counted(done, 'dead letter')} redelivered"
                + (f"; {len(failures)} failed: {failures[0].text}" if failures else ""),
                bad=bool(failures),
            )
        await self._refresh()
