"""Messages on the websocket of a Jupyter server or gateway: conversion between bytes and Jupyter frames. Pure.

Newer servers speak `v1.kernel.websocket.jupyter.org`: the channel and the parts of a message, with a table of offsets
before them. Older ones speak JSON, or, with buffers, a table of offsets, JSON and the buffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from trunkline.jupyter.wire import DELIMITER, Fault, KernelMessage, Unreadable

V1: Final = "v1.kernel.websocket.jupyter.org"
_NUMBER = struct.Struct("<Q")


def write_v1(channel: str, parts: Sequence[bytes]) -> bytes:
    pieces = [channel.encode(), *parts]
    offsets = [8 * (len(pieces) + 2)]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return b"".join((_NUMBER.pack(len(offsets)), *map(_NUMBER.pack, offsets), *pieces))


def read_v1(data: bytes) -> tuple[str, list[bytes]]:
    """The channel, and the frames in the form of an unsigned ZeroMQ message. Raises Unreadable."""
    try:
        (count,) = _NUMBER.unpack_from(data)
        if not 2 <= count <= len(data) // 8:
            raise Unreadable(Fault.MALFORMED, f"{count} offsets in {len(data)} bytes")
        offsets = [offset for (offset,) in _NUMBER.iter_unpack(data[8 : 8 * (count + 1)])]
        pieces = [data[begin:end] for begin, end in pairwise(offsets)]
        return pieces[0].decode(), [DELIMITER, b"", *pieces[1:]]
    except (struct.error, UnicodeDecodeError) as error:
        raise Unreadable(Fault.MALFORMED, f"not a message of {V1}: {error}") from None


def write_legacy(message: KernelMessage) -> str | bytes:
    """The message as JSON. With buffers: a table of offsets, the JSON text and the buffers."""
    parent = message.parent
    whole: dict[str, Any] = {
        "channel": message.socket,
        "header": _plain(message.header),
        "parent_header": _plain(parent) if parent.msg_id else {},
        "metadata": message.metadata,
        "content": message.content,
    }
    if not message.buffers:
        return json.dumps({**whole, "buffers": []})
    pieces = [json.dumps(whole).encode(), *message.buffers]
    offsets = [4 * (len(pieces) + 1)]
    for piece in pieces[:-1]:
        offsets.append(offsets[-1] + len(piece))
    return b"".join((struct.pack(f"!{len(pieces) + 1}I", len(pieces), *offsets), *pieces))


def read_legacy(data: str | bytes) -> tuple[str, list[bytes]]:
    """As `read_v1`, for the format of older servers. Raises Unreadable."""
    buffers: list[bytes] = []
    try:
        if isinstance(data, bytes):
            (count,) = struct.unpack_from("!I", data)
            offsets = [*struct.unpack_from(f"!{count}I", data, 4), len(data)]
            pieces = [data[begin:end] for begin, end in pairwise(offsets)]
            data, buffers = pieces[0].decode(), pieces[1:]
        whole = json.loads(data)
        parts = [json.dumps(whole[name]).encode() for name in ("header", "parent_header", "metadata", "content")]
        return str(whole.get("channel") or "iopub"), [DELIMITER, b"", *parts, *buffers]
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unreadable(Fault.MALFORMED, f"not a message of a Jupyter server: {error}") from None


def _plain(header: Any) -> dict[str, str]:
    return {name: getattr(header, name) for name in header.__struct_fields__}
