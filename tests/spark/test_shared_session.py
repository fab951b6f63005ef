"""A session whose Java has died costs one module its tests, not all that follow."""

from __future__ import annotations

import signal

import pytest
from pyspark import SparkContext

from tests.spark.conftest import SharedSession, works
from trunkline.spark import session


@pytest.fixture(autouse=True)
def leaves_nothing() -> None:
    """The new session stays for the modules that follow, with what it has open."""


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
