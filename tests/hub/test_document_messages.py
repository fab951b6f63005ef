"""The messages of document 002, byte for byte: sent by a foreign client, and by ours."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hub.attacks import Attacker
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.hubs import Place, directory_of
from tests.hub.lines import Line, listen
from trunkline.errors import InvalidSettings
from trunkline.testing import Simulation, world
from trunkline.wire import control, frames
from trunkline.wire.control import Config, ProducerRegister

REGISTER: dict[str, Any] = {
    "type": "PRODUCER_REGISTER",
    "channel": "sensor_data",
    "schema_hash": "abc123",
    "schema_version": "1.0.0",
    "config": {"policy": "RingBuffer", "capacity": 10, "page_size": 4096},
}
CONSUME = {
    "type": "CONSUMER_REGISTER",
    "channel": "sensor_data",
    "consumer_id": "consumer_001",
    "expected_schema_hash": "abc123",
}
DISCOVER = {"type": "DISCOVERY_REQUEST", "channel": "sensor_data"}
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"policy": "Latest"}, "a policy is Single, DoubleBuffer, RingBuffer, not 'Latest'"),
    ({"capacity": 0}, "a capacity is from 1 to 1,048,576, not 0"),
    ({"capacity": 1 << 21}, "a capacity is from 1 to 1,048,576, not 2,097,152"),
    ({"page_size": 0}, "a page size is a power of two up to 1,073,741,824 bytes, not 0"),
    ({"page_size": 5000}, "a page size is a power of two up to 1,073,741,824 bytes, not 5,000"),
    ({"page_size": 1 << 31}, "a page size is a power of two up to 1,073,741,824 bytes, not 2,147,483,648"),
]


async def told(line: Line, said: dict[str, Any]) -> dict[str, Any]:
    """The answer to something without an `id`."""
    line.send(frames.control(json.dumps(said).encode()))
    while (answer := await line.hear())["type"] == "HEARTBEAT":
        pass
    return answer


def test_a_hub_takes_them(tmp_path: Path) -> None:
    async def speak(hub: RunningHub) -> None:
        async with asyncio.timeout(60):
            line = await Line.open(hub)
            line.send(Attacker(1).hello())
            await line.hear_answer(1)
            assert await told(line, REGISTER | {"shm_name": "/pylabhub_sensor_data"}) == {"type": "DONE", "re": 0}
            assert await told(line, CONSUME) == {"type": "DONE", "re": 0}
            found = await told(line, DISCOVER)
            assert (
                found.items()
                >= {
                    "type": "DISCOVERY_RESPONSE",
                    "channel": "sensor_data",
                    "shm_name": "/pylabhub_sensor_data",
                    "schema_hash": "abc123",
                    "schema_version": "1.0.0",
                    "status": "active",
                }.items()
            )
            assert found["producers"][0]["config"] == REGISTER["config"]
            for wrong, why in IMPOSSIBLE:
                refused = await told(line, REGISTER | {"channel": "other", "config": REGISTER["config"] | wrong})
                assert (refused["type"], refused["code"], refused["text"]) == ("ERROR", "malformed", why)
            assert (await told(line, DISCOVER | {"channel": "other"}))["status"] == "unknown"
            await line.close()

    with running_hub(tmp_path, listen=listen(tmp_path)) as hub:
        asyncio.run(speak(hub))
        hub.end()


def test_all_fields_are_sent_also_those_with_their_default() -> None:
    said = json.loads(
        control.write(ProducerRegister(channel="sensor_data", schema_hash="abc123", schema_version="1.0.0"))
    )
    assert said == REGISTER | {"id": 0, "shm_name": "", "metadata": {}}


@pytest.mark.parametrize(("wrong", "why"), IMPOSSIBLE)
async def test_a_layout_that_cannot_be_is_refused_without_a_hub(
    simulation: Simulation, wrong: dict[str, Any], why: str
) -> None:
    place = Place(world(simulation))
    async with place.bus("producer") as bus:
        directory = directory_of(bus)
        with pytest.raises(InvalidSettings, match=why.replace("(", "\\(")):
            await directory.register_producer("sensor_data", config=Config(**wrong))
        assert await directory.find("sensor_data") is None
