"""`trunkline bridge`: two hubs that are bridged to one NATS server are one bus, also on two hosts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.bridged import TIMEOUT_S, behave_as_one_bus
from tests.brokers.engine_servers import NatsServer
from tests.hub.up import Up

PATTERNS = ("orders.>", "double", "fails")
SERVER, CLIENT = "10.231.7.1", "10.231.7.2"
PORT = 4222


class Bridging:
    """`trunkline bridge`, in its own process."""

    def __init__(self, url: str, hub: str, inside: Sequence[str]) -> None:
        program = "import sys; from trunkline.cli import main; sys.exit(main())"
        command = [*inside, sys.executable, "-c", program, "bridge", url, *PATTERNS, "--hub", hub]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def wait(self) -> None:
        """Return when it prints that it mirrors."""
        assert self._process.stderr is not None
        lines: list[str] = []
        while not lines or "mirroring orders.>" not in lines[-1]:
            lines.append(self._process.stderr.readline())
            assert lines[-1], f"it ended: {lines}"

    def end(self) -> int:
        self._process.terminate()
        self._process.communicate(timeout=TIMEOUT_S)
        return self._process.returncode

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Two network namespaces joined by a virtual cable: the commands that run something inside."""
    names = [f"tl-{uuid.uuid4().hex[:8]}-{side}" for side in ("a", "b")]
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, (SERVER, CLIENT), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield ["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]]
    finally:
        for name in made:
            ip("netns", "delete", name)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_not() -> str:
    """Why network namespaces are not available here; empty if they are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with two_hosts() as commands:
            for inside in commands:
                subprocess.run([*inside, "true"], check=True, capture_output=True)
        return ""
    except FileNotFoundError:
        return "there is no command `ip`"
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"


def bridged(folder: Path, server: NatsServer, insides: Sequence[Sequence[str]]) -> None:
    with ExitStack() as stack:
        hubs: list[Up] = []
        bridges: list[Bridging] = []
        for number, inside in enumerate(insides):
            place = folder / f"hub{number}"
            place.mkdir()
            hub = Up(place, inside=inside)
            hub.start()
            stack.callback(hub.kill)
            hubs.append(hub)
            bridge = Bridging(f"{server.url}?synced=true&connect_s={TIMEOUT_S}", hub.address, inside)
            stack.callback(bridge.kill)
            bridges.append(bridge)
        for bridge in bridges:
            bridge.wait()

        async def test() -> None:
            async with (
                asyncio.timeout(3 * TIMEOUT_S),
                tl.connect(hubs[0].address, name="client0") as one,
                tl.connect(hubs[1].address, name="client1") as other,
            ):
                await behave_as_one_bus(one, other)

        asyncio.run(test())
        assert [bridge.end() for bridge in bridges] == [0, 0]


@pytest.mark.slow
def test_two_hubs_with_the_command(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        bridged(tmp_path, server, [(), ()])


@pytest.mark.slow
def test_two_hubs_on_two_hosts(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with (
        two_hosts() as (one, other),
        NatsServer(tmp_path / "nats", host=SERVER, port=PORT, inside=one) as server,
    ):
        bridged(tmp_path, server, [one, other])
