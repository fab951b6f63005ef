"""Schemas of frames: how the bytes of a slot are written and viewed. numpy dtypes, Arrow schemas, raw bytes.

The hash is over fields, types, shapes, offsets and packing: two layouts with the same hash read each other's bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.errors import InvalidPayload, InvalidSettings, MessageTooLarge, MissingExtra
from trunkline.schema import hash_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class Layout(ABC):
    kind: str

    def __init__(self, description: dict[str, Any], fixed_bytes: int | None) -> None:
        self.description = {"kind": self.kind, **description}
        self.fixed_bytes = fixed_bytes
        """The size of every frame; None if frames differ in size."""

    @cached_property
    def json_schema(self) -> dict[str, Any]:
        """The schema for the registry of a hub, which compares formats but does not check payloads."""
        digest = sha256(msgspec.json.encode(self.description, order="deterministic")).hexdigest()
        return {"format": f"trunkline-frame-{digest}", "x-layout": self.description}

    @cached_property
    def hash(self) -> str:
        return hash_of(self.json_schema)

    @abstractmethod
    def view(self, memory: memoryview) -> Any:
        """The view of a frame's bytes for a consumer, without a copy."""

    @abstractmethod
    def target(self, memory: memoryview) -> Any:
        """The memory that a producer writes to."""

    @abstractmethod
    def put(self, memory: memoryview, value: Any) -> int:
        """Write a value; return its size in bytes. Raises InvalidPayload and MessageTooLarge."""


class ArrayLayout(Layout):
    """A numpy array, or a record of a structured dtype, of a fixed shape: `np.dtype(("uint16", (480, 640)))`."""

    kind = "numpy"

    def __init__(self, dtype: np.dtype[Any]) -> None:
        if dtype.hasobject:
            raise InvalidSettings(f"{dtype} has Python objects, which cannot be in shared memory")
        if not dtype.itemsize:
            raise InvalidSettings(f"{dtype} has a size of 0 bytes: a frame needs at least one")
        super().__init__(_described(dtype), dtype.itemsize)
        import numpy as np

        self._base = dtype.base
        self._shape = dtype.shape
        self._count = dtype.itemsize // dtype.base.itemsize
        self._bytes = dtype.itemsize
        self._one_dimension = len(dtype.shape) == 1
        # Not np.ndarray(…, buffer=memory), which can be made writable again: writing to it would kill the process.
        self._from_buffer = np.frombuffer
        self._copy = np.copyto

    def view(self, memory: memoryview) -> Any:
        array = self._from_buffer(memory, self._base, self._count)
        return array if self._one_dimension else array.reshape(self._shape)

    target = view

    def put(self, memory: memoryview, value: Any) -> int:
        try:
            self._copy(self.view(memory), value, "same_kind")
        except (TypeError, ValueError) as error:
            raise InvalidPayload(f"a frame has the type {self._base} and the shape {self._shape}: {error}") from error
        return self._bytes


class BytesLayout(Layout):
    """Raw bytes, up to the size of a slot."""

    kind = "bytes"

    def __init__(self) -> None:
        super().__init__({}, None)

    def view(self, memory: memoryview) -> Any:
        return memory

    def target(self, memory: memoryview) -> Any:
        return memory

    def put(self, memory: memoryview, value: Any) -> int:
        try:
            given = memoryview(value).cast("B")
        except TypeError as error:
            raise InvalidPayload(f"a frame of this channel is bytes: {error}") from error
        if given.nbytes > memory.nbytes:
            raise MessageTooLarge(given.nbytes, memory.nbytes)
        memory[: given.nbytes] = given
        return given.nbytes


