"""Arrays and tables as payloads: numpy arrays in the .npy format, Arrow tables and record batches as an Arrow stream.

Decoded values are read-only views of the payload's memory. Nothing is ever unpickled. numpy and pyarrow are imported
when the first value or payload of their type is used.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
from struct import error as StructError
from struct import unpack_from
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

from trunkline.errors import EncodeError, InvalidPayload, MissingExtra

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

NPY: Final = "application/x-npy"
ARROW: Final = "application/vnd.apache.arrow.stream"
FORMATS: Final = frozenset({NPY, ARROW})
"""Formats that are neither JSON nor raw bytes. Schemas do not apply to them."""
MAX_HEADER: Final = 10_000
"""The maximum length of an array header in characters. numpy has the same limit."""
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_START: Final = len(_MAGIC) + 2
_CONTINUES: Final = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3


def encode(value: object) -> tuple[bytes, str] | None:
    """The bytes of an array or a table, and their content type; None if `value` is neither. Raises EncodeError."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _npy(value), NPY
    arrow: Any = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(value, (arrow.Table, arrow.RecordBatch)):
        return _stream(value), ARROW
    return None


def decoder(content_type: str, type: Any) -> ArrayDecoder | TableDecoder:
    """The decoder for payloads in one of FORMATS; raises InvalidPayload if `type` does not belong to that format."""
    try:
        return ArrayDecoder(type) if content_type == NPY else TableDecoder(type)
    except ImportError as error:
        extra = MissingExtra("memory", "a numpy array")
        if content_type == ARROW:
            extra = MissingExtra("journal", "an Arrow table")
        raise InvalidPayload(f"the payload cannot be read: {extra}") from error


def reads_in_place(content_type: str) -> bool:
    """Whether payloads of this format can be decoded in memory to which another process may write.

    Arrow keeps offsets and lengths in that memory. They must not change after the check, so Arrow reads a copy.
    """
    return content_type == NPY


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    import numpy as np

    dtype = array.dtype
    if isinstance(array, np.ma.MaskedArray):
        raise EncodeError("cannot send a masked array: the format has no place for the mask; send data and mask apart")
    if dtype.hasobject:
        raise EncodeError(f"cannot send an array of {dtype}: it holds Python objects; convert it to numbers or texts")
    head = np.lib.format.header_data_from_array_1_0(array)
    if np.lib.format.descr_to_dtype(head["descr"]) != dtype:
        raise EncodeError(f"cannot send an array of {dtype}: the .npy format does not have this type")
    header = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(header, head)
    except ValueError as error:
        raise EncodeError(f"cannot send an array of {dtype}: {error}") from error
    if header.tell() > MAX_HEADER:
        raise EncodeError(f"cannot send an array of {len(dtype)} fields: their names and types are too long")
    # A contiguous array is written in its memory order, with a single copy.
    flat = np.ascontiguousarray(array.T if head["fortran_order"] else array).reshape(-1)
    data = flat.view(np.uint8).data if dtype.itemsize else b""
    return b"".join((header.getvalue(), data))


