"""A kernel whose messages the test sends itself, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.jupyter.scripted import ScriptedLink, kernel_of, world_of
from trunkline.jupyter import Execution, Kernel
from trunkline.testing import Simulation, simulate

Scene = Callable[[Kernel, ScriptedLink, Execution], Coroutine[Any, Any, None]]


def play(scene: Scene, **settings: Any) -> None:
    """A kernel with an open request."""

    async def main(simulation: Simulation) -> None:
        # Without a welcome, which would be an orphan in every scene.
        quiet = ScriptedLink(world_of(simulation), simulation.random, welcomes=False)
        kernel, link = kernel_of(simulation, quiet, **settings)
        await kernel.open()
        await asyncio.sleep(1)
        link.deaf = True
        execution = await kernel.execute("code")
        await scene(kernel, link, execution)
        await kernel.aclose()

    simulate(main)


def of(kernel: Kernel, execution: Execution) -> dict[str, Any]:
    """The parent header of the kernel's messages for it."""
    return {"msg_id": execution.id, "session": kernel.session, "username": "me", "msg_type": "execute_request"}


def say_done(kernel: Kernel, link: ScriptedLink, execution: Execution, status: str = "ok") -> None:
    """All messages that complete it."""
    link.say("shell", "execute_reply", {"status": status}, of(kernel, execution))
    link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
