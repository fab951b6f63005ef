"""For every test: nothing is left behind, and hypothesis has no clock; in CI it has no luck either.

An `async def` test runs in virtual time, once for each of SEEDS. It may ask for the `simulation`, and for a `trial` of
the broker in memory, which is closed at its end: then nothing may be in flight.
"""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
import zmq
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import warm
from trunkline import MemoryBroker
from trunkline.delivery.eager import EagerSteps
from trunkline.memory.place import SHM, engine_prefix
from trunkline.testing import Simulation, no_leaks, simulate, world
from trunkline.testing.trial import tried
from trunkline.transports.zmq.socket import close_socket, open_socket

subprocess.Popen = warm.Popen  # type: ignore[misc]  # now, before another module takes it from there

SEEDS = range(5)
LONG_S = 3600
"""The limit of a test marked long. The limit of all others is in pyproject.toml."""

settings.register_profile("trunkline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("trunkline")


GROUPS = {"tests/spark/": "spark", "tests/jupyter/": "kernels", "tests/cli/test_kernel_command.py": "kernels"}
"""Tests that share something costly, a Spark session or a kernel, run in one worker, one after another, and first."""
LARGE = ("tests/test_demo.py", "tests/test_benchmarks.py", "tests/dashboard/test_page_browser.py")
"""Modules that take so long that one which begins late would run on alone: they begin second."""
SLOW = (
    *GROUPS,
    "tests/actors/test_actors_elsewhere.py",
    "tests/actors/test_schedules_of_actors.py",
    "tests/actors/test_state.py",
    "tests/brokers/test_engine",
    "tests/brokers/test_nats",
    "tests/brokers/test_redis",
    "tests/bus/test_twin.py",
    "tests/cli/",
    "tests/delivery/test_schedules.py",
    "tests/hub/test_admission.py",
    "tests/hub/test_clients.py",
    "tests/hub/test_conformance.py",
    "tests/hub/test_fates_of_processes.py",
    "tests/hub/test_hostile.py",
    "tests/hub/test_hub_contract.py",
    "tests/hub/test_hub_dead_letters.py",
    "tests/hub/test_hub_restart_registry.py",
    "tests/hub/test_killed.py",
    "tests/hub/test_malice.py",
    "tests/hub/test_memory_bounds.py",
    "tests/hub/test_poison.py",
    "tests/hub/test_reconnect.py",
    "tests/hub/test_rights_table.py",
    "tests/hub/test_schema_hash.py",
    "tests/hub/test_two_planes.py",
    "tests/journal/test_body.py",
    "tests/journal/test_crash.py",
    "tests/journal/test_durable.py",
    "tests/journal/test_faults_",
    "tests/journal/test_journal_memory.py",
    "tests/journal/test_large.py",
    "tests/journal/test_last.py",
    "tests/journal/test_reader.py",
    "tests/journal/test_removal_crash.py",
    "tests/journal/test_replay.py",
    "tests/journal/test_restart.py",
    "tests/journal/test_truth.py",
    "tests/journal/test_verify.py",
    "tests/memory/",
    "tests/test_benchmark",
    "tests/test_demo.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_extras.py",
    "tests/test_layers.py",
    "tests/testing/test_leaks.py",
    "tests/transports/test_transport_contract.py",
    "tests/transports/test_wires.py",
)
"""Spark, kernels, other programs, thousands of schedules, many seconds: not for `make quick`."""


ROOMY_BYTES = 8 << 30
"""Temporary files of a run stay below a quarter of this, so it leaves enough memory for everything else."""
IN_MEMORY = ("tl", "tlt")
"""How the names of the two folders begin: that of pytest, and that of everybody else."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None and not hasattr(config, "workerinput") and is_room_in_memory():
        in_memory(config)
    if hasattr(config, "workerinput") and config.args == config.getini("testpaths"):
        config.args[:] = rotated(*config.args)
    # jsonschema, which nbformat imports, compiles grammars of this package for 1.5 s in each worker. Nothing uses them.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("rfc3987_syntax", None)
    # A parent that ignores SIGINT (`nohup`, `&` in a script, several CI runners) would pass that on to every child, and
    # a test that interrupts a child would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Also for what is made before the first test, such as a Spark session for many of them: no archive of its classes.
    os.environ.setdefault("TRUNKLINE_CACHE", "off")
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))


def rotated(folder: str) -> list[str]:
    """What is in the folder; each worker begins elsewhere.

    After a checkout, pytest compiles each file when it is first collected. So the workers share this work: when one of
    them reaches a file, another has compiled it already.
    """
    parts = sorted(str(path) for path in Path(folder).iterdir() if path.is_dir() or path.name.startswith("test_"))
    number, count = (int(os.environ[f"PYTEST_XDIST_WORKER{part}"].removeprefix("gw")) for part in ("", "_COUNT"))
    start = len(parts) * number // count
    return parts[start:] + parts[:start]


def is_room_in_memory() -> bool:
    return SHM.is_dir() and os.access(SHM, os.W_OK) and shutil.disk_usage(SHM).free >= ROOMY_BYTES


def in_memory(config: pytest.Config) -> None:
    """Put temporary files into memory: tests open thousands of journals, and each waits for the disk several times.

    Both for `tmp_path` and for `tempfile`, here, in the workers and in their children. Paths are short, because sockets
    have short paths only. They are removed at the end of a run in which all tests passed, otherwise at the beginning of
    the next run.
    """
    for left in (path for start in IN_MEMORY for path in SHM.glob(f"{start}-[0-9]*")):
        with suppress(OSError):
            if left.stat().st_uid == os.getuid() and not Path("/proc", left.name.partition("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
    ours, others = mine()
    config.option.basetemp = str(ours)
    others.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(others)
    tempfile.tempdir = None  # it is looked up again


def mine() -> list[Path]:
    return [SHM / f"{start}-{os.getpid()}" for start in IN_MEMORY]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == 0 and session.config.option.basetemp == str(mine()[0]):
        for place in mine():
            shutil.rmtree(place, ignore_errors=True)


def group_of(nodeid: str) -> str:
    """Tests of one group run in one worker: tests that share something costly, otherwise tests of one module."""
    path = nodeid.partition("::")[0]
    return next((group for prefix, group in GROUPS.items() if path.startswith(prefix)), path)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    # Not by pytest-xdist's own groups: with pytest 9.2 it does not see them, and says nothing.
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGroup:
    return ByGroup(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules of tests that are not run need not be imported in each worker."""
    quick = "not slow" in config.option.markexpr
    path = collection_path.relative_to(config.rootpath).as_posix()
    return True if quick and f"{path}/".startswith(SLOW) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(LONG_S))
    # The same order in all workers, which take groups in this order: what takes longest begins first.
    items.sort(key=lambda item: (turn_of(item.nodeid), str(item.path)))


