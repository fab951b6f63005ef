"""The pictures of docs/page.md: `python -m tests.dashboard.pictures`. Needs Chromium."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import trunkline as tl
from tests.dashboard.browser import Tab, chromium
from tests.dashboard.pages import page
from tests.hub.up import up

FOLDER = Path(__file__).parent.parent.parent / "docs" / "pictures"
SECONDS = 10


def bill(order: dict[str, Any]) -> None:
    if order["n"] % 40 == 0:
        raise ValueError(f"card declined for order {order['n']}")


def make() -> None:
    FOLDER.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hub = stack.enter_context(up(folder, durable=True))
        served = stack.enter_context(page("--hub", hub.address, TRUNKLINE_RUNTIME=str(folder / "runtime")))
        shop = stack.enter_context(tl.connect_blocking(hub.address, name="shop"))
        browser = stack.enter_context(chromium())
        shop.handle("orders.*", bill, name="billing", durable=True, retry=tl.Retry(attempts=2, delay_s=0.1))
        shop.handle("orders.placed", lambda order: None, name="stock", durable=True)
        shop.handle("stock.level", lambda asked: {"left": 3}, name="shelf")
        light = Tab(browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light"), served.address)
        light.page.goto(served.link)
        last = ""
        for number in range(1, SECONDS * 20):
            last = shop.publish("orders.placed", {"n": number, "sku": f"A-{number % 9}", "amount": number * 1.5})
            shop.publish("orders.paid", {"n": number}, correlation_id=last)
            shop.request("stock.level", {"n": number}, correlation_id=last)
            light.page.wait_for_timeout(1000 / 20)
        light.page.screenshot(path=FOLDER / "overview.png")
        light.go(f"/message/{last}")
        light.page.wait_for_selector(".tl-tree")
        light.page.screenshot(path=FOLDER / "message.png")
        dark = Tab(browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark"), served.address)
        dark.page.goto(served.link)
        dark.go("/topology")
        dark.page.wait_for_selector(".tl-svg svg")
        dark.page.wait_for_timeout(1500)
        dark.page.screenshot(path=FOLDER / "topology.png", clip={"x": 0, "y": 0, "width": 1280, "height": 520})


if __name__ == "__main__":
    make()
