"""`session()`: a Spark session that starts fast, prints no warnings, and leaves nothing behind."""

from __future__ import annotations

import atexit
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.errors import MissingExtra
from trunkline.spark.session.class_archive import Archive, archive_for, cache_directory, is_off
from trunkline.spark.session.java import Java, find_java
from trunkline.spark.session.jvm import PATIENCE_S, Jvm, discarded_dead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "TRUNKLINE_SPARK_MASTER"
LOCAL = "local[*]"
CONNECT = "sc://"
"""The URL of a Spark Connect server. Then this program needs no Java."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
Setting = bool | float | int | str | None
FOR_FEW_ROWS: Mapping[str, Setting] = {
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m",
}
"""For a short session: optimizing compilation would take longer than the work itself.

At this level Java reserves only 48 MB for compiled code, which is too little for Spark.
"""

log = logging.getLogger("trunkline.spark")
_turn = threading.Lock()


def session(
    master: str | None = None,
    *,
    app: str = "trunkline",
    settings: Mapping[str, Setting] | None = None,
    archive: bool = True,
) -> SparkSession:
    """The session that is active, or else a new one on `master`, `$TRUNKLINE_SPARK_MASTER`, or all cores here.

    `settings` override the defaults. On an active session, those that can be set are set; others, and another master,
    are logged. An active session whose Java has died is replaced. Stopping a new one also ends its Java. With
    `archive` it uses a class archive, which is made in the background at the end of the first program that finds none.
    Raises MissingExtra and JavaMissing.
    """
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise MissingExtra("spark", "the pipeline (Spark)") from error
    asked = master or os.environ.get(MASTER)
    with _turn:
        if asked is not None and asked.startswith(CONNECT):
            return _connected(asked, settings or {})
        if SparkContext._active_spark_context is not None and not discarded_dead():
            return _joined(asked, settings or {})
        if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
            # A Java process already exists: it was left running, or it started this process.
            return begin(asked or LOCAL, app, settings or {}, None, [])
        java = find_java()
        kept = spark_archive(java) if archive and not is_off() else None
        return begin(asked or LOCAL, app, settings or {}, java, _use(kept) if kept else [])


def begin(
    master: str,
    app: str,
    settings: Mapping[str, Setting],
    java: Java | None,
    options: Sequence[str],
    *,
    patience_s: float = PATIENCE_S,
) -> SparkSession:
    """A new session in a new process of this Java, or in the existing process if `java` is None. `patience_s` limits
    how long the process may take to end.
    """
    from pyspark.sql import SparkSession

    jvm = Jvm(java, patience_s)
    try:
        wanted = {**defaults(master, jvm.folder), **settings}
        wanted[JAVA_OPTIONS] = f"{jvm.options(options)} {settings.get(JAVA_OPTIONS, '')}".strip()
        with jvm.environment(local=cores(master) is not None):
            spark = SparkSession.builder.master(master).appName(app).config(map=wanted).getOrCreate()
    except BaseException:
        jvm.end()
        raise
    jvm.ends_with(spark)
    return _with_source(spark)


def _with_source(spark: SparkSession) -> SparkSession:
    """Registers `format("trunkline")`."""
    from trunkline.spark.source.data_source import register

    register(spark)
    return spark


def _connected(url: str, settings: Mapping[str, Setting]) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
    except ImportError as error:
        raise MissingExtra("connect", "Spark Connect") from error
    return _with_source(_set(spark, {**EVERYWHERE, **settings}))


def _joined(asked: str | None, settings: Mapping[str, Setting]) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    actual = spark.sparkContext.master
    if asked not in (None, actual):
        log.warning("the active session on %s is used instead of %s: stop it first to start another", actual, asked)
    return _with_source(_set(spark, settings))


def _set(spark: SparkSession, settings: Mapping[str, Setting]) -> SparkSession:
    from pyspark.errors import AnalysisException

    for name, value in settings.items():
        try:
            spark.conf.set(name, value)  # type: ignore[arg-type]  # None is refused, too
        except AnalysisException:
            log.warning("%s needs a new session: stop the active one first", name)
    return spark


# Defaults that do not override other settings


EVERYWHERE: dict[str, Setting] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the other value writes a deprecated type
    "spark.sql.python.filterPushdown.enabled": True,
}


def defaults(master: str, folder: Path) -> dict[str, Setting]:
    """The default settings of Trunkline for this master and this machine."""
    wanted: dict[str, Setting] = {
        **EVERYWHERE,
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.ui.showConsoleProgress": False,
        # With the default of 100, each further run of the pipeline in the same session compiles its queries again, and
        # Java begins again to optimize them.
        "spark.sql.codegen.cache.maxEntries": 1000,
    }
    parallel = cores(master)
    if parallel is not None:
        wanted |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": f"{memory_mib()}m",  # all work is done in this process, and the default is 1 GiB
            "spark.local.dir": str(folder),
            "spark.sql.shuffle.partitions": parallel,  # the default is 200, which means 200 tasks for three rows
            "spark.ui.enabled": False,
        }
    return wanted


def cores(master: str) -> int | None:
    """The number of parallel tasks; None if they do not run on this machine."""
    if master == "local":
        return 1
    if threads := re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\]", master):
        return _cores_here() if threads[1] == "*" else int(threads[1])
    if cluster := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(cluster[1]) * int(cluster[2])
    return None


def memory_mib() -> int:
    """A quarter of the memory of this machine. It is allocated on demand."""
    return max(1024, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 // 2**20)


def _cores_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# The class archive


def spark_archive(java: Java) -> Archive | None:
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return archive_for(java, home, pyspark.__version__, cache_directory())


def _use(archive: Archive) -> list[str]:
    if path := archive.find():
        return archive.options(path)
    if archive.is_wanted():
        # Done at exit, because now it would compete with the session for processors. Registered once for all sessions.
        atexit.unregister(_train)
        atexit.register(_train)
    return []


def _train() -> None:
    subprocess.Popen(
        [sys.executable, "-P", "-m", "trunkline.spark.session.make_class_archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