def turn_of(nodeid: str) -> int:
    return next((turn for turn, starts in enumerate((tuple(GROUPS), LARGE)) if nodeid.startswith(starts)), 2)


def pytest_collection_finish() -> None:
    set_aside()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        set_aside()


def set_aside() -> None:
    """What is there now (modules, thousands of items and reports) stays until the end: no collection looks at it again.

    Without this, looking for garbage takes a quarter of a second towards the end of a run, and happens often.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def kept_by_libraries() -> None:
    """ZeroMQ and uvloop open descriptors once per process, and keep them: they do so before the first test."""
    close_socket(open_socket(zmq.PAIR))
    uvloop.new_event_loop().close()


@pytest.fixture(scope="session", autouse=True)
def quick_processes() -> Iterator[None]:
    """Most processes that tests start are forks: see tests/warm.py."""
    warm.Warm.stem = warm.Stem()
    yield
    warm.Warm.stem.end()


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    with no_leaks():
        yield


@pytest.fixture(autouse=True)
def own_runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets and descriptor files of a test are private, and no child leaves an archive of Spark's classes."""
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(tmp_path_factory.getbasetemp() / "runtime"))
    monkeypatch.setenv("TRUNKLINE_CACHE", "off")


@pytest.fixture(params=[True, False], ids=["eager", "in turn"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle handlers and actors run at once, or in the next iteration of the event loop: promises hold either way."""
    monkeypatch.setattr(EagerSteps, "enabled", request.param)


@pytest.fixture(scope="session", autouse=True)
def no_engine_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """iceoryx2 creates a file for each runtime directory, and never removes it."""
    yield
    prefix = engine_prefix((tmp_path_factory.getbasetemp() / "runtime").resolve() / "shm")
    for path in SHM.glob(f"{prefix}*.global_mgmt"):
        path.unlink()


@pytest.fixture
def simulation() -> None:
    """A placeholder: an `async def` test gets the real one when it is called, a new one for each seed."""


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
