"""Channels in shared memory and the hub: they are registered and found there, and also work without it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import numpy as np
import pytest

import trunkline as tl
from tests.hub.hubs import directory_of
from tests.memory.children import run
from trunkline import memory
from trunkline.errors import HubRefused, UsageError
from trunkline.hub.hub import Hub
from trunkline.memory import ChannelSettings
from trunkline.memory.errors import LayoutMismatch, NoProducer
from trunkline.memory.layout import layout_of
from trunkline.transports.descriptors import Descriptors
from trunkline.wire.control import Config

RECORD = np.dtype([("t", "f8"), ("image", "u2", (4, 4))])
OTHER = np.dtype([("t", "f4"), ("image", "u2", (4, 4))])
QUICK = tl.ConnectionSettings(connect_s=5.0, backoff_s=0.01)


def test_both_ends_are_registered_at_the_hub_and_leave_it(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with Hub() as hub, tl.connect(url, connection=QUICK) as bus:
            await hub.listen(url)
            directory = directory_of(bus)
            settings = ChannelSettings(version="1.0.0")
            async with memory.producer("camera", schema=RECORD, capacity=8, settings=settings, bus=bus) as camera:
                found = await directory.discover_producer("camera", schema=layout_of(RECORD).json_schema)
                assert found is not None
                assert (found.shm_name, found.schema_version, found.status) == ("/trunkline_camera", "1.0.0", "active")
                assert found.producers[0].config == Config(capacity=8)
                async with memory.consumer("camera", schema=RECORD, name="plotter", bus=bus) as frames:
                    consumers = await directory.discover_consumers("camera")
                    assert consumers is not None
                    assert [(each.name, each.metadata["wants"]) for each in consumers] == [("plotter", "all")]
                    await camera.send(np.ones((), RECORD))
                    assert (await frames.recv(5)).seq == 1
                with pytest.raises(LayoutMismatch, match="field 't'"):
                    async with memory.consumer("camera", schema=OTHER, bus=bus):
                        pass
                assert await directory.discover_consumers("camera") == []
            assert await directory.discover_producer("camera") is None
            assert Descriptors().find("camera") is None

    asyncio.run(main())


def test_a_consumer_goes_where_the_hub_says_that_the_channel_is(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with (
            Hub() as hub,
            tl.connect(url, connection=QUICK) as bus,
            memory.producer("camera", schema=RECORD) as camera,
        ):
            await hub.listen(url)
            schema = layout_of(RECORD).json_schema
            await directory_of(bus).register_producer("mirror", schema=schema, shm_name="/trunkline_camera")
            async with memory.consumer("mirror", bus=bus) as frames:
                await camera.send(np.ones((), RECORD))
                assert (await frames.recv(5)).data["t"] == 1
            # One with another schema at the hub is refused, whatever is found in the memory.
            await directory_of(bus).register_producer("other", shm_name="/trunkline_camera")
            with pytest.raises(HubRefused, match="schemas differ"):
                async with memory.consumer("other", bus=bus):
                    pass
            await directory_of(bus).register_producer("elsewhere", schema=schema, shm_name="/trunkline_elsewhere")
            with pytest.raises(NoProducer):
                async with memory.consumer("elsewhere", bus=bus):
                    pass

    asyncio.run(main())


def test_the_hub_refuses_a_producer_whose_schema_the_channel_does_not_have(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with Hub() as hub, tl.connect(url, connection=QUICK) as bus:
            await hub.listen(url)
            await directory_of(bus).create_channel("camera", schema=layout_of(RECORD).json_schema)
            with pytest.raises(HubRefused) as error:
                async with memory.producer("camera", schema=OTHER, bus=bus):
                    pass
            assert error.value.code == "schema_mismatch"
            async with memory.producer("camera", schema=RECORD, bus=bus):
                pass

    asyncio.run(main())


def test_the_next_producer_may_have_another_schema_and_is_its_next_version(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with Hub() as hub, tl.connect(url, connection=QUICK) as bus:
            await hub.listen(url)
            for schema in (RECORD, OTHER):
                async with memory.producer("camera", schema=schema, bus=bus):
                    found = await directory_of(bus).discover_producer("camera")
                    assert found is not None
                    assert found.schema_hash == layout_of(schema).hash
            versions = await directory_of(bus).schemas("camera")
            assert versions is not None
            assert [each.version for each in versions] == ["1.0.0", "2.0.0"]

    asyncio.run(main())


def test_a_producer_works_on_while_the_hub_is_gone_and_is_registered_again(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        # There is no hub yet: creating still succeeds.
        async with (
            tl.connect(url, connection=tl.ConnectionSettings(connect_s=0.2, backoff_s=0.01)) as bus,
            memory.producer("camera", schema=RECORD, bus=bus) as camera,
            memory.consumer("camera", bus=bus, name="plotter") as frames,
        ):
            await camera.send(np.ones((), RECORD))
            assert (await frames.recv(5)).seq == 1
            for run in range(2):
                async with Hub() as hub:
                    await hub.listen(url)
                    await registered(bus)
                    await camera.send(np.ones((), RECORD))
                    assert (await frames.recv(5)).seq == 2 + 2 * run
                await camera.send(np.ones((), RECORD))
                assert (await frames.recv(5)).seq == 3 + 2 * run

    async def registered(bus: tl.Bus) -> None:
        async with asyncio.timeout(10):
            while True:
                found = await directory_of(bus).discover_producer("camera")
                if found is not None and found.consumers:
                    assert found.shm_name == "/trunkline_camera"
                    return
                await asyncio.sleep(0.01)

    logging.getLogger("trunkline.connection").setLevel(logging.ERROR)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("trunkline.connection").setLevel(logging.NOTSET)


def test_a_blocking_bus_registers_too(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"
    with (
        tl.connect_blocking(url, embed=True) as bus,
        memory.producer("camera", schema=RECORD, bus=bus) as camera,
        memory.consumer("camera", name="plotter", bus=bus) as frames,
    ):
        camera.send(np.ones((), RECORD))
        assert frames.recv(1).seq == 1
        found = bus.run(lambda inner: inner.broker.require_directory())
        peers = bus.thread.call(found.describe("camera"))
        assert peers is not None
        assert [each.name for each in peers.consumers] == ["plotter"]


def test_a_bus_of_the_wrong_kind_is_refused(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        bus = tl.connect(url, connection=QUICK)
        with pytest.raises(UsageError, match="async with"), memory.producer("camera", schema=RECORD, bus=bus):
            pass
        await bus.aclose()

    asyncio.run(main())
    with tl.connect_blocking(url, embed=True) as bus:

        async def other() -> None:
            with pytest.raises(UsageError, match="blocking"):
                async with memory.producer("camera", schema=RECORD, bus=bus):
                    pass

        asyncio.run(other())


def test_a_bus_without_a_directory_registers_nothing() -> None:
    async def main() -> None:
        async with tl.connect("memory:") as bus, memory.producer("camera", schema=RECORD, bus=bus) as camera:
            await camera.send(np.ones((), RECORD))

    asyncio.run(main())


def test_a_descriptor_counts_only_while_its_producer_lives() -> None:
    run(
        """
        camera = memory.producer("camera", schema=bytes).__enter__()
        from trunkline.transports.descriptors import Descriptors
        found = Descriptors().find("camera")
        assert (found.shm_name, found.metadata["plane"], found.pid) == ("/trunkline_camera", "memory", os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    """,
        expect=-9,
    )
    assert Descriptors().find("camera") is None
    # The next node takes away what the engine can.
    with memory.producer("camera", schema=bytes):
        assert Descriptors().find("camera") is not None


def test_all_ends_of_a_process_share_one_connection(runtime: Path) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with (
            Hub() as hub,
            tl.connect(url, connection=QUICK, name="one") as one,
            tl.connect(url, connection=QUICK, name="other") as other,
        ):
            await hub.listen(url)
            async with (
                memory.producer("left", schema=RECORD, bus=one),
                memory.producer("right", schema=RECORD, bus=other),
                memory.consumer("left", bus=other, name="eye"),
                memory.consumer("right", bus=one, name="eye"),
            ):
                found = await directory_of(one).channels()
                assert found is not None
                assert [each.channel for each in found] == ["left", "right"]
                assert hub.stats()["clients"] == 1

    asyncio.run(main())


def test_without_a_hub_everything_is_created_found_and_compared_with_one_warning(
    runtime: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soon = tl.ConnectionSettings(connect_s=0.2, backoff_s=0.01)
    with tl.connect_blocking(f"unix://{runtime}/no-hub.sock", connection=soon) as bus:
        with memory.producer("camera", schema=RECORD, bus=bus) as camera:
            with memory.consumer("camera", schema=RECORD, bus=bus) as frames:
                camera.send(np.ones((), RECORD))
                assert frames.recv(5).seq == 1
            with (
                pytest.raises(LayoutMismatch, match="field 't'"),
                memory.consumer("camera", schema=OTHER, bus=bus),
            ):
                pass
        with pytest.raises(NoProducer), memory.consumer("camera", bus=bus):
            pass
    warnings = [each for each in caplog.messages if "the directory of the hub" in each]
    assert len(warnings) == 1
