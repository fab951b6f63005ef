"""Metrics of producers and consumers: in the stats of their bus, at the hub, on the command line and for Prometheus."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

import trunkline as tl
from tests.hub.hubs import directory_of
from tests.hub.up import up
from tests.memory.children import child, line
from trunkline import memory
from trunkline.brokers.hub.directory import HubDirectory
from trunkline.hub.hub import Hub
from trunkline.memory import registration
from trunkline.memory.metrics import MAX_REPORTED, ChannelMetrics, ConsumerMetrics, report_of_channel
from trunkline.memory.reap import reap
from trunkline.wire.control import ChannelInfo
from trunkline.wire.reported_metrics import read_metrics

FRAME = np.dtype(("u1", (8,)))
EMPTY = np.zeros(8, "u1")
QUICK = tl.ConnectionSettings(connect_s=5.0, backoff_s=0.01)
PROGRAM = "import sys; from trunkline.cli import main; sys.exit(main())"


@pytest.fixture
def reported_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "FIRST_S", 0.05)
    monkeypatch.setattr(registration, "EVERY_S", 0.05)


def test_the_stats_of_a_bus_have_the_ends_that_were_opened_with_it() -> None:
    with tl.connect_blocking() as bus:
        assert bus.stats().memory == memory.MemoryMetrics()
        with memory.producer("camera", schema=FRAME, bus=bus) as camera:
            with memory.consumer("camera", bus=bus, name="plotter") as frames, memory.consumer("camera"):
                camera.send(EMPTY)
                frames.recv(1)
                found = bus.stats().memory
                (producer,), (consumer,) = found.producers, found.consumers
                assert (producer.channel, producer.writes, len(producer.consumers)) == ("camera", 1, 2)
                assert (consumer.channel, consumer.name, consumer.reads) == ("camera", "plotter", 1)
            assert bus.stats().memory.consumers == []
        assert bus.stats().memory == memory.MemoryMetrics()


def test_an_end_may_outlive_a_bus_without_a_directory() -> None:
    bus = tl.connect_blocking()
    with memory.producer("camera", schema=FRAME, bus=bus) as camera:
        bus.close()
        camera.send(EMPTY)
        assert camera.metrics().writes == 1
    assert bus.memory_ends.metrics() == memory.MemoryMetrics()


def test_the_stats_of_a_bus_in_an_event_loop() -> None:
    async def main() -> None:
        async with tl.connect() as bus:
            async with memory.producer("camera", schema=FRAME, bus=bus) as camera:
                await camera.send(EMPTY)
                (found,) = bus.stats().memory.producers
                assert (found.channel, found.writes) == ("camera", 1)
            assert bus.stats().memory == memory.MemoryMetrics()

    asyncio.run(main())


async def described(directory: HubDirectory, wanted: Callable[[ChannelInfo], bool]) -> ChannelInfo:
    async with asyncio.timeout(20):
        while True:
            found = await directory.describe("camera")
            assert found is not None
            if wanted(found):
                return found
            await asyncio.sleep(0.02)


def test_a_hub_gets_the_metrics(runtime: Path, reported_often: None) -> None:
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with Hub() as hub, tl.connect(url, connection=QUICK) as bus:
            await hub.listen(url)
            directory = directory_of(bus)
            assert hub.stats()["memory"]["producers"] == 0
            async with (
                memory.producer("camera", schema=FRAME, capacity=2, bus=bus) as camera,
                memory.consumer("camera", bus=bus, name="slow") as frames,
            ):
                await camera.send(EMPTY)
                await frames.recv(1)
                for _ in range(5):
                    await camera.send(EMPTY)
                frame = await frames.recv(1)
                await frames.recv(1)
                # Reported to the producer when the consumer has waited.
                with pytest.raises(tl.StreamEmpty):
                    await frames.recv(0.5)
                found = await described(directory, lambda info: info.memory.get("overruns") == 3)
                numbers = read_metrics({"metrics": found.memory})
                assert numbers is not None
                assert (numbers.frames, numbers.consumers, numbers.held) == (6, 1, 1)
                assert [(each.name, each.overruns) for each in numbers.slowest] == [("slow", 3)]
                assert abs(time.time_ns() - numbers.last_ns) < 60e9
                listed = await directory.channels()
                assert listed is not None
                assert listed[0].memory["frames"] == 6
                own = await described(directory, lambda info: "metrics" in info.consumers[0].metadata)
                assert own.consumers[0].metadata["metrics"]["overruns"] == 3
                stats = hub.stats()["memory"]
                assert (stats["producers"], stats["frames"], stats["overruns"]) == (1, 6, 3)
                del frame
                await described(directory, lambda info: info.memory["per_s"] == 0.0)
                await camera.send(EMPTY)
                await described(directory, lambda info: info.memory["per_s"] > 0.0)
            assert hub.stats()["memory"]["producers"] == 0

    asyncio.run(main())


def test_numbers_that_cannot_be_are_no_numbers(runtime: Path) -> None:
    assert read_metrics({}) is None
    assert read_metrics({"metrics": "many"}) is None
    assert read_metrics({"metrics": {"at_ns": 1, "frames": "x", "per_s": 1.0}}) is None
    url = f"unix://{runtime}/hub.sock"

    async def main() -> None:
        async with Hub() as hub, tl.connect(url, connection=QUICK) as bus:
            await hub.listen(url)
            await directory_of(bus).register_producer("camera", metadata={"metrics": {"frames": [1], "per_s": {}}})
            assert hub.stats()["memory"]["producers"] == 0
            found = await directory_of(bus).describe("camera")
            assert found is not None
            assert found.memory == {}

    asyncio.run(main())


def test_a_hub_gets_reports_on_the_slowest_consumers() -> None:
    many = {"reads": 2**40, "overruns": 2**40, "held": 2, "pid": 2**31}
    consumers = [
        ConsumerMetrics(channel="c", name="n" * 63, wants_every=True, waiting=number, oldest_held=None, **many)
        for number in range(32)
    ]
    nothing = {"written_bytes": 0, "given_up": 0, "cut_off": 0, "queue": 2, "slots": 9}
    found = ChannelMetrics(channel="c", writes=1, occupancy=1.0, last_frame_s=None, consumers=consumers, **nothing)
    numbers = report_of_channel(found, 1, 0.0)
    assert [each.waiting for each in numbers.slowest] == list(range(31, 31 - MAX_REPORTED, -1))
    assert (numbers.consumers, numbers.overruns) == (32, 32 * 2**40)
    assert len(msgspec.json.encode(numbers)) < 2000


CAMERA = """
from trunkline.memory import registration
registration.FIRST_S = registration.EVERY_S = 0.1
with tl.connect_blocking({address!r}, name="rig") as bus, memory.producer("camera", schema=bytes, bus=bus) as camera:
    say("there")
    while True:
        camera.send(b"frame")
        time.sleep(0.005)
