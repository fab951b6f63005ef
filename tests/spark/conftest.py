"""One session for all tests with Spark: starting it costs seconds. A module that finds it dead gets a new one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.journals import HOUR_NS, START_NS, execute_a_cell, live
from trunkline.spark import session
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.session.start import Setting
from trunkline.testing import no_leaks

FAST: dict[str, Setting] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.adaptive.enabled": False,
    "spark.driver.extraJavaOptions": "-Dtrunkline.tests=true",  # what makes Java quick is in conf/spark-defaults.conf
}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""As outside the tests: for those that are about how Spark does it."""
LAST = ("tests/spark/test_shared_session.py", "tests/spark/test_camera_example.py")
"""These end the shared session. All others use one that is warm, and these need one start between them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def when(item: pytest.Item) -> int:
        if item.nodeid.startswith(LAST):
            return 1
        return 0 if item.nodeid.startswith("tests/spark/") else 2

    if any(not when(item) for item in items):
        items.sort(key=when)


GRACE_S = 20.0
"""So long after its limit a test that still waits for Java is ended."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The limit of a test holds for queries, too.

    The limit raises an exception in the test. On its way out Spark sends Java one more command on the connection that
    still waits for the query, and so waits itself, this time without a limit. It ends when Java ends.
    """
    if not uses_session(item):
        return (yield)
    limit = item.get_closest_marker("timeout")
    limit_s = float(limit.args[0] if limit else item.config.getini("timeout"))
    with java_ends_after(limit_s + GRACE_S):
        return (yield)


@contextmanager
def java_ends_after(limit_s: float) -> Iterator[None]:
    """Kill the Java of the session if the block takes longer, and print what its threads were doing."""
    timer = threading.Timer(limit_s, end_java)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def end_java() -> None:
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return
    if jstack := shutil.which("jstack"):
        with suppress(subprocess.TimeoutExpired):
            threads = subprocess.run([jstack, str(process.pid)], capture_output=True, text=True, timeout=30)
            print(threads.stdout, threads.stderr, file=sys.stderr)
    process.kill()
    process.wait()


def uses_session(item: pytest.Item) -> bool:
    return "shared_session" in getattr(item, "fixturenames", ())


class SharedSession:
    """The session of all modules, started when it is first needed, and again when the Java below it has failed."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None

    def get(self) -> SparkSession:
        if self._spark is not None and not works(self._spark):
            self.stop()
        if self._spark is None:
            self._spark = session("local[2]", app="tests", settings=FAST)
        return self._spark

    def stop(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            spark.stop()


def works(spark: SparkSession) -> bool:
    if spark.sparkContext._jsc is None:
        return False  # it was stopped
    try:
        return spark.range(1).count() == 1
    except (Py4JError, PySparkException, OSError):
        return False


@pytest.fixture(scope="package", autouse=True)
def in_utc() -> Iterator[None]:
    """Spark gives times as those of the machine, without a zone. Here they are compared with what they are in UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="session")
def shared_session() -> Iterator[SharedSession]:
    shared = SharedSession()
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def spark(shared_session: SharedSession) -> SparkSession:
    return shared_session.get()


class Taken(NamedTuple):
    """Traffic over some hours, sealed here and there, and a warehouse that took it in. Not to be changed."""

    journal: Path
    warehouse: Path


@pytest.fixture(scope="session")
def taken(shared_session: SharedSession, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    """Two runs, with traffic in between that goes on in the hours of the first: what a user has the next day."""
    directory = tmp_path_factory.mktemp("traffic")
    taken = Taken(directory / "journal", directory / "warehouse")
    for seed, size, start_ns in ((1, 70, START_NS), (2, 50, START_NS + HOUR_NS // 3)):
        live(taken.journal, seed=seed, size=size, start_ns=start_ns)
        execute_a_cell(taken.journal, f"cell-{seed}", start_ns=start_ns)
        with Pipeline(shared_session.get(), *taken) as pipeline:
            assert pipeline.run().messages
    return taken


@pytest.fixture(scope="session")
def journal(taken: Taken) -> Path:
    return taken.journal


@pytest.fixture(scope="session")
def warehouse(taken: Taken) -> Path:
    return taken.warehouse


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """As everywhere, but a session opens sockets and threads when it first needs them, and keeps them until its end."""
    if not uses_session(request.node):
        with no_leaks():
            yield
    else:
        before = open_files()
        yield
        # A task that is left over from a job that failed lets go of its file a moment later.
        deadline = time.monotonic() + 10
        while not open_files() <= before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert open_files() <= before


def open_files() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {target for target in found if target.startswith("/") and not target.startswith(("/proc/", "/dev/"))}
