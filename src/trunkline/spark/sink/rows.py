"""From rows to messages: turns Arrow batches into runs of messages, and rows that are not valid messages. No I/O.

A chunk is a fixed number of rows of a partition, independent of Spark's batches. So a task that is retried sends the
same batches, and the hub recognizes them by their first ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from trunkline import codec
from trunkline.brokers.remote.outbox import MAX_BODY_BYTES
from trunkline.errors import MAX_TTL_S, EncodeError, InvalidMessage, InvalidTopic, MessageTooLarge, TrunklineError
from trunkline.journal.layout import TYPES
from trunkline.message import NORMAL, Message, MessageType
from trunkline.spark.sink.row_columns import RowColumns
from trunkline.spark.sink.task_position import TaskPosition
from trunkline.topic import validate_topic
from trunkline.unchecked import unchecked_many

CHUNK = 2000
PUBLISH = MessageType.PUBLISH
ANSWERS = (MessageType.RESPONSE, MessageType.ACK)
OF_THE_BUS = (MessageType.SUBSCRIBE, MessageType.UNSUBSCRIBE)


class Chunk(NamedTuple):
    first: int
    """The index of its first row in the partition."""
    batch: pa.RecordBatch


class Chunker:
    """Splits the batches of a partition into chunks."""

    def __init__(self, rows: int = CHUNK) -> None:
        self._rows = rows
        self._held: list[pa.RecordBatch] = []
        self._count = 0
        self._next = 0

    def feed(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Returns the complete chunks."""
        start = 0
        while batch.num_rows - start >= self._rows - self._count:
            size = self._rows - self._count
            self._hold(batch.slice(start, size))
            yield self._cut()
            start += size
        self._hold(batch.slice(start))

    def rest(self) -> Iterator[Chunk]:
        """Returns the last chunk."""
        if self._count:
            yield self._cut()

    def _hold(self, part: pa.RecordBatch) -> None:
        if part.num_rows:
            self._held.append(part)
            self._count += part.num_rows

    def _cut(self) -> Chunk:
        whole = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        chunk = Chunk(self._next, whole)
        self._next += self._count
        self._held, self._count = [], 0
        return chunk


class Run(NamedTuple):
    """Messages of one kind, in order: one topic, priority, ttl and need of acknowledgement."""

    messages: list[Message]
    rows: list[int]
    """The row index of each message."""

    @property
    def topic(self) -> str:
        return self.messages[0].topic


class Bad(NamedTuple):
    """A row that is not a valid message."""

    row: int
    topic: str
    error: Exception


class Encoded(NamedTuple):
    runs: list[Run]
    bad: list[Bad]


