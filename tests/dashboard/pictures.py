"""The pictures of docs/page.md and docs/tutorial.md: `python -m tests.dashboard.pictures`. Needs Chromium."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import trunkline as tl
from tests.dashboard.browser import Tab, chromium
from tests.dashboard.laboratory import laboratory
from tests.dashboard.pages import page
from tests.dashboard.world import SIZE
from tests.hub.up import up

FOLDER = Path(__file__).parent.parent.parent / "docs" / "pictures"
SECONDS = 10


def bill(order: dict[str, Any]) -> None:
    if order["n"] % 40 == 0:
        raise ValueError(f"card declined for order {order['n']}")


def make() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir="/tmp") as place:
        os.environ["TRUNKLINE_RUNTIME"] = f"{place}/runtime"
        tutorial(Path(place) / "tutorial")
        shop(Path(place) / "shop")


def shop(folder: Path) -> None:
    """The pictures of docs/page.md: a shop and a laboratory."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(up(folder, durable=True))
        served = stack.enter_context(page("--hub", hub.address, TRUNKLINE_RUNTIME=os.environ["TRUNKLINE_RUNTIME"]))
        bus = stack.enter_context(tl.connect_blocking(hub.address, name="shop"))
        browser = stack.enter_context(chromium())
        bus.handle("orders.*", bill, name="billing", durable=True, retry=tl.Retry(attempts=2, delay_s=0.1))
        bus.handle("orders.placed", lambda order: None, name="stock", durable=True)
        bus.handle("stock.level", lambda asked: {"left": 3}, name="shelf")
        light = Tab(browser.new_context(viewport=SIZE, color_scheme="light"), served.address)
        light.page.goto(served.link)
        last = ""
        for number in range(1, SECONDS * 20):
            last = bus.publish("orders.placed", {"n": number, "sku": f"A-{number % 9}", "amount": number * 1.5})
            bus.publish("orders.paid", {"n": number}, correlation_id=last)
            bus.request("stock.level", {"n": number}, correlation_id=last)
            light.page.wait_for_timeout(1000 / 20)
        light.page.screenshot(path=FOLDER / "overview.png")
        light.go(f"/message/{last}")
        light.page.wait_for_selector(".tl-tree")
        light.page.screenshot(path=FOLDER / "message.png")
        dark = Tab(browser.new_context(viewport=SIZE, color_scheme="dark"), served.address)
        dark.page.goto(served.link)
        dark.go("/topology")
        dark.page.wait_for_selector(".tl-svg svg")
        for number in range(SECONDS * 4):
            bus.publish("orders.placed", {"n": number, "sku": "A-1", "amount": 1.5})
            if number % 3 == 0:
                bus.request("stock.level", {"n": number})
            dark.page.wait_for_timeout(1000 / 20)
        dark.page.screenshot(path=FOLDER / "topology.png", clip={"x": 0, "y": 0, "width": 1280, "height": 260})
        found = stack.enter_context(laboratory(hub.address))
        light.go(f"/kernels/{found['kernel']}")
        light.page.get_by_text("step 3 of the measurement", exact=False).last.wait_for()
        light.page.screenshot(path=FOLDER / "kernel.png", clip={"x": 0, "y": 0, "width": 1280, "height": 660})


def tutorial(folder: Path) -> None:
    """The pictures of docs/tutorial.md: its order of no items on the page."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(up(folder, durable=True))
        served = stack.enter_context(page("--hub", hub.address, TRUNKLINE_RUNTIME=os.environ["TRUNKLINE_RUNTIME"]))
        billing = stack.enter_context(tl.connect_blocking(hub.address, name="billing"))
        bus = stack.enter_context(tl.connect_blocking(hub.address, name="shop"))
        billing.handle(
            "orders.placed",
            lambda order: order["total"] / order["items"],
            name="billing",
            durable=True,
            retry=tl.Retry(attempts=2),
        )
        browser = stack.enter_context(chromium())
        tab = Tab(browser.new_context(viewport=SIZE, color_scheme="light"), served.address)
        tab.page.goto(served.link)
        for items in (1, 2, 0):
            last = bus.publish("orders.placed", {"id": f"a{items}", "items": items, "total": 9.0})
        tab.go(f"/message/{last}")
        tab.page.get_by_text("dead", exact=True).wait_for()
        tab.page.screenshot(path=FOLDER / "tutorial-life.png", clip={"x": 216, "y": 0, "width": 1064, "height": 440})
        tab.go("/dead-letters")
        tab.page.locator("tbody a").first.click()
        tab.page.get_by_role("button", name=f"open {last}").click()
        tab.page.get_by_role("dialog").get_by_label("Payload").wait_for()
        tab.page.wait_for_timeout(1000)
        tab.page.screenshot(
            path=FOLDER / "tutorial-letter.png", clip={"x": 216, "y": 180, "width": 1064, "height": 500}
        )


if __name__ == "__main__":
    make()
