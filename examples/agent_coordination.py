"""A coordinator and three workers: direct orders, a group that shares the work, a request, a broadcast."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import trunkline as tl


@dataclass
class Task:
    number: int


class Worker:
    """An agent: an endpoint for its own messages, and a member of the group that shares the work."""

    def __init__(self, bus: tl.Bus) -> None:
        self.bus, self.done = bus, 0
        bus.handle(tl.endpoint(bus.name), self.listen, name=f"{bus.name} listens")
        bus.handle("tasks.square", self.work, group="workers", name=f"{bus.name} works")

    async def listen(self, message: tl.Message) -> int:
        """Direct messages, broadcasts and requests all arrive here. The return value answers a request."""
        if message.type is not tl.MessageType.REQUEST:
            print(f"  {self.bus.name} hears from {message.sender}: {message.decode()}")
        return self.done

    async def work(self, task: Task) -> None:
        self.done += 1
        await self.bus.publish("results.square", task.number**2)


async def main() -> None:
    broker = tl.MemoryBroker()
    # One bus for each agent: its name is the sender of its messages.
    coordinator, ann, ben, cid = (tl.connect(broker, name=name) for name in ("coordinator", "ann", "ben", "cid"))
    async with coordinator, ann, ben, cid:
        workers = [Worker(ann), Worker(ben), Worker(cid)]
        await coordinator.send("ann", "you lead the others")
        squares: list[int] = []
        async with coordinator.subscribe("results.square") as results:
            await coordinator.publish_many("tasks.square", [Task(n) for n in range(30)])
            async for message in results:
                squares.append(message.decode(int))
                if len(squares) == 30:
                    break
        print(f"30 tasks shared, the squares add up to {sum(squares)}")
        for worker in workers:
            did = await coordinator.request(tl.endpoint(worker.bus.name), reply=int, timeout_s=1)
            print(f"  {worker.bus.name} did {did}")
        await coordinator.broadcast("well done, go home")
    await broker.aclose()


if __name__ == "__main__":
    asyncio.run(main())
