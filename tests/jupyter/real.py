"""Real kernels: ipykernel, and Deno, which speaks TypeScript and whose side of the protocol is written in Rust."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0
DENO = Path(sys.executable).with_name("deno")


def run(main: Coroutine[Any, Any, T]) -> T:
    async def soon() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await main

    return asyncio.run(soon())


def install_deno(data: Path) -> None:
    """A kernelspec for it in a data directory of Jupyter."""
    place = data / "kernels" / "deno"
    place.mkdir(parents=True)
    argv = [str(DENO), "jupyter", "--kernel", "--conn", "{connection_file}"]
    (place / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Deno", "language": "typescript"}))
