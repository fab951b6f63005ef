"""A program whose own event loop was blocked does not report that the hub was silent."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hub_process import running_hub
from tests.hub.hubs import until

BEAT_S = 1.0


@pytest.mark.slow
def test_a_blocked_event_loop_is_named_as_the_cause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> str:
        return "\n".join(record.getMessage() for record in caplog.records if record.name == "trunkline.connection")

    async def main(address: str) -> None:
        async with tl.connect(address) as bus:
            handled: list[str] = []

            @bus.on("work")
            async def work(text: str) -> None:
                if text == "long":
                    # Longer than the hub, or this client, bears silence.
                    time.sleep(4.5 * BEAT_S)  # noqa: ASYNC251
                handled.append(text)

            await bus.publish("work", "long")
            await until(lambda: "was blocked for" in said(), "the cause is named")
            assert "asyncio.to_thread" in said()
            assert "the hub was silent" not in said()
            # And it continues.
            async with asyncio.timeout(60):
                while "short" not in handled:
                    await bus.publish("work", "short")
                    await asyncio.sleep(0.1)

    with running_hub(tmp_path, settings={"heartbeat_s": BEAT_S}) as hub:
        asyncio.run(main(hub.address))
