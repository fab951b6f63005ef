"""An existing runner on the bus: it announces start, finish and failure, and obeys requests to stop."""

from __future__ import annotations

import asyncio

import trunkline as tl


class Runner:
    """Your existing code. It does not use the bus."""

    async def run(self, job: str) -> str:
        if job == "divide":
            raise ZeroDivisionError("nothing to divide by")
        await asyncio.sleep(3600 if job == "sleep" else 0.01)
        return f"{job} done"


class Announced:
    """The same runner, which publishes on `runs.started`, `.finished`, `.failed` and `.stopped`."""

    def __init__(self, runner: Runner, bus: tl.Bus) -> None:
        self._runner, self._bus = runner, bus
        self._running: dict[str, asyncio.Task[str]] = {}
        bus.handle("runner.stop", self.stop)

    async def run(self, job: str) -> str | None:
        task = self._running[job] = asyncio.create_task(self._runner.run(job))
        await self._bus.publish("runs.started", job)
        await asyncio.wait([task])
        del self._running[job]
        if task.cancelled():
            await self._bus.publish("runs.stopped", job)
        elif error := task.exception():
            await self._bus.publish("runs.failed", job, headers={"error": repr(error)})
        else:
            await self._bus.publish("runs.finished", job)
        return None if task.cancelled() or task.exception() else task.result()

    async def stop(self, job: str) -> bool:
        """Answers whether a run was stopped."""
        return job in self._running and self._running[job].cancel()


async def main() -> None:
    async with tl.connect(name="lab") as bus, bus.subscribe("runs.*") as news:
        runner = Announced(Runner(), bus)
        jobs = [asyncio.create_task(runner.run(job)) for job in ("measure", "divide", "sleep")]
        for _ in range(5):  # three begin, one finishes, one fails
            if (message := await news.recv()) is not None:
                print(f"{message.topic:13} {message.decode():7} {(message.headers or {}).get('error', '')}")
        print("stop sleep:", await bus.request("runner.stop", "sleep", reply=bool))
        print("results:", await asyncio.gather(*jobs))
        print("stop sleep:", await bus.request("runner.stop", "sleep", reply=bool), "for it is", news.try_recv().topic)


if __name__ == "__main__":
    asyncio.run(main())
