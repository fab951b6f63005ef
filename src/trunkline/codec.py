"""Payloads to and from bytes: any value that msgspec can encode, dataclasses, arrays, and raw bytes.

Raw bytes are not changed. numpy arrays and Arrow tables have their own formats (arrays.py). Everything else becomes
MessagePack, or JSON if requested. Encodings (compression) are a second, independent step. The message names its
encoding, so that every reader can undo it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from trunkline import arrays
from trunkline.errors import EncodeError, InvalidPayload, MessageTooLarge

T = TypeVar("T")

MSGPACK = "application/msgpack"
JSON = "application/json"
RAW = "application/octet-stream"
MAX_PLAIN_BYTES = 10 * 1024 * 1024

_msgpack_encode = msgspec.msgpack.Encoder().encode
_json_encode = msgspec.json.Encoder().encode


class _Decoder(Protocol):
    def decode(self, buf: bytes, /) -> Any: ...


# One decoder per type and format: creating one costs a hundred times as much as using it.
_decoders: dict[tuple[str, Any], _Decoder] = {}


def encode(value: object, content_type: str = MSGPACK) -> tuple[bytes, str]:
    """The bytes of `value` and their content type."""
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value), RAW
        if content_type == MSGPACK:
            return _msgpack_encode(value), MSGPACK
        if content_type == JSON:
            return _json_encode(value), JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # Checked only after msgspec has failed, so that ordinary values do not pay for the check.
        if (encoded := arrays.encode(value)) is not None:
            return encoded
        raise EncodeError(
            f"cannot send a value of type {type(value).__name__}: {error}; "
            "send plain values, dataclasses, msgspec Structs, numpy arrays, Arrow tables or bytes"
        ) from error
    if content_type in arrays.FORMATS and (encoded := arrays.encode(value)) is not None:
        return encoded
    raise EncodeError(f"cannot write values as {content_type!r}: pass bytes, or use {MSGPACK} or {JSON}")


def decode(payload: bytes, content_type: str, type: type[T] | Any = Any) -> T:
    """The payload as a `type`. Raises InvalidPayload, which names the field that does not match."""
    if content_type == RAW:
        if type is bytes or type is Any or type is object:
            return payload  # type: ignore[return-value]  # T is bytes, Any or object here
        raise InvalidPayload(f"the payload is raw bytes, and {_name(type)} was requested")
    try:
        decoder = _decoders.get((content_type, type))
        if decoder is None:
            decoder = _decoders[(content_type, type)] = _make_decoder(content_type, type)
    except (TypeError, NameError) as error:
        raise InvalidPayload(f"{_name(type)} is not a type that payloads can be read as: {error}") from error
    try:
        return decoder.decode(payload)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidPayload(f"the payload does not match {_name(type)}: {error}") from error


def reader(content_type: str, type: Any) -> Callable[[bytes], list[Any]] | None:
    """A function that reads a payload as `decode` does, as a list with one value. None if there is none for the type.

    It saves several calls for each payload.
    """
    try:
        read = _make_decoder(content_type, type).decode
    except (TypeError, NameError, InvalidPayload):
        return None

    def read_one(payload: bytes) -> list[Any]:
        try:
            return [read(payload)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidPayload(f"the payload does not match {_name(type)}: {error}") from error

    return read_one


def _make_decoder(content_type: str, type: Any) -> _Decoder:
    if content_type == MSGPACK:
        return msgspec.msgpack.Decoder(type)
    if content_type == JSON:
        return msgspec.json.Decoder(type)
    if content_type in arrays.FORMATS:
        return arrays.decoder(content_type, type)
    known = ", ".join((MSGPACK, JSON, RAW, *sorted(arrays.FORMATS)))
    raise InvalidPayload(f"no decoder for content type {content_type!r}; known: {known}")


def _name(type: Any) -> str:
    return getattr(type, "__name__", None) or str(type)


class Encoding(Protocol):
    """A reversible transformation of payload bytes. `restore` must not return more than `limit` bytes."""

    name: str

    def apply(self, payload: bytes) -> bytes: ...

    def restore(self, payload: bytes, limit: int) -> bytes: ...


class Zlib:
    """Compression from the standard library."""

    name = "zlib"

    def __init__(self, level: int = 6) -> None:
        self._level = level

    def apply(self, payload: bytes) -> bytes:
        return zlib.compress(payload, self._level)

    def restore(self, payload: bytes, limit: int) -> bytes:
        # Bounded: a few kilobytes can unpack to gigabytes.
        engine = zlib.decompressobj()
        try:
            plain = engine.decompress(payload, limit + 1)
        except zlib.error as error:
            raise InvalidPayload(f"the payload is not zlib data: {error}") from error
        if len(plain) > limit:
            raise MessageTooLarge(len(plain), limit)
        if not engine.eof or engine.unused_data:
            raise InvalidPayload("the payload is truncated zlib data, or has extra bytes at the end")
        return plain


ENCODINGS: Mapping[str, Encoding] = MappingProxyType({Zlib.name: Zlib()})
"""The encodings that every reader can undo without a key."""


SEAL = "aes-256-gcm"
"""The encoding of `hooks.Encrypt`. A bus that has the key undoes it before the payload is decoded."""
UNOPENED = "unopened: "
"""Prefix of the encoding of a message that a bus could not decrypt. The reason follows it."""


def restore(payload: bytes, encoding: str, limit: int = MAX_PLAIN_BYTES) -> bytes:
    """Undo an encoding; raises InvalidPayload if it is unknown or broken, MessageTooLarge beyond `limit`."""
    known = ENCODINGS.get(encoding)
    if known is None:
        if encoding.startswith(UNOPENED):
            raise InvalidPayload(encoding.removeprefix(UNOPENED))
        if SEAL in encoding:
            raise InvalidPayload(f"the payload is encrypted ({encoding}): give the bus hooks.Encrypt with that key")
        raise InvalidPayload(f"cannot decode the encoding {encoding!r}; known: {', '.join(ENCODINGS)}")
    return known.restore(payload, limit)
