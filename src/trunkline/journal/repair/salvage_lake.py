"""Salvage: corrects the journal's list of the lake. The readable part of a damaged file becomes a new file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.journal.repair.checks import (
    MISRECORDED,
    lake_files,
    look_into_file,
    sealed_files,
    topic_shares,
    written_down,
)
from trunkline.journal.repair.findings import Finding, Span
from trunkline.plural import counted

if TYPE_CHECKING:
    from trunkline.journal.lake import Sealed

ASIDE = "damaged"
"""The folder for damaged files that were replaced by their readable part."""


class Salvage:
    """The repair of the lake. Its results are in `lost` and `aside`."""

    def __init__(self, folder: Path, now_ns: int) -> None:
        self._folder = folder
        self._now_ns = now_ns
        self.lost: list[Finding] = []
        self.aside: list[str] = []
        self._gone: list[Finding] = []
        """Missing files. They may be found in another place."""

    def run(self, database: sqlite3.Connection) -> None:
        self._mend_files(database)
        self._take_in_strangers(database)

    def _mend_files(self, database: sqlite3.Connection) -> None:
        shares = topic_shares(database)
        for file in sealed_files(database)[0]:
            if (finding := look_into_file(self._folder, file, shares)) is not None:
                path = self._folder / file.path
                if path.exists():
                    self._take_in(database, path, file.kind, finding)
                else:
                    self._swap(database, file.path, None)
                    self._gone.append(finding)

    def _take_in_strangers(self, database: sqlite3.Connection) -> None:
        """Add files in the lake that the journal does not list. The next start would remove them.

        The newest first: older files from which it was joined are not added again.
        """
        known = {path for (path,) in database.execute("SELECT path FROM files")}
        strangers = [path for path in lake_files(self._folder) if self._name(path) not in known]
        for path in sorted(strangers, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            kind = path.relative_to(self._folder).parts[0]
            if self._is_wanted(database, path, kind):
                self._take_in(database, path, kind, None)
            else:
                self._put_aside(path)
                path.unlink()
        there = {(file.first, file.last) for file in sealed_files(database)[0]}
        self.lost += [finding for finding in self._gone if (finding.first, finding.last) not in there]

    def _is_wanted(self, database: sqlite3.Connection, path: Path, kind: str) -> bool:
        try:
            _, first, last = written_down(path, kind)
        except Exception:
            # pyarrow can raise any error for a damaged file. Its readable part is determined later.
            return True
        overlaps = "SELECT count(*) FROM files WHERE kind = ? AND replaced_ns IS NULL AND first <= ? AND last >= ?"
        if database.execute(overlaps, (kind, last, first)).fetchone()[0]:
            return False
        # The process died before this file was listed: the journal still has all its rows.
        table, key, end = ("batches", "first", "last") if kind == "messages" else ("fates", "number", "number")
        beside = f"SELECT count(*) FROM {table} WHERE {key} <= ? AND {end} >= ?"
        return not database.execute(beside, (last, first)).fetchone()[0]

    def _take_in(self, database: sqlite3.Connection, path: Path, kind: str, finding: Finding | None) -> None:
        """List a file again: unchanged if it is intact, otherwise its readable part."""
        import pyarrow as pa

        from trunkline.journal import lake

        saved: list[Span] = []
        day = path.parent.name.removeprefix("date=")
        whole = lake.Tally(kind)
        expected = _rows_of(path)
        for batch in _readable(path, kind, saved):
            whole.add(pa.Table.from_batches([batch]))
        name = self._name(path)
        if whole.rows and whole.rows == expected and (finding is None or finding.why == MISRECORDED):
            file = whole.file(name, day, path.stat().st_size, lake.checksum_of(path))
            self._swap(database, name, lake.Sealed(file, whole.topics))
            return
        mended = lake.write(self._folder, kind, day, _readable(path, kind, []))
        self._name_lost(path, kind, finding, saved, whole.rows, expected)
        self._put_aside(path)
        self._swap(database, name, mended)
        path.unlink()

    def _name_lost(
        self, path: Path, kind: str, finding: Finding | None, saved: list[Span], rows: int, expected: int | None
    ) -> None:
        if rows == expected:
            # The damage did not affect any row.
            return
        of = "its rows" if expected is None else counted(expected, "row")
        why = f"{finding.why if finding else 'it is damaged'}; {rows:,} of {of} saved"
        name = self._name(path)
        if kind != "messages":
            self.lost.append(Finding(name, why))
            return
        # The file name has the numbers, and is not affected by damage to the content.
        first, last = (int(number) for number in path.stem.split("-")[:2])
        for begin, end in [*saved, (last + 1, last)]:
            if first < begin:
                self.lost.append(Finding(name, why, first, begin - 1))
            first = end + 1

    def _swap(self, database: sqlite3.Connection, old: str, new: Sealed | None) -> None:
        """Replace a file by another one in the list.

        A needed file is always listed: the next start would otherwise remove it.
        """
        from trunkline.journal import lake

        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM files WHERE path = ?", (old,))
        database.execute("DELETE FROM file_topics WHERE path = ?", (old,))
        if new is not None:
            lake.record(database, new)
        database.execute("COMMIT")

    def _put_aside(self, path: Path) -> None:
        """Copy the file to the folder `damaged`. The caller removes the original when it is no longer needed."""
        store = self._folder / ASIDE
        store.mkdir(exist_ok=True)
        # Files of messages and of fates may have the same name.
        kind = path.relative_to(self._folder).parts[0]
        target = store / f"{self._now_ns}-{kind}-{path.name}"
        try:
            os.link(path, target)
        except OSError:
            # Not every file system supports hard links.
            shutil.copyfile(path, target)
        self.aside.append(self._name(target))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


def _rows_of(path: Path) -> int | None:
    """The number of rows according to the footer."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            return int(parquet.metadata.num_rows)
    except Exception:
        # pyarrow can raise any error for a damaged file.
        return None


def _readable(path: Path, kind: str, saved: list[Span]) -> Iterator[Any]:
    """The readable batches of a damaged file that appear to be intact, and their numbers."""
    import pyarrow.compute as pc

    from trunkline.journal import lake

    key = "seq" if kind == "messages" else "number"
    needed = ("seq", "id", "topic", "timestamp_ns", "payload") if kind == "messages" else lake.SCHEMAS[kind].names
    last = 0
    for batch in _salvaged(_row_groups(path)):
        if not batch.num_rows or set(batch.schema.names) != set(lake.SCHEMAS[kind].names):
            continue
        if any(batch.column(name).null_count for name in needed):
            continue
        numbers = batch.column(key)
        rising = pc.all(pc.greater(numbers[1:], numbers[:-1])).as_py()
        if rising is False or numbers[0].as_py() <= last:
            continue
        last = numbers[-1].as_py()
        saved.append((numbers[0].as_py(), last))
        yield batch


def _salvaged(batches: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except Exception:
        # pyarrow can raise any error for a damaged file. Everything before it is valid.
        return


def _row_groups(path: Path) -> Iterator[Any]:
    """The readable rows of a damaged file: in each row group, those before the damage."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from trunkline.journal import lake, layout

    with path.open("rb") as source:
        try:
            parquet = pq.ParquetFile(source, page_checksum_verification=True, **lake.IN_PARTS)
            schema = lake.SCHEMAS["messages" if "seq" in parquet.schema_arrow.names else "fates"]
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            return
        for group in range(parquet.num_row_groups):
            try:
                for batch in lake.group_slices(parquet, group):
                    yield layout.fit(batch, schema)
            except (OSError, pa.ArrowException, UnicodeDecodeError, KeyError):
                continue
