"""The frame of every view: navigation, state of the hub, search, light and dark theme; and the refresh of views."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from trunkline.dashboard.page.elements import Stat as Stat
from trunkline.dashboard.page.elements import box, text
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import inert
from trunkline.dashboard.page.theme import CSS, FAVICON, SCRIPT
from trunkline.errors import TrunklineError

REFRESH_S: Final = 0.4
NAVIGATION: Final = (
    ("/", "Overview", "space_dashboard"),
    ("/messages", "Messages", "mail_outline"),
    ("/dead-letters", "Dead letters", "report_gmailerrorred"),
    ("/subscribers", "Subscribers", "groups"),
    ("/topology", "Topology", "account_tree"),
    ("/tail", "Live tail", "stream"),
    ("/channels", "Channels", "schema"),
    ("/requests", "Requests", "swap_horiz"),
    ("/actors", "Actors", "hub"),
    ("/kernels", "Kernels", "terminal"),
    ("/memory", "Shared memory", "memory"),
    ("/pipeline", "Pipeline", "conveyor_belt"),
)

Refresh = Callable[[], Awaitable[None] | None]


class Shell:
    """One page of one browser."""

    def __init__(self, model: PageModel) -> None:
        self.model = model
        self._counts: dict[str, Any] = {}
        self._timers: list[ui.timer] = []

    def every(self, seconds: float, refresh: Refresh) -> None:
        """Call `refresh` every `seconds` while the page is visible. Errors are shown in the banner."""
        busy = False

        async def step() -> None:
            nonlocal busy
            if busy:
                return
            busy = True
            try:
                found = refresh()
                if isawaitable(found):
                    await found
            except (TrunklineError, OSError) as error:
                self.complain(str(error))
            finally:
                busy = False

        self._timers.append(ui.timer(seconds, step))

    def with_model(self, refresh: Refresh) -> None:
        """Call `refresh` whenever the model has changed since the last call."""
        seen = -1

        def step() -> Awaitable[None] | None:
            nonlocal seen
            self.model.look()
            if self.model.version == seen or self.model.snapshot is None:
                return None
            seen = self.model.version
            return refresh()

        self.every(REFRESH_S, step)

    def complain(self, why: str) -> None:
        self._banner.text = inert(why)
        self._banner.set_visibility(bool(why))

    def show_state(self) -> None:
        model, snapshot = self.model, self.model.look()
        if model.trouble:
            self.complain(f"{model.trouble}. The page shows the last known state, and keeps trying.")
        elif self._banner.visible:
            self.complain("")
        self._dot.classes(add="bad") if model.trouble else self._dot.classes(remove="bad")
        self._state.text = inert((model.trouble and "not connected") or model.place)
        if snapshot is not None:
            self._count("/dead-letters", snapshot.dead_letters, bad=True)
            self._count("/subscribers", snapshot.subscribers_total)
            self._count("/requests", snapshot.orphans)

    def _count(self, path: str, count: int, *, bad: bool = False) -> None:
        element = self._counts[path]
        element.text = f"{count:,}" if count else ""
        element.classes(add="bad") if bad and count else element.classes(remove="bad")

    def visible(self, event: GenericEventArguments) -> None:
        """Stop the timers of a hidden tab, so that it causes no requests; start them when it is visible."""
        for timer in self._timers:
            timer.active = bool(event.args)

    def build_side(self, current: str) -> None:
        with box("tl-side", "nav", **{"aria-label": "views"}):
            with box("tl-brand", "a", href="/"):
                ui.html(FAVICON, sanitize=False)
                text("Trunkline", tag="span")
            for path, label, icon in NAVIGATION:
                with box("tl-nav", "a", href=path) as item:
                    if path == current:
                        item.props["aria-current"] = "page"
                    ui.icon(icon)
                    text(label, tag="span")
                    self._counts[path] = text("", "tl-count", "span")

    def build_top(self, title: str) -> None:
        with box("tl-top", "header"):
            text(title, tag="h1")
            box("tl-grow")
            with box("", "form", action="/messages", method="get", role="search"):
                box(
                    "tl-find",
                    "input",
                    name="text",
                    type="search",
                    placeholder="Find a message   /",
                    **{"aria-label": "find a message by id or text"},
                )
            with box("tl-pill", role="status"):
                self._dot = box("tl-dot")
                self._state = text(self.model.place, tag="span")
            with box("tl-icon", "button", type="button", onclick="tlTheme()", title="light or dark"):
                ui.icon("contrast")
        self._banner = text("", "tl-banner", role="alert")
        self._banner.set_visibility(False)


@contextmanager
def framed(model: PageModel, title: str, current: str) -> Iterator[Shell]:
    """The frame of a view. Elements built inside the block are its content."""
    ui.page_title(f"{inert(title)} · Trunkline")
    ui.add_css(CSS)
    ui.colors(primary="#3b5bdb", positive="#1f8a5b", negative="#c62f45")
    ui.add_body_html(f"<script>{SCRIPT}</script>")
    theme = ui.context.client.request.cookies.get("trunkline_theme")
    if theme in ("dark", "light"):
        ui.dark_mode(theme == "dark")
    shell = Shell(model)
    text("Skip to the content", "tl-skip", "a", href="#content")
    with box("tl-shell"):
        shell.build_side(current)
        with box("tl-main", id="content"):
            shell.build_top(title)
            yield shell
    ui.on("visibility", shell.visible)
    shell.every(REFRESH_S, shell.show_state)
