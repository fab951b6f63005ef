"""The same code on a cluster of a master and two workers, and through Spark Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.ports import free_port
from trunkline.spark.session.java import find_java, shim_home

pytestmark = pytest.mark.long
"""Each needs several Javas of its own."""

WORK = """
import json, sys
from trunkline.spark import Pipeline, messages, session, table

master, journal, warehouse, settings = sys.argv[1:]
spark = session(master, settings=json.loads(settings))
counts = {
    "messages": messages(spark, journal).count(),
    "source": spark.read.format("trunkline").option("journal", journal).load().count(),
}
with Pipeline(spark, journal, warehouse) as pipeline:
    counts["taken"] = pipeline.run().messages
for name in ("messages", "deliveries", "requests", "conversations", "accounting", "topic_minute"):
    rows = table(spark, warehouse, name).collect()
    counts[f"table {name}"] = len(rows)
print(json.dumps(counts))
spark.stop()
"""


def worked(master: str, journal: Path, warehouse: Path, settings: dict[str, object]) -> dict[str, int]:
    command = [sys.executable, "-c", WORK, master, str(journal), str(warehouse), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


@contextmanager
def java(folder: Path, name: str, ready: str, *arguments: str) -> Iterator[str]:
    """A process of Spark, which ends with the block; its output when it was ready."""
    home = shim_home(find_java(), folder / f"java of {name}")
    jars = Path(pyspark.__file__).parent / "jars"
    log = folder / f"{name}.log"
    opens = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in OPEN]
    command = [str(home / "bin" / "java"), *opens, "-Xmx1g", "-cp", f"{jars}/*", *arguments]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_SCALA_VERSION": "2.13"}
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
        try:
            yield said(process, log, ready)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


OPEN = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")


def said(process: subprocess.Popen[bytes], log: Path, ready: str) -> str:
    ends = time.monotonic() + 90
    while time.monotonic() < ends:
        if found := re.search(ready, log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers, on this machine."""
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        master = stack.enter_context(
            java(
                tmp_path,
                "master",
                r"Starting Spark master at (spark://\S+)",
                f"{deploy}.master.Master",
                *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
        )
        for number in range(2):
            place = tmp_path / f"worker {number}"
            stack.enter_context(
                java(
                    tmp_path,
                    f"worker-{number}",
                    r"(Successfully registered with master)",
                    f"{deploy}.worker.Worker",
                    *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(place), master),
                )
            )
        yield master


def test_a_cluster_gives_what_one_machine_gives(
    cluster: str, journal: Path, tmp_path: Path, here: dict[str, int]
) -> None:
    settings = {"spark.sql.shuffle.partitions": 2, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    assert worked(cluster, journal, tmp_path / "there", settings) == here


@pytest.fixture
def here(journal: Path, tmp_path: Path) -> dict[str, int]:
    """The result of a local session."""
    return worked("local[2]", journal, tmp_path / "here", {"spark.sql.shuffle.partitions": 2})


SERVE = """
import sys, time
from trunkline.spark import session

settings = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.sql.shuffle.partitions": 2,
}
with session("local[2]", settings=settings) as spark:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server."""
    port = free_port()
    command = [sys.executable, "-c", SERVE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()
        process.wait(60)


def test_through_spark_connect_it_is_the_same(
    connect: str, journal: Path, tmp_path: Path, here: dict[str, int]
) -> None:
    assert worked(connect, journal, tmp_path / "there", {}) == here
