"""Arrays and tables as payloads: they arrive unchanged, and invalid bytes do no harm."""

from __future__ import annotations

import base64
import contextlib
import io
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import trunkline as tl
from tests.warm import NEW_PYTHON
from trunkline import codec
from trunkline.arrays import ARROW, MAX_HEADER, NPY
from trunkline.cli import show
from trunkline.errors import EncodeError, InvalidPayload
from trunkline.message import Message
from trunkline.schema import Checker
from trunkline.spark.tables.payloads import Packet, json_of, value_of

ARRAYS: list[npt.NDArray[Any]] = [
    np.arange(12.0).reshape(3, 4),
    np.asfortranarray(np.arange(12).reshape(3, 4)),
    np.arange(20)[::3],
    np.array(5),
    np.zeros((0, 3)),
    np.array(["a", "Straße"]),
    np.array([b"a", b"bc"]),
    np.array(["2026-07-04", "NaT"], "M8[s]"),
    np.array([(1, 2.0), (3, 4.0)], [("a", "<i4"), ("b", ">f8")]),
    np.zeros(3, [("a", "i1", (2, 2))]),
    np.zeros(3, "S0"),
    np.array([True, False]),
    np.arange(3, dtype=">i2"),
    np.zeros(2, "complex64").view(np.recarray),
]
TABLE = pa.table(
    {
        "number": [1, 2, None],
        "text": ["x", "", None],
        "coded": pa.array(["a", "b", "a"]).dictionary_encode(),
        "list": [[1], [], [2, 3]],
    }
)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}")
def test_an_array_comes_back_as_it_was_and_cannot_be_written(array: npt.NDArray[Any]) -> None:
    payload, content_type = codec.encode(array)
    assert content_type == NPY
    for kind in (np.ndarray, Any, object):
        back: Any = codec.decode(payload, content_type, kind)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(back, array, equal_nan=array.dtype.kind == "M")
        assert not back.flags.writeable
    # Others can read it, too.
    assert np.load(io.BytesIO(payload)).dtype == array.dtype


def test_an_array_reads_from_the_memory_of_its_payload() -> None:
    payload, content_type = codec.encode(np.arange(1000))
    assert np.shares_memory(codec.decode(payload, content_type), np.frombuffer(payload, np.uint8))
    table: Any = codec.decode(*codec.encode(pa.table({"a": range(1000)})))
    assert table.column(0).chunk(0).buffers()[1].parent is not None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.array([{}]), "holds Python objects"),
        (np.array([(1, None)], [("a", "i4"), ("b", "O")]), "holds Python objects"),
        (np.ma.array([1, 2], mask=[False, True]), "masked"),
        # NumPy 1 has none of these.
        *([(np.array(["a"], np.dtypes.StringDType()), "StringDType")] if hasattr(np.dtypes, "StringDType") else []),
        (np.zeros(1, [(f"field{number}" * 3, "i4") for number in range(500)]), "500 fields"),
    ],
)
def test_what_the_format_does_not_have_is_refused(value: object, why: str) -> None:
    with pytest.raises(EncodeError, match=why):
        codec.encode(value)


def test_types_are_checked() -> None:
    payload, content_type = codec.encode(np.zeros(3, np.float32))
    assert codec.decode(payload, content_type, npt.NDArray[np.floating[Any]]).dtype == np.float32
    with pytest.raises(InvalidPayload, match="an array of float32, and int64 was requested"):
        codec.decode(payload, content_type, npt.NDArray[np.int64])
    with pytest.raises(InvalidPayload, match="is a numpy array, and bytes was requested"):
        codec.decode(payload, content_type, bytes)
    with pytest.raises(InvalidPayload, match="is an Arrow table, and int was requested"):
        codec.decode(*codec.encode(TABLE), int)
    with pytest.raises(InvalidPayload):
        codec.decode(*codec.encode([1, 2]), np.ndarray)


@pytest.mark.parametrize("table", [TABLE, TABLE.slice(0, 0), pa.concat_tables([TABLE, TABLE])])
def test_a_table_comes_back_as_it_was(table: pa.Table) -> None:
    payload, content_type = codec.encode(table)
    assert content_type == ARROW
    for kind in (pa.Table, Any):
        assert codec.decode(payload, content_type, kind).equals(table)
    batch = codec.decode(payload, content_type, pa.RecordBatch)
    assert pa.Table.from_batches([batch]).combine_chunks().equals(table.combine_chunks())
    assert codec.decode(*codec.encode(batch)).num_rows == table.num_rows


def test_a_content_type_of_its_own_does_not_matter() -> None:
    for asked in (codec.MSGPACK, codec.JSON, NPY):
        assert codec.encode(np.zeros(3), asked)[1] == NPY
    with pytest.raises(EncodeError):
        codec.encode({"a": 1}, NPY)
    with pytest.raises(EncodeError, match="numpy arrays"):
        codec.encode({"a": np.zeros(3)})


# What others may have written


