"""Safe text from messages: control characters are made visible, and lengths are limited."""

from __future__ import annotations

import msgspec

from trunkline.cli import show
from trunkline.message import ELIDED, Message
from trunkline.plural import counted

MAX_CHARS = 100_000
"""The most characters shown of a payload. For the rest, only the number is shown."""


def inert(text: str) -> str:
    """Escape control characters but line feeds, including those that change the direction of text."""
    return "\n".join(map(show.plain, text.replace("\r\n", "\n").split("\n")))


def payload_text(message: Message, most: int = MAX_CHARS) -> str:
    """The payload as readable text, decoded if its format is known."""
    if message.encoding == ELIDED:
        return f"({message.encoding}: too large to be kept)"
    value = show.payload(message)
    if isinstance(value, bytes):
        shown = value[: most // 4]
        lines = [f"{at:08x}  {shown[at : at + 16].hex(' ')}" for at in range(0, len(shown), 16)]
        text = "\n".join(lines)
        rest = len(value) - len(shown)
        return text + (f"\n… {counted(rest, 'byte')} more" if rest else "")
    text = value if isinstance(value, str) else as_json(value)
    text = inert(text)
    return text if len(text) <= most else f"{text[:most]}\n… {counted(len(text) - most, 'character')} more"


def one_line(message: Message, most: int = 160) -> str:
    """The beginning of the payload on one line."""
    value = show.payload(message)
    if isinstance(value, bytes):
        text = value[:most].hex(" ")
    elif isinstance(value, str):
        text = value[: most + 1]
    else:
        text = show.to_json(value).decode()[: most + 1]
    text = show.plain(text)
    return text if len(text) <= most else text[:most] + "…"


def as_json(value: object) -> str:
    """A value as indented JSON, for reading and editing."""
    return msgspec.json.format(show.to_json(value), indent=2).decode()


def age(seconds: float) -> str:
    """A duration in the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def rate(value: float) -> str:
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def clock(ns: int) -> str:
    """A time in UTC without the year, for lists."""
    return show.time_of(ns)[5:-1].replace("T", " ") if ns else "–"
