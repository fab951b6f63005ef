"""For every test: nothing is left behind, and hypothesis has no clock; in CI it has no luck either.

An `async def` test runs in virtual time, once for each of SEEDS. It may ask for the `simulation`, and for a `trial` of
the broker in memory, which is closed at its end: then nothing may be in flight.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import zmq
from hypothesis import settings

from trunkline import MemoryBroker
from trunkline.testing import Simulation, no_leaks, simulate, world
from trunkline.testing.trial import tried
from trunkline.transports.zmq_socket import close_socket, open_socket

SEEDS = range(5)

settings.register_profile("trunkline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("trunkline")


@pytest.fixture(scope="session", autouse=True)
def one_context() -> None:
    """What ZeroMQ needs for all sockets of a process is there before the first test: it stays until its end."""
    close_socket(open_socket(zmq.PAIR))


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    with no_leaks():
        yield


@pytest.fixture(autouse=True)
def own_runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets and descriptor files of a test are nobody else's."""
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(tmp_path_factory.getbasetemp() / "runtime"))


@pytest.fixture
def simulation() -> None:
    """Stands for what an `async def` test gets only when it is called: it is another one for each seed."""


@pytest.fixture
def trial() -> None:
    """As `simulation`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    for seed in SEEDS:
        simulate(partial(_run, pyfuncitem.obj, given), seed=seed)
    return True


async def _run(test: Callable[..., Awaitable[None]], given: dict[str, Any], simulation: Simulation) -> None:
    async with no_leaks(), tried(MemoryBroker(world(simulation))) as trial:
        mine = {"simulation": simulation, "trial": trial}
        await test(**{name: mine.get(name, value) for name, value in given.items()})