class Encoder:
    def __init__(self, columns: RowColumns, place: TaskPosition, sender: str, max_bytes: int) -> None:
        self._columns = columns
        self._place = place
        self._sender = sender
        self._max_bytes = max_bytes

    def encode(self, chunk: Chunk, now_ns: int) -> Encoded:
        first = chunk.first
        fields, broken = self._fields(chunk, now_ns)
        messages: list[Message | None] = [*unchecked_many(*fields.values())]
        bad: list[Bad] = []
        for index in sorted(self._doubtful(fields) | broken.keys()):
            values = {name: column[index] for name, column in fields.items()}
            try:
                if (error := broken.get(index)) is not None:
                    raise error
                messages[index] = self._checked(values)
            except TrunklineError as error:
                messages[index] = None
                bad.append(Bad(first + index, values["topic"], error))
        good = [(row, message) for row, message in enumerate(messages, first) if message is not None]
        return Encoded(runs_of(good), bad)

    def _fields(self, chunk: Chunk, now_ns: int) -> tuple[dict[str, list[Any]], dict[int, EncodeError]]:
        """The fields of all rows, in the order of Message, and the rows whose payload cannot be encoded."""
        columns, batch = self._columns, chunk.batch
        count = batch.num_rows
        payloads, kind, broken = _payloads(columns, batch)

        def column(name: str, default: Any) -> list[Any]:
            place = columns.fields.get(name)
            if place is None:
                return [default] * count
            values = _plain(batch.column(place))
            return values if default is None else [default if value is None else value for value in values]

        ids = self._place.ids(chunk.first, count)
        if "id" in columns.fields:
            ids = [own or made for own, made in zip(column("id", ""), ids, strict=True)]
        fields = {
            "id": ids,
            "topic": column("topic", columns.topic or ""),
            "payload": payloads,
            "timestamp_ns": [now_ns] * count,
            "seq": [0] * count,
            "sender": column("sender", self._sender),
            "content_type": column("content_type", columns.content_type or kind),
            "type": list(map(_type, column("type", PUBLISH))),
            "recipient": column("recipient", None),
            "priority": column("priority", NORMAL),
            "ttl_s": [None if ttl is None else float(ttl) for ttl in column("ttl_s", None)],
            "request_id": column("request_id", None),
            "correlation_id": column("correlation_id", None),
            "reply_to": column("reply_to", None),
            "attempts": [0] * count,
            "requires_ack": column("requires_ack", False),
            "encoding": column("encoding", ""),
            "schema": column("schema", None),
            "trace": column("trace", None),
            "headers": column("headers", None),
        }
        return fields, broken

    def _doubtful(self, fields: dict[str, list[Any]]) -> set[int]:
        """Rows that need a full check. All others are valid messages."""
        found: set[int] = set()
        present = self._columns.fields
        valid = {topic: _is_topic(topic) for topic in set(fields["topic"])}
        if not all(valid.values()):
            found.update(index for index, topic in enumerate(fields["topic"]) if not valid[topic])
        sizes = list(map(len, fields["payload"]))
        if max(sizes) > self._max_bytes:
            found.update(index for index, size in enumerate(sizes) if size > self._max_bytes)
        if "priority" in present:
            found.update(index for index, value in enumerate(fields["priority"]) if not 0 <= value <= 100)
        if "ttl_s" in present:
            ttls = enumerate(fields["ttl_s"])
            found.update(index for index, ttl in ttls if ttl is not None and not 0 < ttl <= MAX_TTL_S)
        if "type" in present:
            types = enumerate(fields["type"])
            found.update(index for index, kind in types if kind.__class__ is not MessageType or kind in OF_THE_BUS)
            found.update(
                index
                for index, (kind, asked) in enumerate(zip(fields["type"], fields["request_id"], strict=True))
                if kind in ANSWERS and not asked
            )
        if "headers" in present:
            headers = enumerate(fields["headers"])
            found.update(index for index, given in headers if given is not None and None in given.values())
        for name in ("content_type", "sender"):
            if name in present:
                found.update(index for index, value in enumerate(fields[name]) if not value)
        return found

    def _checked(self, values: dict[str, Any]) -> Message:
        """A fully checked message. Raises InvalidMessage and others."""
        if values["type"] in OF_THE_BUS:
            raise InvalidMessage(f"{values['type'].name} is reserved for the bus and cannot be written")
        if len(values["payload"]) > self._max_bytes:
            raise MessageTooLarge(len(values["payload"]), self._max_bytes)
        return Message(**values)


def _is_topic(topic: str) -> bool:
    try:
        validate_topic(topic)
    except InvalidTopic:
        return False
    return True


def _type(value: Any) -> Any:
    """The message type of a name or a number; other values are returned unchanged."""
    if value is PUBLISH:
        return value
    if isinstance(value, str):
        return TYPES.get(value.lower(), value)
    try:
        return MessageType(value)
    except ValueError:
        return value


def _payloads(columns: RowColumns, batch: pa.RecordBatch) -> tuple[list[bytes], str, dict[int, EncodeError]]:
    """The payloads, their format, and the rows that could not be encoded."""
    if columns.payload is None:
        values: list[Any] = [
            dict(zip(columns.rest, row, strict=True))
            for row in zip(*(_plain(batch.column(place)) for place in columns.rest.values()), strict=True)
        ] or [{}] * batch.num_rows
    else:
        column = batch.column(columns.payload)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) or pa.types.is_null(column.type):
            return [value or b"" for value in column.to_pylist()], codec.RAW, {}
        values = _plain(column)
    broken: dict[int, EncodeError] = {}
    payloads: list[bytes] = []
    for index, value in enumerate(values):
        try:
            payloads.append(codec.encode(value, codec.JSON)[0])
        except EncodeError as error:
            broken[index] = error
            payloads.append(b"")
    return payloads, codec.JSON, broken


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def runs_of(messages: Iterable[tuple[int, Message]]) -> list[Run]:
    """Messages by kind, with their rows.

    Messages of one topic and priority stay in order. The size of a run is bounded.
    """
    lines: dict[tuple[str, int], list[Run]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for row, message in messages:
        key = (message.topic, message.priority)
        size = len(message.payload)
        line = lines.setdefault(key, [])
        if line and _alike(line[-1].messages[0], message) and sizes[key] + size <= MAX_BODY_BYTES:
            line[-1].messages.append(message)
            line[-1].rows.append(row)
            sizes[key] += size
        else:
            line.append(Run([message], [row]))
            sizes[key] = size
    return [run for line in lines.values() for run in line]


def _alike(one: Message, other: Message) -> bool:
    return one.ttl_s == other.ttl_s and one.requires_ack == other.requires_ack
