"""The blocking API has every name of the async API."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.jupyter.scripted import kernel_of
from trunkline.jupyter import BlockingComm, BlockingExecution, BlockingKernel, Comm, Execution, Kernel
from trunkline.testing import Simulation, simulate

INTERNAL = {
    # Of links, routers and those who start kernels.
    Kernel: {"answer", "client", "life", "link", "lost", "on_close", "open", "restart_dead", "router"},
    Execution: {"capture", "completed", "ended", "fail", "on_input", "outputs", "release", "show", "take", "take_late"}
    | {"lose", "update_shown"},
    Comm: set(),
}
RENAMED = {"aclose": "close"}


def names(thing: Any) -> set[str]:
    return {RENAMED.get(name, name) for name in dir(thing) if not name.startswith("_")}


def test_nothing_is_missing_on_the_blocking_side() -> None:
    twins: dict[type, tuple[set[str], set[str]]] = {}

    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        await kernel.open()
        link.deaf = True
        execution = await kernel.execute("code")
        comm = await kernel.open_comm("target")
        thread: Any = None
        blocking = BlockingKernel.__new__(BlockingKernel)
        # As __init__ does, without a thread: only the names matter.
        own = {name for name in BlockingKernel.__init__.__code__.co_names if not name.startswith("_")}
        twins[Kernel] = (names(kernel), names(blocking) | own)
        twins[Execution] = (names(execution), names(BlockingExecution(thread, execution)))
        twins[Comm] = (names(comm), names(BlockingComm(thread, comm)))
        await kernel.aclose()

    simulate(main)
    for kind, (there, here) in twins.items():
        assert not there - here - INTERNAL[kind], kind
        assert not INTERNAL[kind] - there, f"no longer there: {INTERNAL[kind] - there}"


def test_signatures_are_alike() -> None:
    assert asyncio.iscoroutinefunction(Execution.wait_for)
    for name in ("result", "replied", "extend", "wait_for", "partial", "channel"):
        there = getattr(Execution, name).__code__.co_varnames[: getattr(Execution, name).__code__.co_argcount]
        here = getattr(BlockingExecution, name).__code__
        assert here.co_varnames[: here.co_argcount] == there, name
