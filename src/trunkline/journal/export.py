"""Copies messages to a separate file, completely or not at all."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from trunkline.errors import UsageError
from trunkline.journal.layout import MESSAGES, to_messages
from trunkline.message import Message


class Format(enum.StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    JSONL = "jsonl"

    @classmethod
    def of(cls, path: Path) -> Format:
        try:
            return cls(path.suffix.removeprefix(".").lower())
        except ValueError:
            known = ", ".join(f".{each.value}" for each in cls)
            raise UsageError(f"cannot tell the format of {path.name!r} by its ending: use one of {known}") from None


def export_to(path: Path, kind: Format, batches: Iterable[pa.RecordBatch], line: Callable[[Message], bytes]) -> int:
    """Write batches of messages to a file. Returns the number of messages. `line` turns a message into a line of JSON.

    The file is replaced when the new one is complete on disk. An incomplete file is removed.
    """
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory, pass the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {path.parent}, create it first")
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with hidden.open("wb") as file:
            rows = _write(file, kind, batches, line)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
    return rows


def _write(file: BinaryIO, kind: Format, batches: Iterable[pa.RecordBatch], line: Callable[[Message], bytes]) -> int:
    rows = 0
    match kind:
        case Format.PARQUET:
            with pq.ParquetWriter(file, MESSAGES, compression="zstd") as parquet:
                for batch in batches:
                    parquet.write_batch(batch)
                    rows += batch.num_rows
        case Format.ARROW:
            with pa.ipc.new_file(file, MESSAGES) as arrow:
                for batch in batches:
                    arrow.write_batch(batch)
                    rows += batch.num_rows
        case Format.JSONL:
            for batch in batches:
                file.writelines(line(message) + b"\n" for message in to_messages(batch))
                rows += batch.num_rows
    return rows