def _npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1") + data


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
        _npy(""),
        _npy("{}"),
        _npy("[1]"),
        _npy("(" * 9000),
        _npy("-" * 9000 + "1"),
        _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\0" * 8),
        _npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 8),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", b"\0" * 8),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", b"\0" * 16),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", b"\0" * 8),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2**63, 8)}"),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,)}"),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 100 + ")}", b"\0" * 8),
        _npy("{'descr': 'V999999999999', 'fortran_order': False, 'shape': (1,)}"),
        _npy("{'descr': 1, 'fortran_order': False, 'shape': (1,)}"),
        _npy("{'descr': '<f8', 'fortran_order': False, 'shape': [1]}", b"\0" * 8),
        _npy("__import__('os').abort()"),
        _npy(" " * MAX_HEADER + "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", b"\0" * 8),
    ],
)
def test_a_bad_array_is_an_invalid_payload(payload: bytes) -> None:
    with pytest.raises(InvalidPayload):
        codec.decode(payload, NPY)


def _compressed() -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())]), options=options) as writer:
        writer.write(pa.table({"a": pa.array([0] * 1_000_000, pa.int64())}))
    return bytes(sink.getvalue())


@pytest.mark.parametrize("payload", [b"", b"\xff" * 8, b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8, _compressed()])
def test_a_bad_table_is_an_invalid_payload(payload: bytes) -> None:
    with pytest.raises(InvalidPayload):
        codec.decode(payload, ARROW)


@given(st.sampled_from([np.arange(7.0), TABLE]), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255))))
@example(TABLE, [(0, 0)])
def test_damaged_bytes_never_do_harm(value: Any, damage: list[tuple[int, int]]) -> None:
    payload, content_type = codec.encode(value)
    damaged = bytearray(payload)
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    with contextlib.suppress(InvalidPayload):
        # What could be read can be looked at.
        back: Any = codec.decode(bytes(damaged), content_type)
        assert back.tolist() is not None if content_type == NPY else back.to_pylist() is not None


def test_neither_library_is_imported_for_plain_payloads() -> None:
    program = (
        "import sys; from trunkline import codec; codec.decode(*codec.encode({'a': [1, 2.5]}));"
        "assert not {'numpy', 'pyarrow'} & sys.modules.keys()"
    )
    subprocess.run([*NEW_PYTHON, "-c", program], check=True)


@pytest.mark.parametrize(
    ("value", "library", "extra"), [(np.zeros(2), "numpy", "memory"), (TABLE, "pyarrow", "journal")]
)
def test_without_the_library_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, value: Any, library: str, extra: str
) -> None:
    payload, content_type = codec.encode(value)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidPayload, match=rf"pip install 'trunkline\[{extra}\]'"):
        codec.decode(payload, content_type, list)


# Around them


async def test_handlers_take_arrays_and_tables() -> None:
    got: dict[str, Any] = {}
    async with tl.connect("memory:") as bus:

        @bus.on("arrays")
        async def array(value: np.ndarray) -> None:
            got["array"] = value

        @bus.on("tables")
        async def table(value: pa.Table) -> None:
            got["table"] = value

        @bus.on("batches")
        async def batch(value: pa.RecordBatch) -> None:
            got["batch"] = value

        @bus.on("double")
        async def double(value: Any) -> Any:
            return value * 2

        await bus.publish("arrays", np.arange(3))
        await bus.publish("tables", TABLE, priority=80)
        await bus.publish_many("batches", [TABLE.combine_chunks().to_batches()[0]])
        answer = await bus.request("double", np.arange(3), reply=np.ndarray)
        await bus.quiet()
    assert answer.tolist() == [0, 2, 4]
    assert got["array"].tolist() == [0, 1, 2]
    assert got["table"].equals(TABLE)
    assert got["batch"].num_rows == 3


def test_a_schema_refuses_them() -> None:
    """A schema describes JSON values: arrays and tables never match."""
    for value in (np.arange(3), TABLE):
        problem = Checker({}).broken(Message(topic="a", payload=value))
        assert problem is not None
        assert "is not a JSON value" in problem[1]


def test_the_pipeline_treats_them_as_bytes_of_unknown_content() -> None:
    for value in (np.arange(3), TABLE):
        payload, content_type = codec.encode(value)
        for read in (json_of, value_of):
            with pytest.raises(tl.PayloadError, match="an array or a table"):
                read(Packet("a", payload, content_type, ""))


def test_the_command_line_shows_their_bytes() -> None:
    for value in (np.arange(3), TABLE):
        message = Message(topic="a", payload=value)
        assert show.record(message)["payload_base64"] == base64.b64encode(message.payload).decode()
        assert "\n" not in show.line(message)


def test_a_message_of_an_array_is_the_same_after_its_journey() -> None:
    message = Message(topic="a", payload=np.arange(3))
    back = Message.from_bytes(message.to_bytes())
    assert back == message
    assert msgspec.structs.replace(back, seq=1).decode().tolist() == [0, 1, 2]
