"""For every test: nothing is left behind, and hypothesis has no clock; in CI it has no luck either.

An `async def` test runs in virtual time, once for each of SEEDS, and gets the Simulation if it asks for `simulation`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import settings

from trunkline.testing import Simulation, no_leaks, simulate

SEEDS = range(5)

settings.register_profile("trunkline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("trunkline")


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    with no_leaks():
        yield


@pytest.fixture
def simulation() -> None:
    """Stands for the Simulation of each seed, which begins only when the test is called."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    for seed in SEEDS:
        simulate(partial(_run, pyfuncitem.obj, given), seed=seed)
    return True


async def _run(test: Any, given: dict[str, Any], simulation: Simulation) -> None:
    if "simulation" in given:
        given = {**given, "simulation": simulation}
    async with no_leaks():
        await test(**given)
