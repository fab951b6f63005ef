"""The recorder keeps topics of a fleet in a journal exactly once, also when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from trunkline.cli.record import SOURCE
from trunkline.journal import Reader

DEADLINE_S = 60.0
COUNT = 500
HALF = COUNT // 2


def recorder(url: str, journal: Path) -> subprocess.Popen[bytes]:
    code = "import sys; from trunkline.cli import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        code,
        "record",
        f"{url}?lease_s=1&synced=true",
        "orders.>",
        "--journal",
        str(journal),
        "--json",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def recorded(journal: Path) -> list[int]:
    try:
        with Reader(journal) as reader:
            return [message.decode() for message in reader.messages("orders.>")]
    except tl.JournalUnusable:
        # The recorder is still making it.
        return []


SERVERS: dict[str, Callable[[Path], NatsServer | RedisServer]] = {
    "nats": NatsServer,
    "redis": lambda folder: RedisServer("redis", folder),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_killed_recorder_goes_on_and_records_each_message_once(kind: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    async def until_recorded(count: int) -> None:
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while not journal.exists() or len(await asyncio.to_thread(recorded, journal)) < count:
            assert asyncio.get_running_loop().time() < deadline, f"fewer than {count} were recorded"
            await asyncio.sleep(0.1)

    async def test(server: NatsServer | RedisServer) -> None:
        how = tl.EngineSettings(durable=("orders.>",), synced=True, connect_s=DEADLINE_S)
        async with tl.connect(server.url, connection=how) as bus:
            await bus.publish("orders.placed", 0)

            async def publish(numbers: range) -> None:
                for number in numbers:
                    await bus.publish(f"orders.{'placed' if number % 3 else 'sent'}", number)

            first = recorder(server.url, journal)
            try:
                await until_recorded(1)
                publishing = asyncio.create_task(publish(range(1, HALF)))
                await until_recorded(100)
            finally:
                os.kill(first.pid, signal.SIGKILL)
                first.communicate()
            second = recorder(server.url, journal)
            try:
                await publishing
                # Only now: so the second one records something, whatever the first one had recorded.
                await publish(range(HALF, COUNT))
                await until_recorded(COUNT)
            finally:
                second.terminate()
                said, _ = second.communicate(timeout=DEADLINE_S)
            assert second.returncode == 0
            # One that it had not acknowledged when it was killed may have come again.
            counts = json.loads(said)
            assert 0 < counts["recorded"] < COUNT
            assert counts["repeated"] >= 0
        numbers = recorded(journal)
        assert sorted(numbers) == list(range(COUNT))
        with Reader(journal) as reader:
            sources = [(message.headers or {})[SOURCE] for message in reader.messages("orders.>")]
        assert len(set(sources)) == COUNT

    with SERVERS[kind](tmp_path / kind) as server:
        asyncio.run(test(server))
