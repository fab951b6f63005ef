"""The dead letters of one cause. Each can be opened, edited, and replayed to the subscriber that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from nicegui import ui

from trunkline.brokers.store import KeptDeadLetter
from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, code, link, message_address, notify, text
from trunkline.dashboard.page.model.form import FormField, changed_by, form_of
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import as_json, clock
from trunkline.dashboard.page.table import DataTable, ListColumn, cell
from trunkline.errors import TrunklineError, UsageError
from trunkline.schema import Checker

Act = Callable[[list[KeptDeadLetter], str, Any], Awaitable[None]]

COLUMNS = [
    ListColumn("died", "died (UTC)", width="130px"),
    ListColumn("id", "message", "link"),
    ListColumn("topic", "topic", "link"),
    ListColumn("reason", "what went wrong"),
    ListColumn("edit", "", "edit"),
]
EDIT = r"""
<q-td :props="props"><q-btn dense flat no-caps icon="edit" label="Open" :aria-label="'open ' + props.row.id"
 @click="() => $parent.$emit('edit', props.row.key)" /></q-td>
"""


class LetterList:
    def __init__(self, model: PageModel, act: Act) -> None:
        self._model, self._act = model, act
        self._letters: dict[str, KeptDeadLetter] = {}
        self.table = DataTable(COLUMNS, key="key", none="no letters")
        self.table.table.add_slot("body-cell-edit", EDIT)
        self.table.table.on("edit", lambda event: self._open(str(event.args)))

    def show(self, letters: list[KeptDeadLetter]) -> None:
        self._letters = {f"{each.letter.subscriber} {each.letter.message.seq}": each for each in letters}
        self.table.set([_row(key, each) for key, each in self._letters.items()])

    async def _open(self, key: str) -> None:
        known = self._letters.get(key)
        kept = None
        if known is not None:
            kept = await self._model.letter(known.letter.message.id, known.letter.subscriber)
        if kept is None:
            notify("This dead letter no longer exists: it was replayed or dropped", bad=True)
        else:
            found = await self._model.schema_for(kept.letter.message)
            schema = None if found is None else found.schema
            LetterDialog(kept, self._act, schema, read_only=not self._model.live).open()


def _row(key: str, kept: KeptDeadLetter) -> dict[str, Any]:
    message = kept.letter.message
    return {
        "key": key,
        "died": clock(kept.letter.at_ns),
        **cell("id", message.id, message_address(message.id), "tl-mono"),
        **cell("topic", message.topic, address("/messages", topic=message.topic), "tl-mono"),
        "reason": show.plain(kept.letter.reason[:200]),
        "edit": "",
    }


class LetterDialog:
    """A dialog for one dead letter: its attempts, and its payload as JSON or text in a form."""

    def __init__(self, kept: KeptDeadLetter, act: Act, schema: dict[str, Any] | None, *, read_only: bool) -> None:
        self._kept, self._act, self._schema = kept, act, schema
        letter = kept.letter
        self._value = show.payload(letter.message)
        self._before = self._value if isinstance(self._value, str) else as_json(self._value)
        editable = kept.whole and not isinstance(self._value, bytes)
        with ui.dialog() as self._dialog, ui.card().classes("tl-dialog"):
            text(f"{letter.subscriber} failed on {letter.message.topic}", "tl-h2")
            link(letter.message.id, message_address(letter.message.id), "tl-mono")
            for attempt in letter.attempts:
                text(f"attempt {attempt.number}, {clock(attempt.at_ns)}: {attempt.error}", "tl-note")
            with ui.expansion("Traceback").classes("w-full"):
                code(letter.traceback or "none")
            if schema is not None and editable:
                self._build_form(form_of(schema, self._value))
            self._field = ui.textarea("Payload", value=self._before).props("outlined autogrow").style("width:100%")
            self._field.classes("tl-mono")
            if not editable:
                self._field.disable()
                text("This payload cannot be edited as text. It is replayed unchanged.", "tl-note")
            with box("tl-tools"):
                replay = ui.button("Replay", icon="replay", on_click=self._replay).props("unelevated no-caps")
                drop = ui.button("Drop", icon="delete_outline", on_click=self._drop).props(
                    "outline no-caps color=negative"
                )
                ui.button("Close", on_click=self._dialog.close).props("flat no-caps")
            if read_only or not kept.returns:
                replay.disable()
            if read_only:
                drop.disable()
            if not kept.returns and not read_only:
                text("The hub cannot redeliver it: its subscriber must do that, with bus.replay_dead().", "tl-note")

    def _build_form(self, fields: list[FormField]) -> None:
        """A field for each plain value. Input in a field changes the JSON below."""
        with box("tl-grid").style("grid-template-columns:repeat(auto-fill,minmax(200px,1fr));gap:9px;width:100%"):
            for field in fields:
                label = f"{field.name}{' *' if field.required else ''}"
                element: Any
                if field.kind == "choice":
                    element = ui.select(field.choices, label=label, value=field.value).props("outlined dense")
                elif field.kind == "yes or no":
                    element = ui.switch(label, value=bool(field.value))
                else:
                    element = ui.input(label, value="" if field.value is None else str(field.value))
                    element.props("outlined dense")
                element.on_value_change(lambda event, field=field: self._enter(field, event.value))

    def _enter(self, field: FormField, entered: Any) -> None:
        try:
            value = msgspec.json.decode(str(self._field.value))
            self._field.value = as_json(changed_by(value, field, entered))
        except (ValueError, TypeError):
            # An incomplete number, or JSON that is being edited. The payload is checked before the replay.
            return

    def open(self) -> None:
        self._dialog.open()

    async def _replay(self) -> None:
        try:
            await self._act([self._kept], "replay", self._edited())
        except (TrunklineError, ValueError) as error:
            notify(f"Not replayed: {error}", bad=True)
            return
        self._dialog.close()

    def _edited(self) -> object:
        """The payload if it was changed, else None. Raises DecodeError or UsageError if it is not valid."""
        written = str(self._field.value or "")
        if written == self._before:
            return None
        if isinstance(self._value, str):
            return written
        value = msgspec.json.decode(written)
        if self._schema is not None and (problem := Checker(self._schema)(value)) is not None:
            raise UsageError(f"the payload does not match its schema, at {problem[0]}: {problem[1]}")
        return value

    async def _drop(self) -> None:
        self._dialog.close()
        try:
            await self._act([self._kept], "drop", None)
        except TrunklineError as error:
            notify(f"Not dropped: {error}", bad=True)
