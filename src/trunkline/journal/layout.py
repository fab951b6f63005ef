"""The columns of the lake and of Arrow batches, and their version. docs/journal.md describes each.

A new column needs a new LAYOUT. Older files stay readable; their missing columns are null. Types are those that Spark
reads without a setting: times in microseconds, ids as text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from trunkline import columns
from trunkline.columns import DEFAULTS, Body, Strings
from trunkline.errors import JournalDamaged, MissingExtra
from trunkline.journal.body import StoredBatch, make_batch
from trunkline.message import Message, MessageType

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("journal", "the lake (Parquet files, Arrow batches)") from error

LAYOUT = 1
LAYOUT_KEY = b"trunkline.layout"
TIME = pa.timestamp("us", "UTC")
STAMP = {LAYOUT_KEY: str(LAYOUT).encode()}

MESSAGES = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("topic", pa.string()),
        ("time", TIME),
        ("accepted", TIME),
        ("type", pa.string()),
        ("sender", pa.string()),
        ("recipient", pa.string()),
        ("priority", pa.int32()),
        ("ttl_s", pa.float64()),
        ("request_id", pa.string()),
        ("correlation_id", pa.string()),
        ("reply_to", pa.string()),
        ("attempts", pa.int64()),
        ("requires_ack", pa.bool_()),
        ("content_type", pa.string()),
        ("encoding", pa.string()),
        ("schema", pa.string()),
        ("trace", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("timestamp_ns", pa.int64()),
        ("payload", pa.binary()),
    ],
    metadata=STAMP,
)

FATES = pa.schema(
    [
        ("number", pa.int64()),
        ("subscriber", pa.string()),
        ("pattern", pa.string()),
        ("fate", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("count", pa.int64()),
        ("reason", pa.string()),
        ("time", TIME),
    ],
    metadata=STAMP,
)

FEW = 16
"""Larger batches are converted column by column, smaller ones message by message."""

BATCH_BYTES = 16 * 1024 * 1024
"""The maximum size of an Arrow batch in memory, unless a single message is larger. Its 32-bit offsets end at 2 GiB."""
ROW_BYTES = 128
"""The approximate size of a message in an Arrow batch, without its texts and its payload."""

TYPE_NAMES = {kind: kind.name.lower() for kind in MessageType}
TYPES = {name: kind for kind, name in TYPE_NAMES.items()}


def of_rows(rows: Sequence[StoredBatch], on_damage: Callable[[JournalDamaged], None]) -> Iterator[pa.RecordBatch]:
    """Stored batches as Arrow batches of at most BATCH_BYTES. Damaged ones are reported and skipped."""
    held: list[tuple[StoredBatch, Body]] = []
    held_bytes = 0
    for row in rows:
        try:
            body = row.open()
        except JournalDamaged as damage:
            on_damage(damage)
            continue
        for part, part_body, size in _parts(row, body):
            if held and held_bytes + size > BATCH_BYTES:
                yield _batch(held)
                held, held_bytes = [], 0
            held.append((part, part_body))
            held_bytes += size
    if held:
        yield _batch(held)


def _parts(row: StoredBatch, body: Body) -> Iterator[tuple[StoredBatch, Body, int]]:
    """A stored batch and its size in Arrow, split if it is too large.

    A value that all messages share is stored once. In Arrow each message has its own.
    """
    size = _arrow_bytes(row, body)
    if size <= BATCH_BYTES or row.count == 1:
        yield row, body, size
        return
    messages = columns.build(row.topic, body, range(row.first, row.last + 1))
    middle = row.count // 2
    for half in (messages[:middle], messages[middle:]):
        part = make_batch(half, row.at_ns)
        yield from _parts(part, part.open())


def _arrow_bytes(row: StoredBatch, body: Body) -> int:
    size = len(body.ids.data) + len(body.payloads.data) + row.count * (len(row.topic) + ROW_BYTES)
    for value in body.rest.values():
        size += sum(map(_text_bytes, value)) if isinstance(value, list) else row.count * _text_bytes(value)
    return size


def _text_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return sum(_text_bytes(key) + _text_bytes(text) for key, text in value.items())
    return 0


def _batch(good: list[tuple[StoredBatch, Body]]) -> pa.RecordBatch:
    counts = [row.count for row, _ in good]
    times = _numbers(b"".join(body.times for _, body in good))
    arrays = {
        "seq": _seqs([row for row, _ in good]),
        "id": _strings([body.ids for _, body in good], counts, pa.string()),
        "topic": _spread([row.topic for row, _ in good], counts, pa.string()),
        "time": _micros(times),
        "accepted": _micros(_spread([row.at_ns for row, _ in good], counts, pa.int64())),
        "timestamp_ns": times,
        "payload": _strings([body.payloads for _, body in good], counts, pa.binary()),
    }
    columns = [
        arrays[field.name]
        if field.name in arrays
        else _spread([_value(body, field.name) for _, body in good], counts, field.type)
        for field in MESSAGES
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _numbers(data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(data) // 8, [None, pa.py_buffer(data)])


def _seqs(rows: list[StoredBatch]) -> pa.Array:
    """Consecutive numbers, without creating Python objects."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and runs[-1][1] + 1 == row.first:
            runs[-1] = (runs[-1][0], row.last)
        else:
            runs.append((row.first, row.last))
    one = pa.scalar(1, pa.int64())
    counted = [pc.cumulative_sum(pa.repeat(one, last - first + 1), start=first - 1) for first, last in runs]
    return pa.concat_arrays(counted) if counted else pa.array([], pa.int64())


