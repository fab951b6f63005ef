"""Messages of open topics on Redis. Pure.

Redis has no headers, so a message is a CloudEvent in its structured form: one JSON object, with the payload in `data`,
or in `data_base64` if it is not JSON. Anything else is a payload without headers, sent by a program without Trunkline.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

JSON = "application/json"
PREFIX = "ce-"
OTHERS = {"content-type": "datacontenttype", "trunkline-place": "trunklineplace", "traceparent": "traceparent"}
"""Headers without the `ce-` prefix, and their CloudEvents attributes, whose names may have only letters and digits."""
_HEADERS = {value: key for key, value in OTHERS.items()}
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


def write(payload: bytes, headers: dict[str, str]) -> bytes:
    """A message as one JSON object."""
    event: dict[str, Any] = {OTHERS.get(name, name.removeprefix(PREFIX)): value for name, value in headers.items()}
    if headers.get("content-type") == JSON:
        event["data"] = msgspec.Raw(payload)
    else:
        event["data_base64"] = base64.b64encode(payload).decode()
    return msgspec.json.encode(event)


def read(data: bytes) -> tuple[bytes, dict[str, str]]:
    """The payload and the headers. Without headers, if the data is not an object that `write` makes."""
    try:
        event = _decode(data)
        if "specversion" not in event or "id" not in event:
            return data, {}
        body, encoded = event.pop("data", None), event.pop("data_base64", None)
        payload = bytes(body or b"") if encoded is None else base64.b64decode(_text(encoded), validate=True)
        return payload, {_HEADERS.get(name, PREFIX + name): _text(value) for name, value in event.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, binascii.Error):
        return data, {}