def _stream(value: pa.Table | pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
    except pa.ArrowException as error:
        raise EncodeError(f"cannot send this table: {error}") from error
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class ArrayDecoder:
    """Payloads in the .npy format, as `np.ndarray` or `NDArray[…]` of a dtype."""

    def __init__(self, type: Any) -> None:
        import numpy as np

        self._np: Any = np
        self._kind: Any = None
        """The requested dtype, as a class of numpy scalars."""
        # From numpy 2.5 on, `NDArray` is an alias, which is expanded by hand.
        if (expanded := getattr(get_origin(type) or type, "__value__", None)) is not None:
            type = expanded[get_args(type)] if get_args(type) else expanded
        if get_origin(type) is np.ndarray:
            kind = (*get_args(get_args(type)[-1]), Any)[0]
            self._kind = kind if inspect.isclass(kind) else None
        elif type not in (np.ndarray, Any, object):
            raise InvalidPayload(f"the payload is a numpy array, and {_name(type)} was requested")

    def decode(self, payload: bytes | memoryview) -> Any:
        """A read-only view of the payload. Raises InvalidPayload."""
        try:
            array = self._read(payload)
        except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
            raise InvalidPayload(f"the payload is not an array in the .npy format: {error}") from error
        if self._kind is not None and not self._np.issubdtype(array.dtype, self._kind):
            raise InvalidPayload(f"the payload is an array of {array.dtype}, and {self._kind.__name__} was requested")
        return array

    def _read(self, payload: bytes | memoryview) -> Any:
        np = self._np
        # Copied, because another process may change this memory.
        start = bytes(payload[:_START])
        if not start.startswith(_MAGIC) or len(start) < _START:
            raise ValueError("it does not start with the header of version 1.0")
        end = _START + int.from_bytes(start[-2:], "little")
        if end > MAX_HEADER:
            raise ValueError("its header is too long")
        head = ast.literal_eval(bytes(payload[_START:end]).decode("latin-1").strip())
        shape, dtype = head["shape"], np.lib.format.descr_to_dtype(head["descr"])
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if not (isinstance(shape, tuple) and all(each.__class__ is int and each >= 0 for each in shape)):
            raise ValueError("its shape is invalid")
        order = "F" if head["fortran_order"] else "C"
        array = np.ndarray(shape, dtype, memoryview(payload).toreadonly(), end, None, order)
        if end + array.nbytes != len(payload):
            raise ValueError(f"it has {len(payload) - end:,} bytes of data instead of {array.nbytes:,}")
        return array


class TableDecoder:
    """Payloads that are an Arrow stream, as `pa.Table` or `pa.RecordBatch`."""

    def __init__(self, type: Any) -> None:
        import pyarrow as pa

        self._pa: Any = pa
        self._as_batch = type is pa.RecordBatch
        if type not in (pa.Table, pa.RecordBatch, Any, object):
            raise InvalidPayload(f"the payload is an Arrow table, and {_name(type)} was requested")

    def decode(self, payload: bytes | memoryview) -> Any:
        """A table, or a record batch, that reads from the payload. Raises InvalidPayload."""
        pa = self._pa
        try:
            _check_stream(payload)
            with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
                table = reader.read_all()
            # A full validation: code that reads the table does not check that offsets and strings lie inside it.
            table.validate(full=True)
            return self._one_batch(table) if self._as_batch else table
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, StructError) as error:
            raise InvalidPayload(f"the payload is not an Arrow stream: {error}") from error

    def _one_batch(self, table: Any) -> Any:
        batches = table.to_batches()
        if len(batches) > 1:
            batches = table.combine_chunks().to_batches()
        if batches:
            return batches[0]
        nothing = [self._pa.nulls(0, field.type) for field in table.schema]
        return self._pa.RecordBatch.from_arrays(nothing, schema=table.schema)


def _check_stream(payload: bytes | memoryview) -> None:
    """Raises ValueError for compressed parts: a few kilobytes can unpack to gigabytes. Trunkline writes none."""
    at = 0
    while at + 8 <= len(payload):
        marker, size = unpack_from("<II", payload, at)
        if marker != _CONTINUES:
            raise ValueError("a message has no start marker")
        if not size:
            return
        message = _Table.root(bytes(payload[at + 8 : at + 8 + size]))
        kind = message.number(1, "<B")
        if kind in (_DICTIONARY, _BATCH):
            batch = message.table(2)
            if batch is not None and kind == _DICTIONARY:
                batch = batch.table(1)
            if batch is None or batch.has(3):
                raise ValueError("a batch is missing or compressed")
        length = message.number(3, "<q")
        if length < 0:
            raise ValueError("a message has a negative length")
        at += 8 + size + length


class _Table:
    """A flatbuffer table: only the part of that format that is needed to inspect an Arrow message."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        (back,) = unpack_from("<i", data, at)
        self._fields = at - back
        if not 0 <= self._fields < len(data):
            raise ValueError("a message refers to bytes outside of it")
        (self._size,) = unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, unpack_from("<I", data)[0])

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        (offset,) = unpack_from("<H", self._data, self._fields + entry) if entry < self._size else (0,)
        return self._at + offset if offset else 0

    def has(self, field: int) -> bool:
        return bool(self._place(field))

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return int(unpack_from(form, self._data, place)[0]) if place else 0

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return _Table(self._data, place + unpack_from("<I", self._data, place)[0]) if place else None


def _name(type: Any) -> str:
    return getattr(type, "__name__", None) or str(type)
