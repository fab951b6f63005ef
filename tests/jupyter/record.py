"""Records the frames of a real kernel: `python -m tests.jupyter.record` writes recorded.json.

The tests play it back with other ids, in virtual time, in any order they like.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from trunkline.jupyter import KernelMessage, start_kernel

PLACE = Path(__file__).with_name("recorded.json")
CODE = "print('hello')\nprint('oh', file=__import__('sys').stderr)\ndisplay({'a': 1})\n1 + 1"


async def record() -> dict[str, Any]:
    async with start_kernel() as kernel:
        frames: list[tuple[str, list[bytes]]] = []
        wire = kernel.link.wire
        unpack = wire.unpack

        def keep(socket: str, parts: list[bytes]) -> KernelMessage:
            frames.append((socket, list(parts)))
            return unpack(socket, parts)

        wire.unpack = keep  # type: ignore[method-assign,assignment]
        # From here on everything that comes is kept.
        await kernel.link.open(kernel.client)
        info = await kernel.ask("kernel_info_request")
        execution = await kernel.execute(CODE)
        result = await execution.result()
        assert result.ok
        assert info["protocol_version"]
        await asyncio.sleep(0.3)
        return {
            "code": CODE,
            "execute_request": execution.id,
            "frames": [[socket, [base64.b64encode(part).decode() for part in parts]] for socket, parts in frames],
        }


if __name__ == "__main__":
    PLACE.write_text(json.dumps(asyncio.run(record()), indent=1) + "\n")
