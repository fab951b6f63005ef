"""A kernel shared by a person and an agent: both execute code, each gets its own output; all traffic is on the bus."""

from __future__ import annotations

import asyncio

import trunkline as tl


async def main() -> None:
    async with (
        tl.connect(name="person") as bus,
        bus.subscribe("kernel.*.iopub.execute_input") as inputs,
        tl.jupyter.start_kernel(bus=bus, share=True) as kernel,
        tl.jupyter.join(bus, kernel.id) as agent,
    ):
        await kernel.run("data = [3, 1, 2]")
        mine, theirs = await asyncio.gather(kernel.run("print('mine'); max(data)"), agent.run("sorted(data)"))
        print(f"the person gets {mine.text} and prints {mine.stdout.strip()!r}, the agent gets {theirs.text}")

        failed = await agent.run("data.push(4)")
        print(f"the agent errs: {failed.error}")

        async with agent.execute("for n in data: print(n, flush=True)") as execution:
            async for message in execution.stream:
                print("line by line:", message.content["text"].strip())

        print(f"{inputs.depth} executions were seen on the bus")
        print(f"{kernel.stats().routed.others} messages of the other client were told apart")


if __name__ == "__main__":
    asyncio.run(main())
