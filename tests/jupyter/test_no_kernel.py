"""A kernel that is not installed, and one that nobody shares: the error says in one line what to do."""

from __future__ import annotations

import asyncio

import pytest
from jupyter_client.kernelspec import KernelSpecManager

import trunkline as tl


async def starting(name: str) -> None:
    async with tl.connect("memory:") as bus, tl.jupyter.start_kernel(name, bus=bus):
        pass


async def joining(name: str) -> None:
    async with tl.connect("memory:") as bus, tl.jupyter.join(bus, name):
        pass


@pytest.mark.parametrize(
    ("name", "step"), [("python99", "pip install ipykernel"), ("cobol", "install it, or name a known one")]
)
def test_one_that_is_not_installed(name: str, step: str) -> None:
    with pytest.raises(tl.KernelNotStarted) as error:
        asyncio.run(starting(name))
    installed = ", ".join(sorted(KernelSpecManager().find_kernel_specs())) or "none"
    assert str(error.value) == f"the kernel {name!r} is not installed (installed: {installed}): {step}"


def test_one_that_nobody_shares() -> None:
    with pytest.raises(tl.KernelNotStarted) as error:
        asyncio.run(joining("mine"))
    assert str(error.value) == (
        "the kernel 'mine' is not shared on this bus (shared: none): share it with share=True,"
        " or with `trunkline kernel share`"
    )
