"""One session for all tests with Spark: starting it costs seconds, so nobody stops it before the last of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from trunkline.spark import session
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


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """As everywhere, but a session opens sockets and threads when it first needs them, and keeps them until its end."""
    if "spark" not in request.fixturenames:
        with no_leaks():
            yield
    else:
        before = open_files()
        yield
        assert open_files() <= before


def open_files() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {target for target in found if target.startswith("/") and not target.startswith(("/proc/", "/dev/"))}
