"""The Java process of a session: its options and its end. It ends with its session.

Without this module, the process would keep its memory and temporary files until the program ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trunkline.spark.session.java import Java, shim_home
from trunkline.spark.session.scratch import Scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("trunkline.spark")

PATIENCE_S = 30.0

# Errors only, to stderr. Spark's own profile lets through warnings about host names and native libraries, and if no
# level is set for the gateway to Python, Spark prints a line about setting it to stderr.
LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class Jvm:
    """One Java process with a folder for its temporary files.

    If a process already exists, it is used, and it is not ended.
    """

    def __init__(self, java: Java | None, patience_s: float) -> None:
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self._java = java
        self._patience_s = patience_s
        self._owner = os.getpid()
        self._ended = False
        self._at_exit: Callable[[], None] = self.end
        atexit.register(self._at_exit)

    def options(self, more: Sequence[str]) -> str:
        """The options for Spark, in one line."""
        logging = self.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        # Java writes its own messages, for example about an archive that does not fit, to standard output.
        return " ".join(map(_quoted, ["-Xlog:disable", f"-Dlog4j2.configurationFile={logging.as_uri()}", *more]))

    @contextmanager
    def environment(self, *, local: bool) -> Iterator[None]:
        """Environment variables that Spark reads only when it starts."""
        wanted = {"PYSPARK_DRIVER_PYTHON": sys.executable}
        if local:
            wanted |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        else:
            wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        if self._java is not None:
            posix = os.name == "posix"
            wanted["JAVA_HOME"] = str(shim_home(self._java, self.folder / "java") if posix else self._java.home)
        if not _speaks_utf8(os.environ):
            # Otherwise Java cannot open files with non-ASCII names.
            wanted["LC_ALL"] = "C.UTF-8"
        with _changed(wanted):
            yield

    def ends_with(self, spark: SparkSession) -> None:
        """Let `spark.stop()`, and so the end of a `with` block, end the process, too."""
        stop = spark.stop

        def stop_and_end() -> None:
            if not self._ended and os.getpid() == self._owner:
                try:
                    if _java_has_ended():
                        _forget_session()  # the process has already ended
                    else:
                        stop()
                finally:
                    self.end()

        spark.stop = stop_and_end  # type: ignore[method-assign]
        # The program did not stop the session: Spark's connections must be closed before the process ends.
        atexit.unregister(self.end)
        self._at_exit = stop_and_end
        atexit.register(stop_and_end)

    def end(self) -> None:
        """Wait until the process has ended, and remove its folder. The second call does nothing."""
        if self._ended or os.getpid() != self._owner:
            return  # a forked process also runs the exit functions of its parent
        self._ended = True
        atexit.unregister(self._at_exit)
        if self._java is not None:
            _end_process(self._patience_s)
        self._scratch.remove()


def _end_process(patience_s: float) -> None:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return  # it was never started
    # The next session starts a new process.
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()  # closing its standard input ends it
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def discarded_dead() -> bool:
    """Whether the Java of the active session had ended, for example killed. Then the session is discarded."""
    from pyspark.sql import SparkSession

    if not _java_has_ended():
        return False
    log.warning("the Java process of the active Spark session has ended: starting a new session")
    if SparkSession._instantiatedSession is not None:
        SparkSession._instantiatedSession.stop()
    return True


def _java_has_ended() -> bool:
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _forget_session() -> None:
    """Does what `SparkSession.stop` does, without calls to Java."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is not None:
        if context._accumulatorServer is not None:
            context._accumulatorServer.shutdown()
        context._accumulatorServer = context._jsc = None  # type: ignore[assignment]  # as Spark does
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _quoted(option: str) -> str:
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _speaks_utf8(environment: Mapping[str, str]) -> bool:
    """Whether the locale of the environment uses UTF-8."""
    named = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return "utf" in next((locale for locale in named if locale), "").lower()


@contextmanager
def _changed(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
