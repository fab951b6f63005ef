"""A durable subscription is forgotten at a running hub: by a bus, and on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.cli.test_hub_commands import call
from tests.hub.hubs import Place, received
from tests.hub.up import up
from trunkline.testing import simulate, world


async def _make(bus: tl.Bus, *payloads: object) -> list[Any]:
    """Subscribe as `billing` from the first message on. Returns this many payloads."""
    async with bus.subscribe("orders.*", name="billing", durable=True, start=1) as stream:
        for payload in payloads:
            await bus.publish("orders.placed", payload)
        return [await received(stream) for _ in payloads]


def test_a_bus_forgets_it_and_it_begins_anew(tmp_path: Path) -> None:
    async def act(simulation: Any) -> None:
        place = Place(world(simulation), tmp_path)
        await place.start()
        async with place.bus("one") as one, place.bus("another") as another:
            assert await _make(one, 1, 2) == [1, 2]
            await one.flush()
            with pytest.raises(tl.InvalidSettings, match=r"bus\.forget_durable\('billing'\)"):
                await another.subscribe("orders.>", name="billing", durable=True).open()
            async with one.subscribe("orders.*", name="billing", durable=True):
                with pytest.raises(tl.DuplicateName, match="billing"):
                    await another.forget_durable("billing")
            assert await another.forget_durable("billing")
            assert not await another.forget_durable("billing")
            async with another.subscribe("orders.>", name="billing", durable=True, start=1) as stream:
                assert [await received(stream) for _ in range(2)] == [1, 2]
        await place.stop()

    simulate(act)


def test_a_hub_without_a_journal_has_none() -> None:
    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus() as bus:
            with pytest.raises(tl.Unsupported, match="durable"):
                await bus.forget_durable("billing")
        await place.stop()

    simulate(act)


def test_on_the_command_line(tmp_path: Path) -> None:
    async def life(address: str) -> None:
        async with tl.connect(address) as bus:
            assert await _make(bus, 1) == [1]

    with up(tmp_path, durable=True) as hub:
        asyncio.run(life(hub.address))
        locked = call(None, "journal", "forget", str(hub.journal), "billing", "--yes")
        assert locked.code == 1
        assert "trunkline forget billing" in locked.err
        assert "--yes" in call(hub, "forget", "billing").err
        done = call(hub, "forget", "billing", "--yes")
        assert (done.code, done.out, done.err) == (0, "deleted: billing\n", "")
        done = call(hub, "forget", "billing", "--yes")
        assert (done.code, done.out) == (1, "")
        assert done.err == "the hub has no durable subscription 'billing'\n"
        assert call(hub, "forget", "billing", "--yes", "--json").out == '{"forgotten":null}\n'
