"""Processes that receive messages from an engine, hold them, and are killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def holding(
    url: str, *, name: str = "", group: str = "", lease_s: float = 1.0, acknowledges: int = 0
) -> Iterator[IO[str]]:
    """A process that holds its messages on `t`, and prints them. It is killed at the end of the block."""
    join = "&" if "?" in url else "?"
    place = f"{url}{join}lease_s={lease_s}&connect_s=30"
    command = [sys.executable, "-m", "tests.brokers.engine_member", place, "t", name, group, str(acknowledges)]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        yield holder.stdout
    finally:
        holder.kill()
        holder.communicate()


async def said(output: IO[str], count: int) -> list[str]:
    return [(await asyncio.to_thread(output.readline)).strip() for _ in range(count)]
