"""Leases between agents: a keeper answers acquire, renew and release. A lease that ends goes to the next in line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import trunkline as tl

LEASE_S = 0.1


class Keeper:
    """Keeps one camera: its holder, and until when. A request for it is answered when its turn comes."""

    def __init__(self, bus: tl.Bus) -> None:
        self.holder, self.ends, self.line, self.freed = "", 0.0, asyncio.Lock(), asyncio.Event()
        for verb in (self.acquire, self.renew, self.release):
            bus.handle(f"camera.{verb.__name__}", verb, concurrency=10)

    async def acquire(self, message: tl.Message) -> None:
        async with self.line:  # first come, first served
            while self.holder and (left_s := self.ends - asyncio.get_running_loop().time()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.freed.wait(), left_s)
            if self.holder:
                print(f"keeper: the lease of {self.holder} has ended")
            self.holder, self.ends = message.sender, asyncio.get_running_loop().time() + LEASE_S
            self.freed.clear()

    async def renew(self, message: tl.Message) -> bool:
        if self.holder == message.sender:
            self.ends = asyncio.get_running_loop().time() + LEASE_S
        return self.holder == message.sender

    async def release(self, message: tl.Message) -> bool:
        if holds := self.holder == message.sender:
            self.holder = ""
            self.freed.set()
        return holds


async def agent(bus: tl.Bus, name: str, renews: int, pause_s: float) -> None:
    await bus.request("camera.acquire", sender=name, timeout_s=2)
    print(f"{name} has the camera")
    for verb in ["renew"] * renews + ["release"]:
        await asyncio.sleep(pause_s)
        print(f"{name} {verb}: {'done' if await bus.request(f'camera.{verb}', sender=name) else 'too late'}")


async def main() -> None:
    """Ann renews in time, Ben forgets to, Cid is quick."""
    async with tl.connect() as bus:
        Keeper(bus)
        await asyncio.gather(agent(bus, "ann", 3, 0.05), agent(bus, "ben", 0, 0.3), agent(bus, "cid", 0, 0))


if __name__ == "__main__":
    asyncio.run(main())
