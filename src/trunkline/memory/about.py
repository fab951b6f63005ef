"""The description of a channel, stored with the channel's service. It exists as long as a process is attached."""

from __future__ import annotations

import base64
import zlib
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from trunkline.errors import InvalidSettings
from trunkline.memory.layout import Layout
from trunkline.memory.settings import ChannelSettings
from trunkline.topic import logical_name
from trunkline.wire.control import BufferPolicy, Config

MAX_CHUNKS: Final = 8
CHUNK_CHARS: Final = 250
"""The size of the chunks in which the description is stored. The engine keeps up to 8 attributes of 256 bytes each."""
LINE: Final = 64
"""The alignment of payloads in bytes."""


class ChannelAbout(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    hash: str
    config: Config
    settings: ChannelSettings
    slot_bytes: int
    """The size of a slot: one page, or as many pages as a frame of the schema needs."""
    layout: dict[str, Any] | None = None
    """The whole schema; None if it is too large to be stored here."""

    @classmethod
    def of(cls, channel: str, layout: Layout, config: Config, settings: ChannelSettings) -> ChannelAbout:
        """Raises InvalidSettings for an invalid config."""
        if problem := config.problem():
            raise InvalidSettings(problem)
        pages = -(-max(layout.fixed_bytes or 1, 1) // config.page_size)
        slot_bytes = -(-pages * config.page_size // LINE) * LINE
        logical_name(channel)
        return cls(
            channel=channel,
            hash=layout.hash,
            config=config,
            settings=settings,
            slot_bytes=slot_bytes,
            layout=layout.description,
        )

    @property
    def queue(self) -> int:
        """The number of frames that may wait for a consumer."""
        match self.config.policy:
            case BufferPolicy.SINGLE:
                return 1
            case BufferPolicy.DOUBLE_BUFFER:
                return 2
            case _:
                return self.config.capacity

    @property
    def slots(self) -> int:
        """Enough slots that a producer always finds a free one.

        All queues together hold at most the last `queue` frames, which include the history. A consumer may hold frames
        that have left the queues. Two loans may be open, one of which was given up and is still viewed.
        """
        return self.queue + 1 + self.settings.consumers * self.settings.held + 2

    @property
    def needed_bytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def title(self) -> str:
        return title_of(self.settings.version, self.hash)

    def pack(self) -> list[str]:
        """The description as attributes. A schema that is too large is left out; its hash is kept."""
        chunks = _chunks(self)
        return chunks if len(chunks) <= MAX_CHUNKS else _chunks(replace(self, layout=None))


def title_of(version: str, hash: str) -> str:
    """The name of a schema in error messages."""
    return f"version {version or 'unnamed'} ({hash[:12]})"


def _chunks(about: ChannelAbout) -> list[str]:
    text = base64.b64encode(zlib.compress(msgspec.json.encode(about), 9)).decode()
    return [text[at : at + CHUNK_CHARS] for at in range(0, len(text), CHUNK_CHARS)]


def unpack(chunks: list[str]) -> ChannelAbout:
    """Read the description from attributes. Raises ValueError for attributes that Trunkline did not write."""
    try:
        return msgspec.json.decode(zlib.decompress(base64.b64decode("".join(chunks))), type=ChannelAbout)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error
