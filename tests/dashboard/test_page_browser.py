"""The page in a real browser, at a hub with real traffic: each view, by mouse and keyboard, and hostile text."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import trunkline as tl
from tests.dashboard.browser import BrowserContext, Tab, chromium, expect, needs_chromium
from tests.dashboard.pages import RunningPage, page
from tests.hub.up import Up, up

pytestmark = [pytest.mark.slow, needs_chromium]

HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\x1b[31mred\u202e"
TOPIC = "evil.<svg/onload=window.hacked=1"


class World:
    """A hub, its page, a shop that publishes and a biller that fails on negative orders."""

    def __init__(self, hub: Up, served: RunningPage, bus: tl.BlockingBus, context: BrowserContext) -> None:
        self.hub, self.served, self.bus, self._context = hub, served, bus, context
        self.handled: list[int] = []
        self.ids: dict[str, str] = {}

    def tab(self) -> contextlib.closing[Any]:
        tab = Tab(self._context, self.served.address)
        tab.close = tab.page.close  # type: ignore[attr-defined]
        return contextlib.closing(tab)

    def seed(self) -> None:
        def bill(order: dict[str, Any]) -> None:
            if order["n"] < 0:
                raise ValueError(f"order {order['n']} is negative: {HOSTILE}")
            self.handled.append(order["n"])

        self.bus.handle("orders.*", bill, name="billing", durable=True, retry=tl.Retry(attempts=1))
        self.bus.handle("stock.level", lambda asked: {"left": 3}, name="stock")
        self.ids["placed"] = self.bus.publish("orders.placed", {"n": 1, "customer": "Käthe"})
        self.bus.publish("orders.paid", {"n": 1}, correlation_id=self.ids["placed"])
        self.bus.request("stock.level", {"sku": "a-1"}, correlation_id=self.ids["placed"])
        for number in (-1, -2, -3):
            self.ids[str(number)] = self.bus.publish("orders.placed", {"n": number})
        self.ids["evil"] = self.bus.publish(TOPIC, {"text": HOSTILE}, headers={"h": HOSTILE})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("TRUNKLINE_RUNTIME", str(folder / "runtime"))
        hub = stack.enter_context(up(folder, durable=True))
        served = stack.enter_context(page("--hub", hub.address))
        bus = stack.enter_context(tl.connect_blocking(hub.address, name="shop"))
        browser = stack.enter_context(chromium())
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        world = World(hub, served, bus, context)
        world.seed()
        with world.tab() as tab:
            # The token becomes a cookie, which all tabs have.
            tab.page.goto(served.link)
            expect(tab.page.locator("h1")).to_have_text("Overview")
            assert "token" not in tab.page.url
        yield world


VIEWS = {
    "/": "Overview",
    "/messages": "Messages",
    "/dead-letters": "Dead letters",
    "/subscribers": "Subscribers",
    "/topology": "Topology",
    "/tail": "Live tail",
    "/channels": "Channels and schemas",
    "/requests": "Requests and orphans",
    "/actors": "Actors",
    "/kernels": "Kernels",
    "/memory": "Shared memory of this machine",
    "/pipeline": "Pipeline",
}
SHOWS = {
    "/": "orders.placed",
    "/messages": "orders.paid",
    "/dead-letters": "billing",
    "/subscribers": "billing",
    "/topology": "stock.level",
    "/channels": "no schemas",
    "/requests": "answered",
    "/pipeline": "trunkline pipeline run",
}


def test_each_view_shows_what_it_is_about(world: World) -> None:
    with world.tab() as tab:
        for path, title in VIEWS.items():
            shown = tab.go(path)
            expect(shown.locator("h1")).to_have_text(title)
            expect(shown.locator("nav [aria-current=page]")).to_have_count(1)
            if path in SHOWS:
                expect(shown.locator("#content")).to_contain_text(SHOWS[path])
            assert tab.errors == [], path


def test_a_message_is_found_and_its_life_is_told(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/")
        shown.keyboard.press("/")
        expect(shown.get_by_role("searchbox")).to_be_focused()
        shown.keyboard.type("Käthe")
        shown.keyboard.press("Enter")
        expect(shown.locator("h1")).to_have_text("Messages")
        row = shown.locator("tbody tr")
        expect(row).to_have_count(1)
        assert "text=K" in shown.url, "what was searched for is part of the address"
        row.get_by_role("link", name=world.ids["placed"]).click()
        expect(shown.locator("h1")).to_have_text("Message")
        life = shown.locator(".tl-tl")
        expect(life).to_contain_text("published")
        expect(life).to_contain_text("delivered at billing")
        expect(shown.locator(".tl-code").first).to_contain_text('"customer": "Käthe"')
        tree = shown.locator(".tl-tree .r")
        expect(tree).to_have_count(4)
        expect(tree.nth(0)).to_contain_text("orders.placed")
        tree.nth(1).get_by_role("link").click()
        expect(shown.locator(".tl-kv").first).to_contain_text("orders.paid")
        assert tab.errors == []


def test_a_dead_letter_is_edited_and_replayed_by_clicking(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/dead-letters")
        row = shown.locator("tbody tr").filter(has_text="billing")
        # One bug is one row, whatever the numbers are.
        expect(row).to_have_count(1)
        row.get_by_role("link").first.click()
        expect(shown.locator("h1")).to_have_text("Dead letters of one cause")
        expect(shown.locator(".tl-code").first).to_contain_text("ValueError")
        shown.get_by_role("button", name="Dry run").click()
        expect(shown.locator(".q-notification").first).to_contain_text("3 letters would go back to billing")
        shown.get_by_role("button", name=f"open {world.ids['-2']}").click()
        field = shown.get_by_role("dialog").get_by_label("Payload")
        assert json.loads(field.input_value()) == {"n": -2}
        field.fill('{"n": 42')
        shown.get_by_role("dialog").get_by_role("button", name="Replay").click()
        expect(shown.locator(".q-notification").filter(has_text="Not replayed")).to_be_visible()
        field.fill('{"n": 42}')
        shown.get_by_role("dialog").get_by_role("button", name="Replay").click()
        expect(shown.locator(".q-notification").filter(has_text="1 dead letter redelivered")).to_be_visible()
        expect(shown.locator("tbody tr")).to_have_count(2)
        assert tab.errors == []
    assert world.handled[-1] == 42


def test_text_from_messages_does_nothing(world: World) -> None:
    with world.tab() as tab:
        for path in ("/messages", f"/message/{world.ids['evil']}", "/", "/topology", "/dead-letters", "/tail"):
            shown = tab.go(path)
            if path == "/tail":
                # It is published while the page looks.
                expect(shown.locator("#content")).to_contain_text(re.compile(r"\d+ seen"))
                world.bus.publish(TOPIC, {"text": HOSTILE})
            wanted = "<script>" if path == "/dead-letters" else "<svg/onload"
            expect(shown.locator("#content")).to_contain_text(wanted)
            assert shown.evaluate("window.hacked") is None
            text = shown.inner_text("#content")
            assert "\x1b" not in text
            assert "\u202e" not in text
            assert shown.locator("#content script, #content img").count() == 0
            assert tab.errors == [], path


def test_lists_filter_sort_and_have_an_address(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/subscribers")
        rows = shown.locator("tbody tr")
        expect(rows.filter(has_text="stock")).to_have_count(1)
        shown.get_by_label("filter").fill("billing")
        expect(rows).to_have_count(1)
        shown.wait_for_url("**/subscribers?filter=billing")
        shown.reload()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("orders.*")
        shown.get_by_label("filter").fill("")
        header = shown.get_by_role("columnheader", name="subscriber", exact=True)
        header.focus()
        header.press("Enter")
        expect(header).to_have_attribute("aria-sort", "ascending")
        expect(rows.first).to_contain_text("billing")
        header.press("Enter")
        expect(header).to_have_attribute("aria-sort", "descending")
        assert tab.errors == []


def test_light_and_dark_are_kept(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/")
        body = shown.locator("body")
        before = "body--dark" in (body.get_attribute("class") or "")
        shown.get_by_title("light or dark").click()
        other = "body--light" if before else "body--dark"
        shown.wait_for_selector(f"body.{other}")
        shown.reload()
        shown.wait_for_selector(f"body.{other}")
        shown.get_by_title("light or dark").click()
        assert tab.errors == []
