"""Leases between agents: a keeper answers acquire, renew and release; a lease that ends goes to the next in line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import trunkline as tl

LEASE_S = 0.1


class Keeper:
    """Keeps one camera: who holds it and until when. Who asks for it is answered when it is their turn."""

    def __init__(self, bus: tl.Bus) -> None:
        self.holder, self.ends = "", 0.0
        self.line, self.freed = asyncio.Lock(), asyncio.Event()
        bus.handle("camera.acquire", self.acquire, concurrency=10)
        bus.handle("camera.renew", self.renew)
        bus.handle("camera.release", self.release)

    async def acquire(self, message: tl.Message) -> None:
        async with self.line:  # first come, first served
            while self.holder and (left_s := self.ends - asyncio.get_running_loop().time()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.freed.wait(), left_s)
            if self.holder:
                print(f"keeper: the lease of {self.holder} has ended")
            self.holder = message.sender
            self.freed.clear()
            await self.renew(message)

    async def renew(self, message: tl.Message) -> str:
        if self.holder == message.sender:
            self.ends = asyncio.get_running_loop().time() + LEASE_S
        return "renewed" if self.holder == message.sender else "too late"

    async def release(self, message: tl.Message) -> str:
        if self.holder != message.sender:
            return "too late"
        self.holder = ""
        self.freed.set()
        return "released"


async def agent(bus: tl.Bus, renews: int, pause_s: float) -> None:
    await bus.request("camera.acquire", timeout_s=2)
    print(f"{bus.name}:    has the camera")
    for verb in ["renew"] * renews + ["release"]:
        await asyncio.sleep(pause_s)
        print(f"{bus.name}:    {verb}: {await bus.request(f'camera.{verb}')}")


async def main() -> None:
    broker = tl.MemoryBroker()
    names = ("keeper", "ann", "ben", "cid")
    keeper, ann, ben, cid = (tl.connect(broker, name=name) for name in names)
    async with keeper, ann, ben, cid:
        Keeper(keeper)
        # Ann renews in time, Ben forgets himself, Cid is quick.
        await asyncio.gather(agent(ann, 2, LEASE_S / 2), agent(ben, 0, LEASE_S * 2), agent(cid, 0, 0))
    await broker.aclose()


if __name__ == "__main__":
    asyncio.run(main())
