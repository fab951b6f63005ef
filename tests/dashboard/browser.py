"""Debian's Chromium for tests of the page: one browser, and the errors in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="no Playwright: install the extra `test`")
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

__all__ = ["Browser", "BrowserContext", "Tab", "ViewportSize", "chromium", "expect", "needs_chromium"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: install Debian's package chromium (apt-get install chromium)"
)
PATIENCE_MS = 60_000
"""Only what hangs takes so long."""
ATTEMPTS = 3


expect.set_options(timeout=PATIENCE_MS)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # In a container there is no sandbox to be had, and /dev/shm may be small.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=2 * PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the browser, and the errors in it."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self._address = address
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("requestfailed", self._failed)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _failed(self, request: object) -> None:
        text = str(request)
        # A page that is left ends its websocket.
        if "socket.io" not in text:
            self.errors.append(text)

    def go(self, path: str) -> Page:
        """Open a view."""
        for left in reversed(range(ATTEMPTS)):
            try:
                self.page.goto(self._address + path.lstrip("/"))
                break
            except Error as error:
                # On a busy machine a page may miss its first handshake. It reloads itself then, which ends this.
                if not left or "ERR_ABORTED" not in str(error):
                    raise
        return self.page
