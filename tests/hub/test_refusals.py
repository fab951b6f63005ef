"""A refusal of a hub reaches the caller as the same error as in one process, with the code of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place
from trunkline.brokers.hub.refusals import refusal
from trunkline.hub import admission
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker
from trunkline.testing import simulate, world

FIELDS = ("id", "sender", "request_id", "correlation_id", "reply_to", "schema", "trace")
LARGE = "x" * 70_000


def test_a_refused_version_names_those_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "VERSIONS", (7, 6))

    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus() as bus:
            with pytest.raises(tl.Refused, match=r"speaks version 7, 6 .* client speaks version 1") as refused:
                await bus.publish("t", 1)
            assert refused.value.code == "version"
        await place.stop()

    simulate(act)


def test_codes_reach_the_caller(tmp_path: Path) -> None:
    rules = Access.load([{"who": "*", "may": ["publish", "subscribe"], "on": ["open.>"]}])

    async def act(simulation: Any) -> None:
        mine = world(simulation)
        broker = JournalBroker(Journal(tmp_path, world=mine, threaded=False), owns_journal=True)
        async with Hub(broker, access=rules) as hub:
            address = await hub.listen("pair:codes")
            async with tl.connect(address, world=mine) as bus:
                for refused in (
                    bus.publish("secret", 1),
                    bus.subscribe("secret").open(),
                    bus.last("secret"),
                ):
                    with pytest.raises(tl.NotAllowed) as found:
                        await refused
                    assert found.value.code == "forbidden"
                async with bus.subscribe("open.a", name="billing", durable=True):
                    with pytest.raises(tl.DuplicateName) as taken:
                        await bus.forget_durable("billing")
                    assert taken.value.code == "refused"

    simulate(act)


@pytest.mark.parametrize("code", ["inbox_full", "withdrawn", "not_stored", "forbidden", "schema", "anything"])
def test_every_refusal_has_its_code(code: str) -> None:
    assert refusal(code, "why", {}).code == code
    assert tl.Refused("of this process").code == ""


@pytest.mark.parametrize("through_a_hub", [False, True])
def test_ids_and_every_other_text_count_as_headers(through_a_hub: bool) -> None:
    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        bus = place.bus() if through_a_hub else tl.connect(world=place.world)
        async with bus, bus.subscribe("t") as stream:
            for name in FIELDS:
                fields: Any = {name: LARGE}
                with pytest.raises(tl.HeadersTooLarge):
                    await bus.publish("t", 1, **fields)
            with pytest.raises(tl.HeadersTooLarge):
                await bus.request("t", 1, request_id=LARGE)
            with pytest.raises(tl.HeadersTooLarge):
                await bus.publish("t", 1, id="x" * 33_000, correlation_id="x" * 33_000)
            await bus.publish("t", "the first")
            message = await stream.recv()
            assert message is not None
            assert message.decode() == "the first"
        with pytest.raises(tl.InvalidSettings, match="70,000 bytes"):
            tl.Bus(bus.broker, name=LARGE)
        await place.stop()

    simulate(act)