class ArrowLayout(Layout):
    """A record batch as a complete Arrow stream, with its dictionaries."""

    kind = "arrow"

    def __init__(self, fields: dict[str, dict[str, Any]], schema: pa.Schema | None) -> None:
        super().__init__({"columns": fields}, None)
        self._schema = schema
        """The Arrow schema; None for a consumer."""

    @classmethod
    def of(cls, schema: pa.Schema) -> ArrowLayout:
        fields = {field.name: {"type": str(field.type), "nullable": field.nullable} for field in schema}
        if len(fields) != len(schema):
            raise InvalidSettings("two columns of the Arrow schema share a name")
        return cls(fields, schema)

    def view(self, memory: memoryview) -> Any:
        return _arrow().ipc.open_stream(_arrow().py_buffer(memory)).read_next_batch()

    def target(self, memory: memoryview) -> Any:
        raise InvalidSettings("a record batch is written as a whole: use send(batch) instead of loan()")

    def put(self, memory: memoryview, value: Any) -> int:
        pa = _arrow()
        if not isinstance(value, pa.RecordBatch) or not value.schema.equals(self._schema):
            raise InvalidPayload(f"a frame of this channel is a record batch with the schema {self._schema}")
        sink = stream = None
        try:
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
            stream = pa.ipc.new_stream(sink, self._schema)
            stream.write_batch(value)
            stream.close()
            return int(sink.tell())
        except (OSError, pa.ArrowInvalid) as error:
            raise MessageTooLarge(pa.ipc.get_record_batch_size(value), memory.nbytes) from error
        finally:
            # The traceback of an error must not keep the slot alive.
            del sink, stream


def layout_of(schema: Any) -> Layout:
    """The layout of a schema: a numpy dtype (or what makes one), an Arrow schema, or the type `bytes`."""
    if isinstance(schema, Layout):
        return schema
    if schema is bytes:
        return BytesLayout()
    if type(schema).__module__.partition(".")[0] == "pyarrow":
        return ArrowLayout.of(schema)
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra("memory", "arrays in shared memory") from error
    try:
        return ArrayLayout(np.dtype(schema))
    except TypeError as error:
        raise InvalidSettings(f"{schema!r} is not a numpy dtype, an Arrow schema or bytes: {error}") from error


def layout_from(description: dict[str, Any]) -> Layout:
    """The layout that was described by `Layout.description`."""
    match description["kind"]:
        case "bytes":
            return BytesLayout()
        case "arrow":
            return ArrowLayout(description["columns"], None)
        case _:
            return ArrayLayout(_dtype(description))


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """One text for each field that differs between two descriptions."""
    if expected["kind"] != found["kind"]:
        return [f"expected are {expected['kind']} frames, the channel has {found['kind']} frames"]
    ours, theirs = dict(_flat(expected)), dict(_flat(found))
    texts = []
    for name in [*ours, *(each for each in theirs if each not in ours)]:
        if ours.get(name) != theirs.get(name):
            texts.append(
                f"field {name!r}: expected is {ours.get(name, 'no such field')}, "
                f"the channel has {theirs.get(name, 'no such field')}"
            )
    return texts


def _flat(description: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, column in description.get("columns", {}).items():
        yield name, f"{column['type']}{'' if column['nullable'] else ' not null'}"
    shape = f" x {description['shape']}" if description.get("shape") else ""
    at = f" at byte {description['offset']}" if "offset" in description else ""
    if "type" in description:
        yield prefix or "(all)", f"{description['type']}{shape}{at}"
    elif "fields" in description:
        for field in description["fields"]:
            yield from _flat(field, f"{prefix}.{field['name']}" if prefix else field["name"])
        yield f"{prefix or '(record)'}", f"{description['bytes']} bytes a record{shape}{at}"


def _described(dtype: np.dtype[Any]) -> dict[str, Any]:
    base, found = dtype.base, {}
    if dtype.shape:
        found["shape"] = list(dtype.shape)
    if base.names is None or base.fields is None:
        return {**found, "type": base.str}
    fields = [{"name": name, "offset": base.fields[name][1], **_described(base.fields[name][0])} for name in base.names]
    return {**found, "fields": fields, "bytes": base.itemsize}


def _dtype(description: dict[str, Any]) -> np.dtype[Any]:
    import numpy as np

    if "type" in description:
        base: np.dtype[Any] = np.dtype(description["type"])
    else:
        fields = description["fields"]
        base = np.dtype(
            {
                "names": [field["name"] for field in fields],
                "formats": [_dtype(field) for field in fields],
                "offsets": [field["offset"] for field in fields],
                "itemsize": description["bytes"],
            }
        )
    return np.dtype((base, tuple(description["shape"]))) if "shape" in description else base


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        raise MissingExtra("journal", "Arrow record batches in shared memory") from error
    return pa
