"""The pages of a SQLite file as they are on disk, for a database whose structure is damaged."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trunkline.journal import database as files
from trunkline.journal.repair.checks import look_at_batch
from trunkline.journal.repair.scanner import shapes, text


def put_right(path: Path, first_page: bytes) -> None:
    """Restore the first page, which is the same in every journal, and the file length of a database.

    All tables are created together with a journal, so they begin at the same pages in every journal.
    """
    pages = max(1, -(-path.stat().st_size // files.PAGE_BYTES))
    with path.open("r+b") as file:
        # The page count on a damaged page is not used.
        file.write(first_page[:28] + pages.to_bytes(4, "big") + bytes(8) + first_page[40:])
        file.truncate(pages * files.PAGE_BYTES)


def batches_on_pages(path: Path) -> Iterator[tuple[Any, ...]]:
    """All batches on any page of a database. Each is verified by its checksum."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        pages = Pages(data)
        for number in range(2, len(data) // files.PAGE_BYTES + 1):
            for values in pages.rows(number):
                if len(values) == len(shapes()["batches"].names) and look_at_batch(values) is None:
                    yield values


class Pages:
    """The pages of a database, read without its tree structure. See https://sqlite.org/fileformat.html."""

    LEAF = 0x0D

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data

    def rows(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The rows on a page, if it is a leaf page of a table. The first column is the key."""
        page = self._page(number)
        if page[0] != self.LEAF:
            return
        for at in range(int.from_bytes(page[3:5], "big")):
            with contextlib.suppress(IndexError, ValueError):
                yield self._row(page, int.from_bytes(page[8 + 2 * at : 10 + 2 * at], "big"))

    def _page(self, number: int) -> bytes:
        if number < 1:
            raise ValueError("there is no such page")
        return self._data[(number - 1) * files.PAGE_BYTES : number * files.PAGE_BYTES]

    def _row(self, page: bytes, at: int) -> tuple[Any, ...]:
        size, at = _varint(page, at)
        key, at = _varint(page, at)
        if size > len(self._data):
            raise ValueError("the length of the row exceeds the file")
        here = size
        most = files.PAGE_BYTES - 35
        if size > most:
            least = (files.PAGE_BYTES - 12) * 32 // 255 - 23
            here = least + (size - least) % (files.PAGE_BYTES - 4)
            here = here if here <= most else least
        parts = [page[at : at + here]]
        following = int.from_bytes(page[at + here : at + here + 4], "big")
        while (size := size - len(parts[-1])) > 0:
            page = self._page(following)
            following = int.from_bytes(page[:4], "big")
            parts.append(page[4 : 4 + size])
            if not parts[-1]:
                raise ValueError("it ends too early")
        return self._columns(b"".join(parts), key)

    def _columns(self, record: bytes, key: int) -> tuple[Any, ...]:
        end, at = _varint(record, 0)
        kinds = []
        while at < end:
            kind, at = _varint(record, at)
            kinds.append(kind)
        values: list[Any] = []
        for kind in kinds:
            size = (kind - 12) // 2 if kind >= 12 else (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)[kind]
            data = record[at : at + size]
            at += size
            if kind >= 12:
                values.append(bytes(data) if kind % 2 == 0 else text(data))
            else:
                values.append(kind - 8 if kind >= 8 else int.from_bytes(data, "big", signed=True) if kind else key)
        return tuple(values)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint of one to nine bytes, and its end."""
    value = 0
    for count in range(9):
        byte = data[at + count]
        if count == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + count + 1
    raise AssertionError
