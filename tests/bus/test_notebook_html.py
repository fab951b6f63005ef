"""A bus in a notebook shows its counters and a link to the page of its hub. Foreign text is escaped."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import trunkline as tl
from trunkline.bus.notebook_html import html_of
from trunkline.transports.pages import announced, page_address

HUB = "unix:///run/hub.sock"


def test_it_shows_the_books() -> None:
    async def main() -> None:
        async with tl.connect("memory:", name="<b>shop</b>") as bus:

            @bus.on("orders", name="<script>")
            async def take(order: int) -> None: ...

            await bus.publish("orders", 1)
            await bus.quiet()
            html = bus._repr_html_()
            assert "&lt;b&gt;shop&lt;/b&gt;" in html
            assert "<td>&lt;script&gt;</td>" in html
            assert "1 published" in html
            assert "memory" in html
            assert "<a " not in html

    asyncio.run(main())
    with tl.connect_blocking("memory:", name="till") as bus:
        assert "<b>till</b>" in bus._repr_html_()


def test_the_page_is_linked_while_it_runs() -> None:
    assert page_address(HUB) == ""
    with announced(HUB, "http://127.0.0.1:8420/"):
        assert page_address(HUB) == "http://127.0.0.1:8420/"
        assert page_address("unix:///another.sock") == ""
        with announced(HUB, "http://127.0.0.1:8421/"):
            assert page_address(HUB).endswith("8421/")
        # The second one has left, and the first does not answer for it.
    assert page_address(HUB) == ""


def test_a_page_that_was_killed_is_not_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int, signal: int) -> None:
        raise ProcessLookupError

    with announced(HUB, "http://127.0.0.1:8420/"):
        monkeypatch.setattr(os, "kill", gone)
        assert page_address(HUB) == ""


def test_no_password_is_printed(tmp_path: Path) -> None:
    async def main() -> None:
        async with tl.connect("memory:") as bus:
            html = html_of(bus.name, "redis://user:secret@host:6379", bus.stats(), bus.accounts())
            assert "secret" not in html
            assert "redis://host:6379" in html

    asyncio.run(main())
