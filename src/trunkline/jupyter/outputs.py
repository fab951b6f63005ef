"""Collects the outputs of an execution in the format of notebooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trunkline.jupyter.wire import KernelMessage

Output = dict[str, Any]
"""One output as nbformat has it: a stream, display_data, execute_result or error."""


class OutputEntry:
    """One output that may still grow: the text of a stream, or a display."""

    __slots__ = ("display_id", "name", "output", "size", "texts")

    def __init__(self, output: Output, size: int, display_id: str | None = None) -> None:
        self.output = output
        self.size = size
        self.display_id = display_id
        self.name = output.get("name")
        """The name of the stream."""
        self.texts: deque[str] = deque()

    @classmethod
    def of_stream(cls, name: str) -> OutputEntry:
        return cls({"output_type": "stream", "name": name}, 0)

    def write(self, text: str, size: int) -> None:
        self.texts.append(text)
        self.size += size

    def cut(self, wanted: int) -> int:
        """Remove about `wanted` bytes from its beginning. Returns the exact number."""
        before = self.size
        while self.texts and before - self.size < wanted:
            first = self.texts.popleft()
            size = size_of(first)
            left = size - (wanted - (before - self.size))
            self.size -= size
            if left > 0:
                kept = _end_of(first, left)
                self.texts.appendleft(kept)
                self.size += size_of(kept)
                break
        return before - self.size

    def split(self, at: int) -> OutputEntry:
        """Keep the first `at` bytes of it, and return the rest."""
        rest = OutputEntry.of_stream(str(self.name))
        kept, self.texts, self.size = self.texts, deque(), 0
        for text in kept:
            size = size_of(text)
            room = at - self.size
            if room >= size:
                self.write(text, size)
                continue
            begin = _beginning_of(text, room) if room > 0 and not rest.texts else ""
            if begin:
                self.write(begin, size_of(begin))
                text = text[len(begin) :]
            rest.write(text, size_of(text))
        return rest

    def finished(self) -> Output:
        return {**self.output, "text": "".join(self.texts)} if self.name is not None else dict(self.output)


class Outputs:
    """The outputs of one execution, in order. Consecutive texts of one stream form one output.

    If the outputs exceed `max_bytes`, only their beginning and end are kept, half of the limit each, with a notice
    between them.
    """

    __slots__ = ("_clear", "_entries", "_max_bytes", "_missing", "_on_change", "_tail", "bytes", "truncated")

    def __init__(self, max_bytes: int, on_change: Callable[[], None] | None = None) -> None:
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._entries: list[OutputEntry] = []
        self._tail: deque[OutputEntry] | None = None
        """The last part, once the limit is exceeded."""
        self._missing = 0
        self._clear = False
        self.bytes = 0
        self.truncated = 0
        """The number of bytes that were not kept."""

    def __iter__(self) -> Iterator[OutputEntry]:
        yield from self._entries
        yield from self._tail or ()

    def write(self, name: str, text: str) -> None:
        """Add text of a stream."""
        if self._clear:
            self._empty()
        entries = self._entries if self._tail is None else self._tail
        last = entries[-1] if entries else None
        if last is None or last.name != name:
            last = OutputEntry.of_stream(name)
            entries.append(last)
        size = len(text) if text.isascii() else size_of(text)
        last.texts.append(text)
        last.size += size
        self.bytes += size
        if self.bytes > self._max_bytes:
            self._shorten()
        if self._on_change is not None:
            self._on_change()

    def add(self, message: KernelMessage) -> None:
        """Add a display, a result or an error."""
        if self._clear:
            self._empty()
        content = message.content
        display_id = None
        match message.header.msg_type:
            case "error":
                output: Output = {
                    "output_type": "error",
                    "ename": str(content.get("ename", "")),
                    "evalue": str(content.get("evalue", "")),
                    "traceback": [str(line) for line in content.get("traceback") or ()],
                }
            case kind:
                output = {
                    "output_type": kind,
                    "data": _mapping(content.get("data")),
                    "metadata": _mapping(content.get("metadata")),
                }
                if kind == "execute_result":
                    output["execution_count"] = content.get("execution_count")
                display_id = display_id_of(content)
        entry = OutputEntry(output, len(message.payload), display_id)
        (self._entries if self._tail is None else self._tail).append(entry)
        self.bytes += entry.size
        if self.bytes > self._max_bytes:
            self._shorten()
        if self._on_change is not None:
            self._on_change()

    def _shorten(self) -> None:
        """Keep the beginning, and as much of the end as fits."""
        if self._tail is None:
            self._tail = self._cut_beginning()
        tail = self._tail
        while self.bytes > self._max_bytes and tail:
            first = tail[0]
            gone = first.cut(self.bytes - self._max_bytes) if first.name is not None else first.size
            if first.name is None or not first.texts:
                tail.popleft()
            self.bytes -= gone
            self.truncated += gone
            self._missing += gone

    def _cut_beginning(self) -> deque[OutputEntry]:
        """Keep the entries of the first half of the limit; return the others."""
        room = self._max_bytes // 2
        for place, entry in enumerate(self._entries):
            if entry.size <= room:
                room -= entry.size
                continue
            rest = deque(self._entries[place:])
            del self._entries[place:]
            if entry.name is not None and room > 0:
                rest[0] = entry.split(room)
                self._entries.append(entry)
            return rest
        return deque()

    def update(self, display_id: str, content: Mapping[str, Any]) -> bool:
        """Change the displays with this id; False if there are none."""
        found = False
        for entry in self:
            if entry.display_id == display_id:
                entry.output["data"] = _mapping(content.get("data"))
                entry.output["metadata"] = _mapping(content.get("metadata"))
                found = True
        return found

    def clear(self, wait: bool) -> None:
        """Clear all outputs: now, or when new output arrives."""
        if wait:
            self._clear = True
        else:
            self._empty()
            if self._on_change is not None:
                self._on_change()

    def _empty(self) -> None:
        self._clear = False
        self._entries.clear()
        self._tail = None
        self._missing = 0
        self.bytes = 0

    def snapshot(self) -> list[Output]:
        """Copies of the outputs so far, without internal display ids."""
        found = [entry.finished() for entry in self._entries]
        if self._missing:
            text = f"[{self._missing:,} bytes of output were left out here: max_output_bytes is {self._max_bytes:,}]\n"
            found.append({"output_type": "stream", "name": "stderr", "text": text})
        found += [entry.finished() for entry in self._tail or ()]
        return found


def size_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _characters(text: str, size: int) -> int:
    """The number of characters of a text in about `size` bytes; never all of them."""
    total = size_of(text)
    return size if total == len(text) else min(size * len(text) // total, len(text) - 1)


def _end_of(text: str, size: int) -> str:
    return text[len(text) - _characters(text, size) :]


def _beginning_of(text: str, size: int) -> str:
    return text[: _characters(text, size)]


def display_id_of(content: Mapping[str, Any]) -> str | None:
    transient = content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return found if isinstance(found, str) else None


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
