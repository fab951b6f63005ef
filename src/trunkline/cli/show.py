"""How things are shown: tables for people, JSON for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trunkline.errors import PayloadError
from trunkline.message import Message

out = Console(highlight=False, soft_wrap=True)
note = Console(stderr=True, highlight=False)

MAX_PAYLOAD_CHARS = 120


def json(value: object) -> None:
    """One value as one line."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def table(title: str, columns: list[str], rows: list[list[object]], *, numbers: int = 0) -> None:
    """A table; its last `numbers` columns are to the right."""
    if not rows:
        return
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        shown.add_column(name, justify="right" if index >= len(columns) - numbers else "left", style=None)
    for row in rows:
        shown.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    out.print(shown)
    out.print()


def size(count: int) -> str:
    number = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def time_of(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def record(message: Message) -> dict[str, Any]:
    """A message as plain values: only what is set, the payload decoded if its format is known."""
    fields = {
        name: value
        for name in message.__struct_fields__
        if (value := getattr(message, name)) not in (None, "", b"") and name != "payload"
    }
    fields["type"] = message.type.name.lower()
    fields["time"] = time_of(message.timestamp_ns)
    fields["payload"] = payload(message)
    return fields


def payload(message: Message) -> Any:
    try:
        value = message.decode()
    except PayloadError:
        value = message.payload
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value


def line(message: Message) -> str:
    text = str(payload(message)).replace("\n", "⏎")
    if len(text) > MAX_PAYLOAD_CHARS:
        text = text[:MAX_PAYLOAD_CHARS] + "…"
    return f"{time_of(message.timestamp_ns)}  {message.seq:>10}  {message.topic}  {message.sender}  {text}"


@contextmanager
def progress(what: str) -> Iterator[Any]:
    """A bar on a terminal, nothing elsewhere; gives a function (done, of)."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=note,
        transient=True,
        disable=not note.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        yield show
