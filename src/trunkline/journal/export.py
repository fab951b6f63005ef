"""Copies of messages in a file of their own, whole or not at all."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
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


def export_to(
    path: Path, kind: Format, batches: Iterable[pa.RecordBatch], record: Callable[[Message], dict[str, Any]]
) -> int:
    """Write batches of messages to a file; how many messages that were. What is half done is removed again."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        rows = _write(hidden, kind, batches, record)
        os.replace(hidden, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)
    return rows


def _write(
    path: Path, kind: Format, batches: Iterable[pa.RecordBatch], record: Callable[[Message], dict[str, Any]]
) -> int:
    rows = 0
    match kind:
        case Format.PARQUET:
            with pq.ParquetWriter(path, MESSAGES, compression="zstd") as parquet:
                for batch in batches:
                    parquet.write_batch(batch)
                    rows += batch.num_rows
        case Format.ARROW:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, MESSAGES) as arrow:
                for batch in batches:
                    arrow.write_batch(batch)
                    rows += batch.num_rows
        case Format.JSONL:
            encode = msgspec.json.Encoder(enc_hook=str).encode
            with path.open("wb") as lines:
                for batch in batches:
                    lines.writelines(encode(record(message)) + b"\n" for message in to_messages(batch))
                    rows += batch.num_rows
    return rows
