"""Full disks, and disks without write permission."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.journal.processes import Child, mounted

MIB = 1024 * 1024
FULL = "the disk is full: free some space"


def small_disk(folder: Path, size: str, *then: list[object]) -> list[str]:
    folder.mkdir()
    return mounted(f"mount -t tmpfs -o size={size} none {folder}", *then)


def check_filled(child: Child) -> None:
    """Messages acknowledged before and after the disk was full are in the next process; the others are not."""
    child.finish()
    assert [words[0] for words in child.lines() if words[0] in {"full", "room", "closed"}] == ["full", "room", "closed"]
    assert "Traceback" not in child.complaints()
    published = [tuple(words) for words in child.said("p")]
    assert len(published) > 20
    assert [tuple(words[1:]) for words in child.said("m")] == published
    refused = [error for error in child.errors() if error["type"] == "NotStored"]
    assert len(refused) >= 2
    assert all(error["why"] == FULL for error in refused)


@pytest.mark.parametrize(("size", "ballast"), [("24m", 12 * MIB), ("176m", 140 * MIB)])
def test_a_full_disk_refuses_and_takes_again_when_there_is_room(tmp_path: Path, size: str, ballast: int) -> None:
    """Without room for the log at its full length, and with it. The content of the log needs the same room again."""
    disk = tmp_path / "disk"
    within = small_disk(disk, size, ["read", disk / "journal"])
    with Child(tmp_path, "fill", disk, ballast, within=within) as child:
        check_filled(child)


def test_what_is_settled_while_the_disk_is_full_is_not_forgotten(tmp_path: Path) -> None:
    """It is written when there is room again: no letter is lost, and no handled message is redelivered."""
    disk = tmp_path / "disk"
    journal = disk / "journal"
    within = small_disk(disk, "24m", ["read", journal], ["drain", journal, 0])
    with Child(tmp_path, "fill_and_settle", disk, 12 * MIB, within=within) as child:
        check_filled(child)
        assert [words[0] for words in child.said("x")] == ["1", "3"]
        assert child.said("letter") == [["worker", "1"], ["worker", "3"]]
        assert sorted({int(words[0]) for words in child.said("r")}) == [
            int(words[0]) for words in child.said("m") if int(words[0]) > 4
        ]


def test_sealing_on_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    within = small_disk(disk, "24m", ["read", disk / "journal"])
    with Child(tmp_path, "fill_and_seal", disk, 12 * MIB, within=within) as child:
        check_filled(child)
        (error,) = [error for error in child.errors() if error["type"] != "NotStored"]
        assert error["type"] == "JournalUnusable"
        assert "full" in error["why"]
        assert child.said("sealed") == [[str(len(child.said("p")))]]


@pytest.mark.parametrize("size", ["512k", "12m"])
def test_a_journal_opens_where_its_log_finds_no_room(tmp_path: Path, size: str) -> None:
    """It extends its log when it opens. Without room for that it is only slower."""
    disk = tmp_path / "disk"
    journal = disk / "journal"
    within = small_disk(disk, size, ["read", journal], ["squeeze", journal], ["read", journal])
    with Child(tmp_path, "squeeze", journal, within=within) as child:
        child.finish()
        (stored, more) = (int(words[0]) for words in child.said("stored"))
        assert stored > 10
        assert [error["why"] for error in child.errors()] == [FULL, FULL]
        read = [tuple(words[1:]) for words in child.said("m")]
        published = [tuple(words) for words in child.said("p")]
        assert read[:stored] == published[:stored]
        assert read[stored:] == published
        assert len(published) == stored + more


# Nobody may write


def owned_once(tmp_path: Path) -> Path:
    """A properly closed journal with one message."""
    directory = tmp_path / "journal"
    with Child(tmp_path, "own", directory) as child:
        child.finish()
    assert not (directory / "journal.db-wal").exists()
    return directory


def owned_and_killed(tmp_path: Path) -> Path:
    directory = tmp_path / "journal"
    with Child(tmp_path, "own", directory) as child:
        child.heard("p")
        child.kill()
    assert (directory / "journal.db-wal").stat().st_size
    return directory


def read_only(directory: Path) -> list[str]:
    return mounted(f"mount --bind {directory} {directory}; mount -o remount,ro,bind {directory}")


def check_readable(tmp_path: Path, directory: Path) -> None:
    before = sorted(path.name for path in directory.iterdir())
    with Child(tmp_path, "read", directory, within=read_only(directory)) as child:
        child.finish()
        assert child.errors() == []
        assert [words[1] for words in child.said("m")] == ["mine"]
    assert sorted(path.name for path in directory.iterdir()) == before


def test_a_read_only_journal_that_was_closed_can_be_read(tmp_path: Path) -> None:
    check_readable(tmp_path, owned_once(tmp_path))


def test_a_read_only_journal_that_was_not_closed_can_be_read(tmp_path: Path) -> None:
    check_readable(tmp_path, owned_and_killed(tmp_path))


def test_a_read_only_copy_with_its_log_can_be_read(tmp_path: Path) -> None:
    """A backup: the log was copied, the shared memory of its processes was not."""
    directory = owned_and_killed(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*-shm"))
    check_readable(tmp_path, copy)


@pytest.mark.parametrize("closed", [True, False])
def test_opening_a_read_only_journal_says_why_it_cannot(tmp_path: Path, closed: bool) -> None:
    directory = owned_once(tmp_path) if closed else owned_and_killed(tmp_path)
    with Child(tmp_path, "own", directory, within=read_only(directory)) as child:
        child.finish()
        (error,) = child.errors()
        assert error["type"] == "JournalUnusable"
        assert error["path"] == str(directory)
        assert "Read-only file system" in error["why"]
