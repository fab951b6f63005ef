"""If the Java process of a session dies, one module fails, and later ones get a new session."""

from __future__ import annotations

import signal
import threading

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tests.spark.conftest import SharedSession, java_ends_after, works
from trunkline.spark import session


@pytest.fixture(autouse=True)
def leaves_nothing() -> None:
    """The new session stays for later modules, with its open files."""


def kill_java() -> None:
    assert SparkContext._gateway is not None
    process = SparkContext._gateway.proc
    process.send_signal(signal.SIGKILL)
    process.wait(30)


@pytest.mark.long
def test_a_dead_session_is_replaced_for_the_next_module(shared_session: SharedSession) -> None:
    before = shared_session.get()
    kill_java()
    assert not works(before)
    after = shared_session.get()
    assert after is not before
    assert after.range(3).count() == 3


@pytest.mark.long
def test_a_program_whose_java_was_killed_gets_a_new_session(shared_session: SharedSession) -> None:
    shared_session.get()
    kill_java()
    with session("local[2]") as spark:
        assert spark.range(3).count() == 3
    assert works(shared_session.get())


class LimitReached(BaseException):
    """As pytest-timeout's: not an Exception."""


@pytest.mark.long
def test_a_query_that_never_ends_fails_its_test(
    shared_session: SharedSession, capfd: pytest.CaptureFixture[str]
) -> None:
    spark = shared_session.get()
    endless = spark.sql("select java_method('java.lang.Thread', 'sleep', 36000000L)")

    def limit_reached(*_: object) -> None:
        raise LimitReached

    before = signal.signal(signal.SIGUSR1, limit_reached)
    limit = threading.Timer(2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    limit.start()
    try:
        with java_ends_after(4), pytest.raises((LimitReached, Py4JError, PySparkException)) as ended:
            endless.collect()
    finally:
        limit.join()
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(ended.value, LimitReached) or isinstance(ended.value.__context__, LimitReached)
    assert "Thread.sleep" in capfd.readouterr().err
    assert works(shared_session.get())
