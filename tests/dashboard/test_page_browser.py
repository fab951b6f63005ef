"""The page in a real browser, at a hub with real traffic: each view, by mouse and keyboard, and hostile text."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.cli.commands import DEADLINE_S
from tests.dashboard.browser import Tab, expect, needs_chromium
from tests.dashboard.pages import TOKEN, page
from tests.dashboard.world import HOSTILE, TOPIC, WATCHER, World, world_in
from tests.hub.up import up

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUNKLINE_RUNTIME", str(folder / "runtime"))
        with world_in(folder) as world:
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
    "/requests": "answered",
    "/kernels": "laboratory",
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


def test_an_unknown_message_leads_to_the_search(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/message/0199")
        expect(shown.locator("#content")).to_contain_text("not known here")
        shown.get_by_role("link", name="Search all messages").click()
        expect(shown.locator("h1")).to_have_text("Messages")


def test_topics_of_dead_letters_lead_to_their_messages(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/dead-letters?filter=bank")
        expect(shown.locator("thead")).to_contain_text("last (UTC)")
        shown.locator("tbody").get_by_role("link", name="payments.eu").click()
        expect(shown.locator("h1")).to_have_text("Messages")
        assert "topic=payments.eu" in shown.url


def test_a_dead_letter_is_edited_and_replayed_by_clicking(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/dead-letters")
        row = shown.locator("tbody tr").filter(has_text="billing")
        # One bug is one row, whatever the numbers are.
        expect(row).to_have_count(1)
        row.get_by_role("link").first.click()
        expect(shown.locator("h1")).to_have_text("Dead letters with one cause")
        expect(shown.locator(".tl-code").first).to_contain_text("ValueError")
        shown.get_by_role("button", name="Dry run").click()
        expect(shown.locator(".q-notification").first).to_contain_text("3 dead letters would be redelivered to billing")
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
        own = f"/message/{world.ids['evil']}"
        for path in ("/messages", own, "/?filter=evil", "/topology", "/dead-letters", "/tail", "/subscribers"):
            shown = tab.go(path)
            if path == "/tail":
                # It is published while the page looks.
                expect(shown.locator("#content")).to_contain_text(re.compile(r"\d+ seen"))
                world.bus.publish(TOPIC, {"text": HOSTILE})
            wanted = {"/dead-letters": "<script>", "/subscribers": WATCHER[:9]}.get(path, "<svg/onload")
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
        shown.get_by_label("filter").fill("shop")
        # A new filter shows the first page, in the order that the list has when the filter arrives in the browser.
        shown.wait_for_url("**/subscribers?filter=shop")
        header = shown.get_by_role("columnheader", name="subscriber", exact=True)
        header.focus()
        header.press("Enter")
        expect(header).to_have_attribute("aria-sort", "ascending")
        expect(rows.first).to_contain_text(WATCHER[:5])
        header.press("Enter")
        expect(header).to_have_attribute("aria-sort", "descending")
        expect(rows.first).to_contain_text("stock.level")
        assert tab.errors == []


def test_the_first_state_of_a_list_may_be_late(world: World) -> None:
    """The browser sends it when it builds the list, and NiceGUI holds it back until the connection is ready."""
    with world.tab() as tab:
        shown = tab.go("/subscribers")
        header = shown.get_by_role("columnheader", name="pattern", exact=True)
        header.click()
        shown.wait_for_url("**/subscribers?sort=pattern")
        first = {"sortBy": None, "descending": False, "page": 1, "rowsPerPage": 25, "changes": 0}
        shown.evaluate(
            """state => getElement(document.querySelector(".q-table__container").id.slice(1)).$refs.qRef
               .$emit("update:pagination", state)""",
            first,
        )
        header.click()
        shown.wait_for_url("**/subscribers?sort=-pattern")
        expect(header).to_have_attribute("aria-sort", "descending")
        header.click()
        shown.wait_for_url("**/subscribers")
        expect(header).to_have_attribute("aria-sort", "none")
        assert tab.errors == []


def test_the_order_of_each_list_is_part_of_the_address(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/subscribers")
        shown.get_by_role("columnheader", name="pattern", exact=True).click()
        shown.wait_for_url("**/subscribers?sort=pattern")
        shown.get_by_role("columnheader", name="client", exact=True).last.click()
        shown.get_by_role("columnheader", name="client", exact=True).last.click()
        shown.wait_for_url("**/subscribers?sort=pattern%2C-name")
        shown.get_by_label("filter").fill("shop")
        shown.wait_for_url("**/subscribers?filter=shop&sort=pattern%2C-name")
    with world.tab() as tab:
        # Somebody else opens it.
        shown = tab.go("/subscribers?filter=shop&sort=pattern%2C-name")
        pattern = shown.get_by_role("columnheader", name="pattern", exact=True)
        expect(pattern).to_have_attribute("aria-sort", "ascending")
        client = shown.get_by_role("columnheader", name="client", exact=True).last
        expect(client).to_have_attribute("aria-sort", "descending")
        expect(shown.locator("table").first.locator("tbody tr").first).to_contain_text("orders.*")
        # Twice more, and it is in no order.
        pattern.click()
        shown.wait_for_url("**/subscribers?filter=shop&sort=-pattern%2C-name")
        pattern.click()
        shown.wait_for_url("**/subscribers?filter=shop&sort=%2C-name")
        shown = tab.go("/messages?topic=orders.>&sort=-size")
        expect(shown.get_by_role("columnheader", name="bytes")).to_have_attribute("aria-sort", "descending")
        expect(shown.locator("tbody tr").first).to_contain_text("customer")
        shown.get_by_label("Topic, such as").fill("orders.placed")
        shown.wait_for_url("**/messages?topic=orders.placed&sort=-size")
        shown = tab.go("/subscribers?sort=nonsense,<b>")
        expect(shown.locator("tbody tr").filter(has_text="billing")).to_have_count(1)
        assert tab.errors == []


def test_orphans_are_shown_with_the_reason(world: World, tmp_path: Path) -> None:
    """A bus with its own journal: one answer came before its request, and one after another answer."""
    journal = tmp_path / "journal"

    async def main() -> tuple[str, str]:
        late: list[str] = []
        async with tl.connect("memory:", journal=str(journal), name="shop") as bus:
            gate = asyncio.Event()

            @bus.on("who", name="fast")
            async def fast() -> str:
                return "fast"

            @bus.on("who", name="slow")
            async def slow() -> str:
                await gate.wait()
                return "slow"

            assert await bus.request("who") == "fast"
            gate.set()
            await bus.quiet()
            late += [orphan.message.id for orphan in bus.orphans]
            early = await bus.post(tl.Message(type=tl.MessageType.RESPONSE, request_id="<b>r1</b>", payload=b"early"))
            return late[0], early

    # Playwright has an event loop in this thread.
    with ThreadPoolExecutor(1) as threads:
        late, early = threads.submit(lambda: asyncio.run(main())).result()
    with page("--journal", str(journal)) as served:
        tab = Tab(world.browser.new_context(), served.address)
        tab.page.goto(served.link)
        shown = tab.go("/requests")
        orphans = shown.locator("table").last.locator("tbody tr")
        expect(orphans).to_have_count(2)
        expect(orphans.filter(has_text="its request was answered")).to_have_count(1)
        shown.get_by_label("filter").fill("(yet)")
        expect(orphans).to_have_count(1)
        shown.wait_for_url("**/requests?filter=%28yet%29")
        orphans.get_by_role("link", name=early).click()
        expect(shown.locator("h1")).to_have_text("Message")
        expect(shown.locator("#content")).to_contain_text("<b>r1</b>")
        shown = tab.go(f"/message/{late}")
        expect(shown.locator("#content")).to_contain_text("slow")
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


def cells(row: Any) -> list[str]:
    return [str(text).strip() for text in row.locator("td").all_inner_texts()]


def test_actors_are_a_tree_with_restarts(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/actors")
        rows = shown.locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("lab.bench")
        assert [cells(rows.nth(at))[0] for at in range(3)] == ["lab.bench", "└ lab.bench.left", "└ lab.bench.right"]
        # kind, health, mailbox, room, handled, restarts
        assert cells(rows.nth(1))[1:] == ["Pump", "ok", "0", "10,000", "2", "0"]
        assert cells(rows.nth(2))[6] == "1", "it failed once"
        shown.get_by_label("filter").fill("right")
        expect(rows).to_have_count(1)
        rows.get_by_role("link").click()
        expect(shown.locator("h1")).to_have_text("Messages")
        expect(rows.first).to_contain_text("_to.lab.bench.right")
        assert tab.errors == []


def test_a_kernel_shows_what_it_runs_and_the_output_so_far(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/kernels")
        row = shown.locator("tbody tr").filter(has_text=world.kernel)
        expect(row).to_contain_text("python")
        row.get_by_role("link").click()
        cards = shown.locator(".tl-card")
        expect(cards).to_have_count(3)
        expect(cards.nth(0)).to_contain_text("running")
        expect(cards.nth(0).locator(".tl-code").nth(1)).to_contain_text("step 3 of the measurement")
        expect(cards.nth(1)).to_contain_text("ZeroDivisionError: division by zero")
        expect(cards.nth(2).locator(".tl-code").nth(1)).to_have_text("<b>calibrated</b>\n42\n")
        assert shown.locator("#content b").count() == 0
        assert tab.errors == []


def test_shared_memory_shows_channels_and_processes(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/memory")
        channel = shown.locator("tbody tr").filter(has_text="plotter")
        expect(channel).to_contain_text(f"process {world.pid}: ")
        name, producer, frames, *_ = cells(channel)
        assert (name, producer, frames) == ("camera", "laboratory", "3")
        process = shown.locator("tbody tr").filter(has_text="alive").first
        expect(process).to_contain_text(str(world.pid))
        expect(process).to_contain_text("camera")
        expect(shown.locator("#content")).to_contain_text("no files of dead processes")
        channel.get_by_role("link").click()
        expect(shown.locator("h1")).to_have_text("Channels and schemas")
        row = shown.locator("tbody tr").first
        expect(row).to_contain_text("camera")
        assert cells(row)[4:6] == ["1", "1"], "its producer and its consumer"
        assert tab.errors == []


def test_schemas_show_their_versions_and_what_would_break(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/channels")
        shown.get_by_role("link", name="payment", exact=True).click()
        newest = shown.locator(".tl-card").first
        expect(newest).to_contain_text("Version 2.0.0")
        expect(newest).to_contain_text("cannot read data written with 1.0.0")
        expect(newest).to_contain_text("$.currency: 2.0.0 requires it")
        expect(newest).to_contain_text("can be read with 1.0.0")
        shown = tab.go(f"/message/{world.ids['payment']}")
        expect(shown.locator("#content")).to_contain_text("payments 1.0.0")
        expect(shown.locator(".tl-tag.good")).to_have_text("matches")
        assert tab.errors == []


def test_a_letter_with_a_schema_is_edited_in_a_form(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/dead-letters?filter=bank")
        shown.locator("tbody tr").filter(has_text="bank").get_by_role("link").first.click()
        shown.get_by_role("button", name=f"open {world.ids['payment']}").click()
        dialog = shown.get_by_role("dialog")
        dialog.get_by_label("amount *").fill("12.5")
        expect(dialog.get_by_label("Payload")).to_have_value(re.compile(r'"amount": 12.5'))
        dialog.get_by_label("Payload").fill('{"amount": "much"}')
        dialog.get_by_role("button", name="Replay").click()
        expect(shown.locator(".q-notification").filter(has_text="does not match its schema")).to_be_visible()
        dialog.get_by_label("Payload").fill('{"amount": 12.5}')
        dialog.get_by_role("button", name="Replay").click()
        expect(shown.locator("#content")).to_contain_text("No dead letters with this cause are left")
        assert tab.errors == []
    assert world.paid.get(timeout=DEADLINE_S) == 12.5
    assert world.paid.empty()


def test_messages_are_found_by_correlation_and_time(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go(f"/messages?correlation={world.ids['placed']}")
        rows = shown.locator("tbody tr")
        expect(rows).to_have_count(3)
        shown = tab.go("/messages?since=2100-01-01")
        expect(shown.locator("#content")).to_contain_text("no messages match")
        shown.get_by_label("Since 2026-11-16T10:00").fill("yesterday-ish")
        expect(shown.locator("#content .tl-banner").filter(has_text="since")).to_be_visible()
        shown.get_by_label("Since 2026-11-16T10:00").fill("")
        expect(rows.first).to_be_visible()
        assert tab.errors == []


def test_the_live_tail_filters_and_stops(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/tail?topic=watched.>")
        expect(shown.locator("#content")).to_contain_text(re.compile(r"\d+ seen"))
        world.bus.publish("watched.one", "first")
        world.bus.publish("unwatched", "elsewhere")
        rows = shown.locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("first")
        shown.get_by_role("switch", name="Pause").click()
        expect(shown.get_by_role("switch", name="Pause")).to_be_checked()
        world.bus.publish("watched.two", "second")
        with world.tab() as other:
            # Another browser sees it: the pause is one's own.
            other.go("/tail?topic=watched.>")
            expect(other.page.locator("tbody")).to_contain_text("second")
        expect(rows).to_have_count(1)
        shown.get_by_role("switch", name="Pause").click()
        expect(rows).to_have_count(2)
        assert tab.errors == []


POINTS = """() => { const id = +document.querySelector('.nicegui-echart').id.slice(1);
return getElement(id).chart.getOption().series[0].data.map(point => point[0]) }"""


def test_history_survives_a_reload_and_a_restart_of_the_hub(world: World, tmp_path: Path) -> None:
    runtime = str(tmp_path / "runtime")
    with up(tmp_path) as hub, page("--hub", hub.address, TRUNKLINE_RUNTIME=runtime) as served:
        tab = Tab(world.browser.new_context(), served.address)
        shown = tab.page
        shown.goto(served.link)
        shown.wait_for_function(f"({POINTS})().length > 1")
        first = shown.evaluate(POINTS)[0]
        shown.reload()
        shown.wait_for_function(f"({POINTS})().length > 1")
        assert shown.evaluate(POINTS)[0] == first
        alarm = shown.get_by_role("alert")
        expect(alarm).to_be_hidden()
        hub.kill()
        expect(alarm).to_be_visible()
        hub.start()
        expect(alarm).to_be_hidden()
        assert shown.evaluate(POINTS)[0] == first
        assert tab.errors == []
        shown.context.close()


OVERLAPS = """() => { const labels = [...document.querySelectorAll('.tl-svg text')];
const boxes = labels.map(each => each.getBoundingClientRect());
return boxes.filter((a, at) => boxes.some((b, other) => other > at && a.left < b.right && b.left < a.right
&& a.top < b.bottom && b.top < a.bottom)).length }"""


def test_labels_of_the_topology_are_beside_each_other_and_lead_on(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/topology")
        expect(shown.locator(".tl-svg text").filter(has_text="orders.placed")).to_be_visible()
        assert shown.locator(".tl-svg text").count() > 10
        assert shown.evaluate(OVERLAPS) == 0
        shown.locator(".tl-svg a").filter(has_text="billing").first.focus()
        shown.keyboard.press("Enter")
        expect(shown.locator("h1")).to_have_text("Subscribers")
        expect(shown.locator("tbody tr").first).to_contain_text("billing")
        assert tab.errors == []


def test_subscribers_are_not_cut_at_the_width_of_a_laptop(world: World) -> None:
    with world.tab() as tab:
        shown = tab.go("/subscribers")
        expect(shown.locator("tbody td", has_text="drop newest, 10,000")).to_be_visible()
        hidden = "tables => tables.map(each => each.scrollWidth - each.clientWidth)"
        assert shown.locator(".q-table__middle").evaluate_all(hidden) == [0, 0]
        assert tab.errors == []


def test_a_stranger_enters_with_the_token_only(world: World) -> None:
    context = world.browser.new_context()
    try:
        tab = Tab(context, world.served.address)
        shown = tab.go("/messages?text=Käthe")
        expect(shown.locator("h1")).to_have_text("This page needs its token")
        assert shown.locator("tbody").count() == 0
        shown.get_by_label("token").fill(TOKEN)
        shown.keyboard.press("Enter")
        expect(shown.locator("h1")).to_have_text("Messages")
    finally:
        context.close()