"""


def shown(address: str, *words: str) -> str:
    command = [sys.executable, "-c", PROGRAM, *words, "--hub", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def describe_until(address: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    ends = time.monotonic() + 30
    while True:
        found: dict[str, Any] = json.loads(shown(address, "channels", "describe", "camera", "--json"))
        if wanted(found):
            return found
        assert time.monotonic() < ends


def test_a_terminal_shows_a_live_camera_and_a_dead_one(tmp_path: Path) -> None:
    with up(tmp_path) as hub, child(CAMERA.format(address=hub.address)) as camera:
        assert line(camera) == "there"
        with (
            memory.consumer("camera", name="plotter") as frames,
            tl.connect_blocking(hub.address) as bus,
            memory.consumer("camera", name="recorder", bus=bus),
        ):
            frames.recv(5)
            found = describe_until(hub.address, lambda info: info.get("memory", {}).get("consumers") == 2)
            assert {each[0] for each in found["memory"]["slowest"]} == {"plotter", "recorder"}
            text = shown(hub.address, "channels", "describe", "camera")
            assert "frames/s" in text
            assert "plotter" in text
            assert "frames/s" in shown(hub.address, "channels", "list")
            status = json.loads(shown(hub.address, "status", "--json"))
            assert status["memory"]["producers"] == 1
            assert status["memory"]["frames_per_s"] > 0
            camera.kill()
            camera.wait()
            found = describe_until(hub.address, lambda info: not info.get("producers"))
            assert "memory" not in found
            assert "it has no producer" in shown(hub.address, "channels", "describe", "camera")
            assert "frames/s" not in shown(hub.address, "channels", "list")
            assert json.loads(shown(hub.address, "status", "--json"))["memory"]["producers"] == 0
    assert reap().kept == []


def test_prometheus_collects_what_the_ends_count() -> None:
    registry = CollectorRegistry()
    with tl.connect_blocking() as bus:
        memory.export_metrics(bus, registry)
        with (
            memory.producer("camera", schema=FRAME, capacity=2, bus=bus) as camera,
            memory.consumer("camera", bus=bus, name="plotter") as frames,
        ):
            camera.send(EMPTY)
            frames.recv(1)
            for _ in range(5):
                camera.send(EMPTY)
            frame = frames.recv(1)
            text = generate_latest(registry).decode()
            del frame
    assert 'trunkline_frames_writes_total{channel="camera"} 6.0' in text
    assert 'trunkline_frames_written_bytes_total{channel="camera"} 48.0' in text
    lines = {each.partition("{")[0]: each.rpartition(" ")[2] for each in text.splitlines() if "plotter" in each}
    assert lines == {
        "trunkline_frames_reads_total": "2.0",
        "trunkline_frames_overruns_total": "3.0",
        "trunkline_frames_held": "1.0",
    }
