"""One process writes, and others get its pid in the error; any number may read; after its death the next takes over."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.processes import Child
from trunkline.journal import Journal


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    with Child(tmp_path, "own", directory) as owner:
        owner.heard("p")
        with Child(tmp_path, "own", directory) as second:
            second.finish()
            (error,) = second.errors()
        assert error["type"] == "JournalLocked"
        assert error["pid"] == owner.pid
        assert error["path"] == str(directory)
        assert str(owner.pid) in error["text"]

        with pytest.raises(tl.JournalLocked) as locked:
            Journal(directory).open()
        assert locked.value.pid == owner.pid

        # Reading needs no turn.
        with Child(tmp_path, "read", directory) as reader:
            reader.finish()
            assert [words[2] for words in reader.said("m")] == [str(owner.pid)]
            assert reader.errors() == []

        owner.kill()
        # Whom the system has buried owns nothing.
        with Child(tmp_path, "own", directory) as successor:
            successor.finish()
            assert successor.errors() == []
        with Child(tmp_path, "read", directory) as reader:
            reader.finish()
            assert [words[2] for words in reader.said("m")] == [str(owner.pid), str(successor.pid)]


def test_the_same_process_does_not_get_it_twice(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(tl.JournalLocked) as locked:
        Journal(tmp_path).open()
    assert locked.value.pid == os.getpid()
    with Journal(tmp_path):
        pass


def test_a_bus_that_finds_the_journal_locked_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with tl.connect("memory:", journal=tmp_path) as bus:
            with pytest.raises(tl.JournalLocked):
                tl.connect("memory:", journal=tmp_path)
            await bus.publish("a", b"still here")

    asyncio.run(main())


def test_a_program_that_the_owner_started_does_not_keep_the_journal(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    journal = Journal(directory).open()
    with Child(tmp_path, "own", tmp_path / "another") as program:
        program.heard("p")
        journal.close()
        with Journal(directory):
            pass
