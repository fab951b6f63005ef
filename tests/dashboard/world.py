"""A hub with real traffic, everything that can be beside it, its page, and a browser that is logged in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import msgspec

import trunkline as tl
from tests.cli.commands import DEADLINE_S
from tests.dashboard.browser import Browser, BrowserContext, Tab, ViewportSize, chromium, expect
from tests.dashboard.laboratory import laboratory
from tests.dashboard.pages import RunningPage, page
from tests.hub.up import Up, up

HOSTILE: Final = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\x1b[31mred\u202e"
TOPIC: Final = "evil.<svg/onload=window.hacked=1"
WATCHER: Final = "<img/src=x onerror=window.hacked=1>"
SIZE: Final[ViewportSize] = {"width": 1280, "height": 860}


class Payment(msgspec.Struct):
    amount: float
    method: str = "card"


class PaymentNow(msgspec.Struct):
    amount: float
    currency: str
    method: str = "card"


class World:
    """A shop that publishes, a biller that fails on negative orders, a bank with a schema, and a laboratory."""

    def __init__(self, hub: Up, served: RunningPage, bus: tl.BlockingBus, browser: Browser) -> None:
        self.hub, self.served, self.bus, self.browser = hub, served, bus, browser
        self.context: BrowserContext = browser.new_context(viewport=SIZE)
        self.handled: list[int] = []
        self.paid: SimpleQueue[float] = SimpleQueue()
        self.ids: dict[str, str] = {}
        self.kernel = ""
        self.pid = 0

    def tab(self) -> contextlib.closing[Any]:
        tab = Tab(self.context, self.served.address)
        tab.close = tab.page.close  # type: ignore[attr-defined]
        return contextlib.closing(tab)

    def seed(self) -> None:
        def bill(order: dict[str, Any]) -> None:
            if order["n"] < 0:
                raise ValueError(f"order {order['n']} is negative: {HOSTILE}")
            self.handled.append(order["n"])

        def pay(payment: dict[str, Any]) -> None:
            if payment["amount"] > 1000:
                raise ValueError("above the limit")
            self.paid.put(payment["amount"])

        self.bus.handle("orders.*", bill, name="billing", durable=True, retry=tl.Retry(attempts=1))
        self.bus.handle("payments.*", pay, name="bank", durable=True, retry=tl.Retry(attempts=1))
        self.bus.handle("stock.level", lambda asked: {"left": 3}, name="stock")
        self.bus.handle("watched.>", lambda seen: None, name=WATCHER)
        self.ids["placed"] = self.bus.publish("orders.placed", {"n": 1, "customer": "Käthe"})
        self.bus.publish("orders.paid", {"n": 1}, correlation_id=self.ids["placed"])
        self.bus.request("stock.level", {"sku": "a-1"}, correlation_id=self.ids["placed"])
        for number in (-1, -2, -3):
            self.ids[str(number)] = self.bus.publish("orders.placed", {"n": number})
        self.ids["payment"] = self.bus.publish("payments.eu", {"amount": 5000.0, "method": "card"})
        self.ids["evil"] = self.bus.publish(TOPIC, {"text": HOSTILE}, headers={"h": HOSTILE})
        deadline_s = time.monotonic() + DEADLINE_S
        while self.bus.stats().dead_letters < 4:
            assert time.monotonic() < deadline_s, "four messages must fail"
            time.sleep(0.01)


async def make_contracts(address: str) -> None:
    """A channel with a schema, and a schema with two incompatible versions."""
    async with tl.connect(address, name="registrar") as bus:
        directory = bus.broker.require_directory()
        await directory.create_channel("payments", pattern="payments.>", schema=msgspec.json.schema(Payment))
        for version, kind in (("1.0.0", Payment), ("2.0.0", PaymentNow)):
            await directory.put_schema("payment", msgspec.json.schema(kind), version, "none")


@contextlib.contextmanager
def world_in(folder: Path) -> Iterator[World]:
    """TRUNKLINE_RUNTIME must be `folder / "runtime"` meanwhile."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(up(folder, durable=True))
        found = stack.enter_context(laboratory(hub.address))
        tl.run(make_contracts(hub.address))
        runtime = str(folder / "runtime")
        served = stack.enter_context(page("--hub", hub.address, TRUNKLINE_RUNTIME=runtime))
        bus = stack.enter_context(tl.connect_blocking(hub.address, name="shop"))
        world = World(hub, served, bus, stack.enter_context(chromium()))
        world.kernel, world.pid = found["kernel"], found["pid"]
        world.seed()
        with world.tab() as tab:
            # The token becomes a cookie, which all tabs have.
            tab.page.goto(served.link)
            expect(tab.page.locator("h1")).to_have_text("Overview")
            assert "token" not in tab.page.url
        yield world
