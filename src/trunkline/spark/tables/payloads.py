"""Decoding and checking of payloads in Arrow batches. The results are text, and descriptions of problems.

An input batch has at most 64 MiB or one payload (`spark.sql.execution.arrow.maxBytesPerBatch`). Output is sent in
pieces of 16 MiB. The memory of a worker therefore does not depend on the number of large payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from trunkline import arrays
from trunkline.codec import JSON, RAW, decode, restore
from trunkline.errors import PayloadError
from trunkline.schema import Checker, Problem, hash_of
from trunkline.spark.tables.channel_contracts import Finder
from trunkline.spark.tables.table import ChannelContract

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIECE_BYTES = 16 * 1024 * 1024
NEEDED = ("topic", "payload", "content_type", "encoding")
"""The columns of a message that are needed to read its payload."""


class Packet(NamedTuple):
    topic: str
    payload: bytes
    content_type: str
    encoding: str


Look = Callable[[Packet], tuple[Any, ...] | None]
"""Returns a value for each new column of a payload, the longest first; None to leave out the row."""


def texts(rows: DataFrame, carried: Sequence[str]) -> DataFrame:
    """Add `text`, the payload as JSON, or else `problem`, the reason. Only the columns in `carried` are kept."""
    return _looked_at(rows, carried, "text string, problem string", _as_text)


def verdicts(rows: DataFrame, carried: Sequence[str], channels: tuple[ChannelContract, ...]) -> DataFrame:
    """Check payloads against the schemas of their channels. Rows on topics without a schema are left out."""
    columns = "channel string, schema_hash string, ok boolean, field string, problem string"
    return _looked_at(rows, carried, columns, _Verdicts(channels))


def conforming(rows: DataFrame, carried: Sequence[str], channel: ChannelContract) -> DataFrame:
    """The payloads that conform to the schema of their channel, as JSON `text`. Other rows are left out."""
    return _looked_at(rows, carried, "text string", _Conforming(channel))


# One payload


def value_of(packet: Packet) -> Any:
    """The payload as plain values. Raises PayloadError."""
    return decode(_plain(packet), packet.content_type)


def _plain(packet: Packet) -> bytes:
    if packet.content_type in arrays.FORMATS:
        raise PayloadError(f"the payload is an array or a table ({packet.content_type})")
    return packet.payload if not packet.encoding else restore(packet.payload, packet.encoding)


def json_of(packet: Packet) -> str:
    """The payload as JSON text. JSON is unchanged, MessagePack is converted. Raises PayloadError."""
    if packet.content_type == RAW:
        raise PayloadError("the payload is raw bytes")
    plain = _plain(packet)
    value: Any = decode(plain, packet.content_type)
    return str(plain, "utf-8") if packet.content_type == JSON else written(value)


def written(value: Any) -> str:
    """The value as JSON, with unique keys. Raises PayloadError for values that JSON cannot represent."""
    try:
        return str(msgspec.json.encode(value), "utf-8")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadError(f"the payload cannot be written as JSON: {error}") from error


def _problem(packet: Packet, checker: Checker) -> tuple[Any, Problem | None]:
    """The value, and its problem if it does not conform. An unreadable payload does not conform, as in the hub."""
    try:
        value = value_of(packet)
    except PayloadError as error:
        return None, ("$", str(error))
    return value, checker(value, len(packet.payload))


# Factories of `Look`. They are created on the driver and pickled. A worker calls them once for each partition.


def _as_text() -> Look:
    def look(packet: Packet) -> tuple[str | None, str | None]:
        try:
            return json_of(packet), None
        except PayloadError as error:
            return None, str(error)

    return look


@dataclass(frozen=True)
class _Verdicts:
    channels: tuple[ChannelContract, ...]

    def __call__(self) -> Look:
        finder = Finder(self.channels)
        known: dict[str, tuple[str, str, Checker] | None] = {}

        def contract(topic: str) -> tuple[str, str, Checker] | None:
            channel = finder.find(topic)
            if channel is None or channel.schema is None:
                return None
            return channel.name, hash_of(channel.schema), Checker(channel.schema)

        def look(packet: Packet) -> tuple[Any, ...] | None:
            try:
                found = known[packet.topic]
            except KeyError:
                found = known[packet.topic] = contract(packet.topic)
            if found is None:
                return None
            name, hash, checker = found
            _, problem = _problem(packet, checker)
            return (name, hash, True, None, None) if problem is None else (name, hash, False, *problem)

        return look


@dataclass(frozen=True)
class _Conforming:
    channel: ChannelContract

    def __call__(self) -> Look:
        checker = Checker(self.channel.schema)

        def look(packet: Packet) -> tuple[str | None] | None:
            value, problem = _problem(packet, checker)
            if problem is not None:
                return None
            try:
                return (written(value),)
            except PayloadError:
                return (None,)  # it conforms, but cannot be written as JSON

        return look


# Batches


def _looked_at(rows: DataFrame, carried: Sequence[str], columns: str, make: Callable[[], Look]) -> DataFrame:
    wanted = rows.select(*dict.fromkeys((*carried, *NEEDED)))
    kept = ", ".join(f"`{name}` {rows.schema[name].dataType.simpleString()}" for name in carried)
    return wanted.mapInArrow(_Batches(tuple(carried), _arrow(columns), make), f"{kept}, {columns}")


def _arrow(columns: str) -> pa.Schema:
    types = {"string": pa.string(), "boolean": pa.bool_()}
    named = [column.split() for column in columns.split(", ")]
    return pa.schema([(name, types[kind]) for name, kind in named])


@dataclass(frozen=True)
class _Batches:
    carried: tuple[str, ...]
    schema: pa.Schema
    make: Callable[[], Look]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        look = self.make()
        for batch in batches:
            places: list[int] = []
            results: list[tuple[Any, ...]] = []
            size = 0
            for place, packet in enumerate(packets(batch)):
                found = look(packet)
                if found is None:
                    continue
                places.append(place)
                results.append(found)
                size += len(found[0] or "")
                if size >= PIECE_BYTES:
                    yield self._piece(batch, places, results)
                    places, results, size = [], [], 0
            if results:
                yield self._piece(batch, places, results)

    def _piece(self, batch: pa.RecordBatch, places: list[int], results: list[tuple[Any, ...]]) -> pa.RecordBatch:
        kept = batch.select(list(self.carried))
        if len(places) < batch.num_rows:
            kept = kept.take(pa.array(places, pa.int64()))
        columns = [
            pa.array(column, type) for column, type in zip(zip(*results, strict=True), self.schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*kept.columns, *columns], names=[*self.carried, *self.schema.names])


def packets(batch: pa.RecordBatch) -> Iterator[Packet]:
    return map(Packet, *(_values(batch.column(name)) for name in NEEDED))


def _values(column: pa.Array) -> Iterator[Any]:
    if pa.types.is_binary(column.type):
        return _slices(column)
    # There are few different topics and formats: each is decoded once.
    coded = column.dictionary_encode()
    return map(coded.dictionary.to_pylist().__getitem__, coded.indices.to_pylist())


def _slices(column: pa.Array) -> Iterator[bytes]:
    """Payloads one by one: a list would hold a second copy of all of them."""
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    return (bytes(view[start:end]) for start, end in pairwise(ends))