def _strings(parts: list[Strings], counts: list[int], kind: pa.DataType) -> pa.Array:
    """Strings that are already stored end to end: only their offsets are computed."""
    sizes = [
        pa.repeat(pa.scalar(part.sizes, pa.int32()), count)
        if isinstance(part.sizes, int)
        else pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(part.sizes)])
        for part, count in zip(parts, counts, strict=True)
    ]
    ends = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int32()), *sizes]))
    data = parts[0].data if len(parts) == 1 else b"".join(part.data for part in parts)
    return pa.Array.from_buffers(kind, sum(counts), [None, ends.buffers()[1], pa.py_buffer(data)])


def _chain(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(parts))


def _value(body: Body, name: str) -> Any:
    value = body.rest.get(name, DEFAULTS[name])
    if name == "type":
        return [TYPE_NAMES[MessageType(each)] for each in value] if isinstance(value, list) else TYPE_NAMES[value]
    return value


def _spread(values: list[Any], counts: list[int], kind: pa.DataType) -> pa.Array:
    """A column from one value for each batch, or from lists where values differ within a batch."""
    first = values[0] if values else None
    if not isinstance(first, list) and values.count(first) == len(values):
        if first is None:
            return pa.nulls(sum(counts), kind)
        if not isinstance(first, dict):
            return pa.repeat(pa.scalar(first, kind), sum(counts))
    if len(values) < sum(counts) // FEW and not any(isinstance(value, list | dict) for value in values):
        return pa.concat_arrays(
            [pa.repeat(pa.scalar(value, kind), count) for value, count in zip(values, counts, strict=True)]
        )
    spread = (
        value if isinstance(value, list) else itertools.repeat(value, count)
        for value, count in zip(values, counts, strict=True)
    )
    return pa.array(_chain(spread), kind)


def _micros(nanos: pa.Array) -> pa.Array:
    return pc.divide(nanos, pa.scalar(1000, pa.int64())).cast(TIME)


def of_fates(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in FATES]
    *plain, at_ns = columns
    arrays = [pa.array(column, field.type) for column, field in zip(plain, FATES, strict=False)]
    return pa.RecordBatch.from_arrays([*arrays, _micros(pa.array(at_ns, pa.int64()))], schema=FATES)


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch from a file of an older layout, converted to the current columns."""
    if batch.schema.equals(schema):
        return batch
    arrays = [
        batch.column(field.name).cast(field.type) if field.name in batch.schema.names else _missing(batch, field)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _missing(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column that an older layout does not have, with its default."""
    value = TYPE_NAMES[MessageType.PUBLISH] if field.name == "type" else DEFAULTS.get(field.name)
    if value is None:
        return pa.nulls(batch.num_rows, field.type)
    return pa.repeat(pa.scalar(value, field.type), batch.num_rows)


def pieces(batch: pa.RecordBatch, max_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """A batch in parts of at most this many bytes in memory, unless a single row is larger."""
    if batch.nbytes <= max_bytes or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from pieces(batch.slice(0, middle), max_bytes)
    yield from pieces(batch.slice(middle), max_bytes)


def to_messages(batch: pa.RecordBatch) -> list[Message]:
    columns = [_values(batch, name) for name in Message.__struct_fields__]
    return list(map(Message, *columns))


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    values: list[Any] = batch.column(name).to_pylist()
    if name == "type":
        return [TYPES[value] for value in values]
    if name == "headers":
        return [None if value is None else dict(value) for value in values]
    return values
