"""`trunkline top`: actors of several systems on a hub."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import trunkline as tl
from tests.cli.commands import DEADLINE_S, TRUNKLINE, environment
from trunkline.actors import Actor, ActorSystem


class Sleeper(Actor):
    async def receive(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_actors_are_listed(tmp_path: Path) -> None:
    place = f"unix://{tmp_path}/hub.sock"

    async def call(*words: str) -> tuple[int | None, str, str]:
        command = [*TRUNKLINE, "top", "--hub", place, "-n", "1", *words]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async def main() -> None:
        async with tl.connect(place, name="one", embed=True) as one, tl.connect(place, name="two") as two:
            await one.publish("there.is", b"a hub")
            await one.flush()
            code, out, err = await call()
            assert code == 0
            assert "there.is" in out
            assert "no actors" in err
            async with ActorSystem(one, "shop", drain_at_once()) as shop, ActorSystem(two, "bank") as bank:
                await one.flush()
                await two.flush()
                busy = await shop.spawn(Sleeper, name="busy")
                await bank.spawn(Sleeper, name="idle")
                for _ in range(4):
                    await busy.tell(60.0)
                code, out, err = await call("--json")
                (found,) = [json.loads(line) for line in out.splitlines()]
                actors = [(each["address"], each["mailbox"]) for each in found["actors"]]
                assert actors == [("shop.busy", 3), ("bank.idle", 0)]
                assert {each["name"] for each in found["snapshot"]["clients"]} >= {"one", "trunkline top"}
                assert (found["kernels"], found["channels"]) == ([], [])
                code, out, err = await call()
                assert (code, err) == (0, "")
                heads = [line.split() for line in out.splitlines()]
                assert ["actor", "kind", "health", "mailbox", "handled", "restarts"] in heads
                assert "shop.busy" in out

    asyncio.run(main())


def drain_at_once() -> tl.actors.SystemSettings:
    return tl.actors.SystemSettings(drain_s=0.0)
