"""Urgent messages go to a notifier at once. All messages go to a slow log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import trunkline as tl


@dataclass
class Alert:
    machine: str
    text: str


class Notifier:
    """Stands for a pager, a chat, a mail gateway."""

    def __init__(self, bus: tl.Bus, wanted: int) -> None:
        self.left = wanted
        self.done = asyncio.Event()
        # The filter reads the header alone: messages of lower priority are not even decoded.
        bus.handle("machines.>", self.notify, where="priority >= 75", retry=tl.Retry(attempts=5, delay_s=0.01))

    async def notify(self, alert: Alert, message: tl.Message) -> None:
        if message.attempts == 0 and alert.machine == "press":
            raise ConnectionError("the pager did not answer")  # tried again: an alert is not lost to a bad line
        print(f"notify: {tl.Priority(message.priority).name:8} {alert.machine}: {alert.text}")
        self.left -= 1
        if not self.left:
            self.done.set()


async def main() -> None:
    async with tl.connect(name="plant") as bus, bus.subscribe("machines.>", name="log") as log:
        notifier = Notifier(bus, wanted=3)
        for priority, machine, text in [
            (tl.Priority.LOW, "oven", "door closed"),
            (tl.Priority.CRITICAL, "press", "hand in the light barrier"),
            (tl.Priority.NORMAL, "oven", "180 degrees"),
            (tl.Priority.HIGH, "oven", "200 degrees and rising"),
            (tl.Priority.CRITICAL, "oven", "smoke"),
        ]:
            await bus.publish(f"machines.{machine}", Alert(machine, text), priority=priority)
        await notifier.done.wait()
        print(f"{log.depth} messages wait in the log, the most urgent first:")
        while log.depth:
            message = log.try_recv()
            print(f"  {message.priority:3} {message.decode(Alert).text}")
        books = bus.accounts()["Notifier.notify"]
        print(f"notifier: {books.accepted} offered, {books.filtered} filtered out, {books.delivered} delivered")


if __name__ == "__main__":
    asyncio.run(main())
