"""Output: lines and tables for people, JSON for scripts.

Text from messages is never printed raw: unprintable characters are escaped, and brackets are not treated as styles.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from trunkline import arrays
from trunkline.errors import PayloadError
from trunkline.message import Message
from trunkline.plural import counted as counted

out = Console(highlight=False, soft_wrap=True)
note = Console(stderr=True, highlight=False, soft_wrap=True)

MAX_PAYLOAD_CHARS = 120
BETWEEN = "  "

_encode = msgspec.json.Encoder(enc_hook=str).encode


# For people


def output(*parts: str | tuple[str, str]) -> None:
    """Print a line to stdout; a part may have a style.

    All parts are passed through `plain`, because they can contain untrusted text.
    """
    out.print(Text.assemble(*(plain(part) if isinstance(part, str) else (plain(part[0]), part[1]) for part in parts)))


def notice(text: str) -> None:
    """Print a line to stderr, for example an error and the next step. The text is passed through `plain`."""
    note.print(Text(plain(text)))


def can_ask() -> bool:
    return sys.stdin.isatty()


def ask(question: str) -> bool:
    """Ask a yes/no question on stderr."""
    # The space at the end is not part of the text: older versions of Rich would drop it.
    note.print(Text(f"{plain(question)} [y/N]"), end=" ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: int = 0) -> None:
    """Print one line per row, never truncated, so that it can be copied. The last `numbers` columns align right."""
    if not rows:
        return
    # Before the widths are measured.
    cells = [[f"{value:,}" if isinstance(value, int) else plain(str(value)) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = []
        for at, (text, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " * (width - cell_len(text))
            padded.append(gap + text if at >= len(columns) - numbers else text + gap)
        return BETWEEN.join(padded).rstrip()

    if title:
        output((title, "bold"))
    output((line(columns), "dim"))
    for row in cells:
        output(line(row))
    output()


def plain(text: str) -> str:
    """The text on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else "⏎" if each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


class LogFormatter(logging.Formatter):
    """Passes log lines through `plain`, because topics, names and errors in them can contain untrusted text."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(plain, super().formatException(ei).splitlines()))


def size(count: int) -> str:
    number = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def time_of(ns: int) -> str:
    """A point in time, in the format of --since and --until."""
    seconds, rest = divmod(ns, 1_000_000_000)
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        # Times are the sender's: any number is possible.
        return f"{seconds}s"
    return f"{when:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03d}Z"


def line(message: Message) -> str:
    """A message on one line: time, number, topic, sender, payload."""
    text = _short(payload(message))
    return f"{time_of(message.timestamp_ns)}  {message.seq:>10}  {message.topic}  {message.sender}  {text}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else str(value[:MAX_PAYLOAD_CHARS] if isinstance(value, bytes) else value)
    return text if len(text) <= MAX_PAYLOAD_CHARS else text[:MAX_PAYLOAD_CHARS] + "…"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, nothing elsewhere. Yields a function (done, of)."""
    if not shows_progress():
        yield lambda done, of: None
        return
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=note, transient=True) as bar:
        task = bar.add_task(plain(what), total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Like `progress`, for work with named stages. Without a terminal, prints one line per stage.

    Yields a function (what, done, of).
    """
    if not shows_progress():
        yield lambda what, done, of: notice(f"{what} ({done + 1} of {of})")
        return
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=note, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def shows_progress() -> bool:
    return sys.stderr.isatty() and note.is_terminal


# For scripts


def json(value: object, *, flush: bool = True) -> None:
    """Print a value as one line of JSON, always in UTF-8."""
    sys.stdout.flush()
    sys.stdout.buffer.write(to_json(value) + b"\n")
    if flush:
        sys.stdout.buffer.flush()


def to_json(value: object) -> bytes:
    """A value as JSON on one line. Types that JSON does not have become text."""
    try:
        return _encode(value)
    except (TypeError, ValueError):
        return _encode(_with_text_keys(value))


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(each) for each in value]
    return value


def json_line(message: Message) -> bytes:
    return to_json(record(message))


def record(message: Message) -> dict[str, Any]:
    """A message as plain values, without unset fields. The payload is decoded if its format is known.

    A payload that is not text is given as `payload_base64` instead of `payload`.
    """
    fields = {
        name: value
        for name in message.__struct_fields__
        if (value := getattr(message, name)) not in (None, "", b"") and name != "payload"
    }
    fields["type"] = message.type.name.lower()
    fields["time"] = time_of(message.timestamp_ns)
    value = payload(message)
    if isinstance(value, bytes):
        fields["payload_base64"] = base64.b64encode(value).decode()
    else:
        fields["payload"] = value
    return fields


def payload(message: Message) -> Any:
    """The payload as a value; bytes if it is neither text nor of a known format."""
    try:
        value = bytes(message.payload) if message.content_type in arrays.FORMATS else message.decode()
    except PayloadError:
        value = message.payload
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value
