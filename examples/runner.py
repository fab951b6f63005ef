"""An existing runner on the bus: it announces start, finish and failure, and obeys requests to stop."""

from __future__ import annotations

import asyncio

import trunkline as tl


class Runner:
    """What you have already. It knows nothing of the bus."""

    async def run(self, job: str) -> str:
        if job == "divide":
            raise ZeroDivisionError("nothing to divide by")
        await asyncio.sleep(3600 if job == "sleep" else 0.01)
        return f"{job} done"


class Announced:
    """The same runner, and everybody may know: `runs.NAME.started`, `.finished`, `.failed`, `.stopped`."""

    def __init__(self, runner: Runner, bus: tl.Bus, name: str) -> None:
        self._runner, self._bus, self._name = runner, bus, name
        self._running: dict[str, asyncio.Task[str]] = {}
        bus.handle(f"runs.{name}.stop", self.stop)

    async def run(self, job: str) -> str | None:
        await self._announce("started", job)
        task = self._running[job] = asyncio.create_task(self._runner.run(job))
        await asyncio.wait([task])
        del self._running[job]
        if task.cancelled():
            await self._announce("stopped", job)
        elif error := task.exception():
            await self._announce("failed", job, priority=tl.Priority.HIGH, headers={"error": repr(error)})
        else:
            await self._announce("finished", job)
            return task.result()
        return None

    async def stop(self, job: str) -> bool:
        """Answers whether there was something to stop."""
        return job in self._running and self._running[job].cancel()

    async def _announce(self, what: str, job: str, **fields: tl.Fields) -> None:
        await self._bus.publish(f"runs.{self._name}.{what}", job, **fields)


async def main() -> None:
    async with tl.connect(name="lab") as bus, bus.subscribe("runs.*.*") as news:
        runner = Announced(Runner(), bus, "bench1")
        print("result:", await runner.run("measure"), "|", await runner.run("divide"))
        nap = asyncio.create_task(runner.run("sleep"))
        await asyncio.sleep(0)
        print("stop sleep:", await bus.request("runs.bench1.stop", "sleep"))
        print("stop sleep again:", [await nap, await bus.request("runs.bench1.stop", "sleep")][1])
        while news.depth:
            message = news.try_recv()
            print(f"{message.topic:22} {message.decode()} {(message.headers or {}).get('error', '')}")


if __name__ == "__main__":
    asyncio.run(main())
