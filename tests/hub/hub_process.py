"""A hub in a process of its own, for tests: `with running_hub(tmp_path) as hub: ... hub.address ...`.

It says its addresses when it is ready, ends on SIGTERM, and ends by itself when the process that started it is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunkline import MemoryBroker
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.hub.serve import run
from trunkline.hub.settings import HubSettings, Limits
from trunkline.journal import Journal, JournalBroker

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0


@dataclass
class RunningHub:
    addresses: list[str]
    process: subprocess.Popen[str]
    log: Path

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def logged(self) -> str:
        """Its log so far, from the level of warnings."""
        return self.log.read_text()

    def rss_bytes(self) -> int:
        (line,) = (
            line
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            if line.startswith("VmRSS:")
        )
        return int(line.split()[1]) * 1024

    def kill(self) -> None:
        """Kill it, without a goodbye."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def end(self) -> None:
        """End it with SIGTERM. Raises if it does not end without errors."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        assert code == 0, f"the hub ended with {code}:\n{self.logged()}"


@contextmanager
def running_hub(
    folder: Path,
    *,
    listen: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    rules: tuple[dict[str, Any], ...] = (),
    journal: Path | None = None,
) -> Iterator[RunningHub]:
    """`settings` are those of HubSettings, as plain values; by default it listens on a unix socket in the folder."""
    plan = {
        "listen": listen or (f"unix://{folder / 'hub.sock'}",),
        "settings": settings or {},
        "rules": rules,
        "journal": None if journal is None else str(journal),
    }
    log = folder / "hub.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hub.hub_process", json.dumps(plan)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield RunningHub(_addresses(process, log), process, log)
    finally:
        _stop(process)


def _addresses(process: subprocess.Popen[str], log: Path) -> list[str]:
    assert process.stdout is not None
    late = threading.Timer(DEADLINE_S, process.kill)
    late.start()
    try:
        line = process.stdout.readline()
    finally:
        late.cancel()
        late.join()
    assert line, f"the hub did not start:\n{log.read_text()}"
    addresses: list[str] = json.loads(line)
    return addresses


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
    process.stdout.close()


# In the other process


async def _serve(plan: dict[str, Any]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    # Nothing is ever sent here: it is closed when the parent process ends.
    loop.add_reader(sys.stdin.fileno(), ended.set)
    broker: MemoryBroker = MemoryBroker()
    if plan["journal"] is not None:
        broker = JournalBroker(Journal(plan["journal"]), owns_journal=True)
    values = dict(plan["settings"])
    settings = HubSettings(**{**values, "limits": Limits(**values.get("limits", {}))})
    async with Hub(broker, settings=settings, access=Access.load(plan["rules"])) as hub:
        addresses = [await hub.listen(url) for url in plan["listen"]]
        print(json.dumps(addresses), flush=True)
        await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    logging.basicConfig(level=os.environ.get("HUB_LOG", "WARNING"), format="%(levelname)s %(name)s %(message)s")
    run(_serve(json.loads(sys.argv[1])))
