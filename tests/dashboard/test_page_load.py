"""The page beside a busy hub, and while its hub is down: its cost, and that it recovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.browser import Tab, chromium, expect, needs_chromium
from tests.dashboard.pages import page
from tests.hub.up import Up, up
from trunkline.dashboard.page.model.model import PageModel

pytestmark = [pytest.mark.long, pytest.mark.slow]

TRAFFIC = """
import asyncio, sys, time
import trunkline as tl

async def main() -> None:
    async with tl.connect(sys.argv[1], name="traffic") as bus, bus.subscribe("load.>", name="taker") as stream:
        async def take():
            async for _ in stream.batches():
                pass
        taking = asyncio.ensure_future(take())
        print("ready", flush=True)
        begin = time.monotonic()
        sent = 0
        while True:
            due = int((time.monotonic() - begin) * 10_000)
            if due > sent:
                await bus.publish_many("load.plain", [b"x" * 100] * min(due - sent, 1000))
                sent += min(due - sent, 1000)
            await asyncio.sleep(0.01)

asyncio.run(main())
"""
MEASURED_S = 15.0
MOST_OF_A_CORE = 0.05


@contextlib.contextmanager
def traffic(hub: Up) -> Iterator[None]:
    """10,000 messages a second, and a subscriber that takes them."""
    process = subprocess.Popen([sys.executable, "-c", TRAFFIC, hub.address], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_looking_costs_the_hub_little_at_10_000_messages_a_second(tmp_path: Path) -> None:
    async def measure(hub: Up, model: PageModel, *, looks: bool) -> tuple[float, int, float]:
        """CPU time of the hub, messages, and seconds."""
        await model.refresh()
        assert model.snapshot is not None
        before, published, begin = cpu_s(hub.pid), model.snapshot.published, time.monotonic()
        while time.monotonic() - begin < MEASURED_S:
            if looks:
                model.look()
            await asyncio.sleep(0.1)
        took_s = time.monotonic() - begin
        await model.refresh()
        return cpu_s(hub.pid) - before, model.snapshot.published - published, took_s

    async def main(hub: Up) -> None:
        async with PageModel(hub=hub.address) as model:
            alone_s, alone, _ = await measure(hub, model, looks=False)
            asked = model.asked
            with_s, together, took_s = await measure(hub, model, looks=True)
            # As many messages as before would have taken so much: the rest is the page.
            cost = (with_s - alone_s * together / alone) / took_s
            print(
                f"the page costs the hub {cost:.2%} of a core: {model.asked - asked} looks, {together / took_s:,.0f}/s"
            )
            assert model.asked - asked > MEASURED_S
            assert cost < MOST_OF_A_CORE

    with up(tmp_path) as hub, traffic(hub):
        asyncio.run(main(hub))


@needs_chromium
def test_the_page_goes_on_under_load_and_when_its_hub_comes_back(tmp_path: Path) -> None:
    with (
        up(tmp_path) as hub,
        page("--hub", hub.address, TRUNKLINE_RUNTIME=str(tmp_path / "runtime")) as served,
        chromium() as browser,
    ):
        tab = Tab(browser.new_context(), served.address)
        shown = tab.page
        with traffic(hub):
            shown.goto(served.link)
            expect(shown.locator("#content")).to_contain_text("load.plain")
            # Not frozen: views are left and opened as ever, also the one that takes every message.
            for _ in range(3):
                for path, text in (("/tail", "load.plain"), ("/subscribers", "taker"), ("/topology", "load.plain")):
                    expect(tab.go(path).locator("#content")).to_contain_text(text)
        tab.go("/")
        alarm = shown.get_by_role("alert")
        expect(alarm).to_be_hidden()
        hub.kill()
        expect(alarm).to_be_visible()
        expect(shown.locator("#content")).to_contain_text("load.plain")
        hub.start()
        expect(alarm).to_be_hidden()
        expect(shown.locator("#content")).to_contain_text("nothing has been published yet")
        assert tab.errors == []
