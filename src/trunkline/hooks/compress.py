"""Compresses payloads if that makes them smaller.

Readers decompress them automatically, by the encoding in the message.
"""

from __future__ import annotations

import msgspec

from trunkline.codec import Zlib
from trunkline.hooks.hook import Batch, Forward, Hook, Stage
from trunkline.message import Message


class Compress(Hook):
    """Compresses payloads of `min_bytes` and more, if that makes them smaller."""

    stage = Stage.COMPRESS

    def __init__(self, min_bytes: int = 1024, level: int = 6) -> None:
        self._min_bytes = min_bytes
        self._zlib = Zlib(level)

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        await forward([self._smaller(message) for message in batch])

    def _smaller(self, message: Message) -> Message:
        if message.encoding or len(message.payload) < self._min_bytes:
            return message
        packed = self._zlib.apply(message.payload)
        if len(packed) >= len(message.payload):
            return message
        return msgspec.structs.replace(message, payload=packed, encoding=self._zlib.name)
