"""`trunkline top` on a terminal, on a real hub: tables, sorting, filtering, and the life of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import trunkline as tl
from trunkline.actors import Actor, ActorSystem
from trunkline.bus.explain import Explanation
from trunkline.cli.show import plain
from trunkline.connect import connect_hub
from trunkline.dashboard.looks import HubLook, LookTable, chosen, look
from trunkline.hub.hub import Hub

pytest.importorskip("textual", reason="pip install 'trunkline[top]'")

from trunkline.dashboard.terminal import LifeScreen, TopApp

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0
ESCAPE = "\x1b[31mred"


class Idler(Actor):
    async def receive(self, message: object) -> None:
        return None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # what a terminal shows has no event
            await asyncio.sleep(0.02)


def test_a_person_finds_the_slow_one_and_the_life_of_a_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with Hub() as hub:
            address = await hub.listen(f"unix://{tmp_path}/hub.sock")
            settings = tl.ConnectionSettings(connect_s=30.0)
            async with (
                tl.connect(address, name="shop", connection=settings) as shop,
                connect_hub(address, name="trunkline top") as broker,
                tl.connect(broker, name="trunkline top") as bus,
                ActorSystem(shop, "system") as system,
                shop.subscribe("orders.>", name="slow", capacity=2, overflow="drop_newest"),
                shop.subscribe("notes", name="idle"),
                shop.subscribe("notes", name=f"begin-{'x' * 60}-end"),
            ):
                await system.spawn(Idler, name="idler")
                ids = [await shop.publish("orders.eu", n) for n in range(20)]
                await shop.flush()

                async def look_once() -> HubLook:
                    return await look(broker, bus, 100, 0.1)

                async def explain(message_id: str) -> Explanation:
                    return await bus.explain(message_id)

                app = TopApp(look_once, explain, plain, 0.2)
                async with app.run_test(size=(160, 40)) as pilot:
                    await until(lambda: app.looks > 1 and bool(app.rows("subscribers")))
                    assert {row[0] for row in app.rows("subscribers")} >= {"slow", "idle"}
                    # What it subscribes to for its own questions would only take room.
                    assert "trunkline top" not in {row[2] for row in app.rows("subscribers")}
                    # A long name leaves room for the figures, and a subscriber that has lost messages is not ok.
                    (short,) = [row[0] for row in app.rows("subscribers") if row[0].startswith("begin-")]
                    assert (len(short), short[-4:]) == (36, "-end")
                    await until(lambda: ["slow", "lost messages"] in [row[::3][:2] for row in app.rows("subscribers")])
                    await until(lambda: ", 1 problem;" in str(app.query_one("#state").render()))
                    assert {row[0] for row in app.rows("clients")} >= {"shop", "trunkline top"}
                    assert "orders.eu" in {row[0] for row in app.rows("topics")}
                    await until(lambda: "system.idler" in {row[0] for row in app.rows("actors")})
                    await pilot.press("3")
                    assert app.tab == "topics"
                    await pilot.press("s", "s")
                    counts = [int(row[1].replace(",", "")) for row in app.rows("topics")]
                    assert counts == sorted(counts, reverse=True)
                    await pilot.press("r")
                    counts = [int(row[1].replace(",", "")) for row in app.rows("topics")]
                    assert counts == sorted(counts)
                    await pilot.press("slash")
                    await until(lambda: app.focused is not None and app.focused.id == "filter")
                    await pilot.press(*"orders")
                    await until(lambda: {row[0] for row in app.rows("topics")} == {"orders.eu"})
                    assert [row[0] for row in app.rows("subscribers")] == ["slow"]
                    await pilot.press("escape")
                    await until(lambda: len(app.rows("subscribers")) > 1)
                    await pilot.press("e")
                    await until(lambda: app.focused is not None and app.focused.id == "message")
                    await pilot.press(*("minus" if each == "-" else each for each in ids[0]), "enter")
                    await until(lambda: isinstance(app.screen, LifeScreen))
                    assert isinstance(app.screen, LifeScreen)
                    assert ids[0] in app.screen.text
                    assert "slow" in app.screen.text
                    seen = app.looks
                    await until(lambda: app.looks > seen + 1)
                    await pilot.press("escape")
                    await until(lambda: not isinstance(app.screen, LifeScreen))
                    await pilot.press("q")

    asyncio.run(main())


def test_without_its_hub_it_says_so_and_goes_on() -> None:
    async def main() -> None:
        async def look_once() -> HubLook:
            raise tl.HubUnavailable("unix:///nowhere", "it has gone")

        async def explain(message_id: str) -> Explanation:
            raise tl.HubUnavailable("unix:///nowhere", ESCAPE)

        app = TopApp(look_once, explain, plain, 0.1)
        async with app.run_test() as pilot:
            await until(lambda: "nowhere" in str(app.query_one("#state").render()))
            await pilot.press("e")
            await until(lambda: app.focused is not None and app.focused.id == "message")
            await pilot.press(*"abc", "enter")
            await until(lambda: isinstance(app.screen, LifeScreen))
            assert isinstance(app.screen, LifeScreen)
            assert "\x1b" not in app.screen.text
            await pilot.press("escape", "q")

    asyncio.run(main())


def test_rows_are_chosen_by_text_and_column() -> None:
    table = LookTable(("name", "count"), [("a", 2), ("b", 30), ("ab", 4)])
    assert chosen(table, "", None, falling=True) == table.rows
    assert chosen(table, "", 1, falling=True) == [("b", 30), ("ab", 4), ("a", 2)]
    assert chosen(table, "A", 0, falling=False) == [("a", 2), ("ab", 4)]
