"""One session for all tests with Spark: starting it costs seconds, so nobody stops it before the last of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.journals import live
from trunkline.spark import session
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.start import Setting
from trunkline.testing import no_leaks

FAST: dict[str, Setting] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.adaptive.enabled": False,
    # Compiling well takes longer than the tests run.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("local[2]", app="tests", settings=FAST) as spark:
        yield spark


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traffic over some hours, sealed here and there. Not to be changed."""
    directory = tmp_path_factory.mktemp("traffic") / "journal"
    live(directory, seed=1, size=120)
    return directory


@pytest.fixture(scope="session")
def warehouse(spark: SparkSession, journal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it, taken in by one run."""
    directory = tmp_path_factory.mktemp("whole") / "warehouse"
    with Pipeline(spark, journal, directory) as pipeline:
        pipeline.run()
    return directory


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """As everywhere, but a session opens sockets and threads when it first needs them, and keeps them until its end."""
    if "spark" not in request.fixturenames:
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
