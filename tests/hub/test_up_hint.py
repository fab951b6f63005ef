"""The address that `trunkline up` prints can be connected to."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import trunkline as tl
from trunkline.cli.up import reachable
from trunkline.keys.store import KeyStore

NAME = socket.gethostname()


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("tcp://0.0.0.0:7420", f"tcp://{NAME}:7420"),
        ("tcp://[::]:7420", f"tcp://{NAME}:7420"),
        ("zmq+tcp://0.0.0.0:7421", f"zmq+tcp://{NAME}:7421"),
        ("tcp://127.0.0.1:7420", "tcp://127.0.0.1:7420"),
        ("tcp://hub.example.net:7420", "tcp://hub.example.net:7420"),
        ("unix:///run/x.sock", "unix:///run/x.sock"),
        ("zmq+ipc:///run/x.ipc", "zmq+ipc:///run/x.ipc"),
    ],
)
def test_every_address_is_none(address: str, hint: str) -> None:
    assert reachable(address, None) == hint


@pytest.mark.parametrize(
    ("hosts", "address", "hint"),
    [
        ((), "tcp://0.0.0.0:7420", "tcp://127.0.0.1:7420"),
        ((), "tcp://[::]:7420", "tcp://[::1]:7420"),
        (("hub.example.net", "10.0.0.7"), "tcp://0.0.0.0:7420", "tcp://hub.example.net:7420"),
    ],
)
def test_with_keys_it_is_a_name_that_the_certificate_has(
    tmp_path: Path, hosts: tuple[str, ...], address: str, hint: str
) -> None:
    keys = KeyStore(tmp_path / "keys")
    keys.make_hub(hosts)
    assert reachable(address, keys) == hint


def test_it_is_said_and_somebody_is_there(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    keys.make_hub()
    keys.make_client("alice")
    program = "import sys; from trunkline.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "up", "--listen", "tcp://0.0.0.0:0", "--keys", str(keys.path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline().startswith("listening at tcp://0.0.0.0:")
            told = re.search(r'tl\.connect\("(tcp://127\.0\.0\.1:\d+)"\)', up.stdout.readline())
            assert told is not None

            async def ping(address: str) -> None:
                connection = tl.ConnectionSettings(keys=str(keys.bundle("alice")))
                async with tl.connect(address, connection=connection) as bus:
                    assert isinstance(bus.broker, tl.HubBroker)
                    assert await bus.broker.ping() > 0

            asyncio.run(ping(told[1]))
        finally:
            up.terminate()
            assert up.wait(20) == 0
