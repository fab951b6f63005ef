"""The identity of a journal: made once, kept through closing, sealing, copying and repair; another one is refused."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import uuid
from pathlib import Path

import pytest

from tests.journal.journals import fill, journal_in
from trunkline.journal import Reader
from trunkline.journal.database import FILE, PAGE_BYTES
from trunkline.journal.errors import WrongJournal
from trunkline.journal.repair.repair import repair
from trunkline.journal.stats import stats


def identity_of(directory: Path) -> str | None:
    with Reader(directory) as reader:
        return reader.identity


def change(directory: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(directory / FILE, isolation_level=None)) as database:
        database.execute(statement)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with journal_in(tmp_path / "a journal") as journal:
        fill(journal, 3)
    return tmp_path / "a journal"


def test_a_journal_has_a_uuid_from_the_start_and_keeps_it(directory: Path, tmp_path: Path) -> None:
    identity = identity_of(directory)
    assert identity is not None
    assert str(uuid.UUID(identity)) == identity
    with journal_in(directory) as journal:
        assert journal.identity == identity
        fill(journal, 3)
        journal.seal(everything=True)
    assert identity_of(directory) == identity == stats(directory).identity
    with journal_in(tmp_path / "another"):
        pass
    assert identity_of(tmp_path / "another") not in (None, identity)


def test_a_copy_has_the_identity_of_the_original(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "copy")
    assert identity_of(tmp_path / "copy") == identity_of(directory)


def test_a_journal_of_an_older_version_gets_one_when_it_is_opened_for_writing(directory: Path) -> None:
    change(directory, "DROP TABLE identity")
    assert identity_of(directory) is None
    assert stats(directory).identity is None
    with journal_in(directory) as journal:
        identity = journal.identity
    assert identity_of(directory) == identity == str(uuid.UUID(identity))


def test_a_damaged_identity_is_replaced_and_places_of_the_old_one_are_refused(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = identity_of(directory)
    change(directory, "UPDATE identity SET uuid = CAST(X'FF00' AS TEXT)")
    assert identity_of(directory) is None
    assert "damaged" in caplog.text
    with journal_in(directory):
        pass
    with Reader(directory) as reader, pytest.raises(WrongJournal):
        reader.expect(before)


def test_a_repair_keeps_the_identity(directory: Path) -> None:
    before = identity_of(directory)
    with contextlib.closing(sqlite3.connect(directory / FILE)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'batches_by_topic'").fetchone()
    with (directory / FILE).open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(bytes([255]) * PAGE_BYTES)
    assert repair(directory).aside
    assert identity_of(directory) == before


def test_an_identity_that_a_repair_cannot_read_is_named_as_lost(directory: Path) -> None:
    before = identity_of(directory)
    with contextlib.closing(sqlite3.connect(directory / FILE)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'identity'").fetchone()
    with (directory / FILE).open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(bytes([255]) * PAGE_BYTES)
    assert [finding.where for finding in repair(directory).lost] == ["identity"]
    assert identity_of(directory) not in (None, before)


def test_a_journal_whose_database_is_gone_is_another_one(directory: Path) -> None:
    before = identity_of(directory)
    with journal_in(directory) as journal:
        journal.seal(everything=True)
    (directory / FILE).unlink()
    repair(directory)
    # What was not sealed is gone, and its numbers may be given again.
    assert identity_of(directory) not in (None, before)


def test_a_place_fits_its_own_journal_and_an_older_place_without_identity_fits_any(
    directory: Path, tmp_path: Path
) -> None:
    with journal_in(tmp_path / "another"):
        pass
    with Reader(directory) as reader:
        reader.expect(reader.identity)
        reader.expect(None)
        other = identity_of(tmp_path / "another")
        with pytest.raises(WrongJournal, match="restore that journal") as caught:
            reader.expect(other)
    assert (caught.value.expected, caught.value.found) == (other, identity_of(directory))


def test_a_journal_without_identity_is_not_the_one_that_has_it(directory: Path) -> None:
    before = identity_of(directory)
    change(directory, "DROP TABLE identity")
    with Reader(directory) as reader, pytest.raises(WrongJournal, match="without an identity"):
        reader.expect(before)
