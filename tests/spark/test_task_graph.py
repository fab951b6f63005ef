"""Work that is done together, without Spark: what waits for what, and what happens if a part fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trunkline.spark.pipeline.task_graph import TaskGraph


class Tags:
    """The requests to a session."""

    def __init__(self) -> None:
        self.on: list[str] = []
        self.interrupted: list[str] = []

    def addTag(self, tag: str) -> None:
        self.on.append(tag)

    def removeTag(self, tag: str) -> None:
        self.on.remove(tag)

    def interruptTag(self, tag: str) -> None:
        self.interrupted.append(tag)


def graph(tags: Tags, at_once: int = 2) -> TaskGraph:
    session: Any = tags
    return TaskGraph(session, at_once)


def test_each_part_begins_when_what_it_needs_is_done() -> None:
    done: list[str] = []
    tags = Tags()
    work = graph(tags)
    needs = {"d": ("b", "c"), "c": ("a",), "b": ("a",), "a": (), "e": ("d",)}
    for name, needed in needs.items():
        work.add(name, needed, lambda name=name: done.append(name))  # type: ignore[misc]
    work.run()
    assert sorted(done) == list("abcde")
    for name, needed in needs.items():
        assert all(done.index(each) < done.index(name) for each in needed)
    assert tags.on == tags.interrupted == []


def test_two_at_a_time_run_at_the_same_time() -> None:
    met = threading.Barrier(2, timeout=10)
    work = graph(Tags())
    work.add("a", (), met.wait)
    work.add("b", (), met.wait)
    work.run()


def test_if_one_fails_the_others_are_interrupted_and_nothing_more_begins() -> None:
    tags = Tags()
    stopped = threading.Event()
    begun: list[str] = []

    def interrupt(tag: str) -> None:
        tags.interrupted.append(tag)
        stopped.set()

    tags.interruptTag = interrupt  # type: ignore[method-assign]

    def fail() -> None:
        raise LookupError("gone")

    work = graph(tags)
    work.add("long", (), lambda: stopped.wait(10))
    work.add("bad", (), fail)
    work.add("later", (), lambda: begun.append("later"))
    work.add("after it", ("bad",), lambda: begun.append("after it"))
    with pytest.raises(LookupError, match="gone"):
        work.run()
    assert len(tags.interrupted) == 1
    assert "after it" not in begun
    assert tags.on == []
