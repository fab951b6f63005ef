"""What an execution wrote and showed, put together as it comes, in the form notebooks keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunkline.jupyter.wire import KernelMessage

Output = dict[str, Any]
"""One output as nbformat has it: a stream, display_data, execute_result or error."""


class Outputs:
    """The outputs of one execution, in order. Texts of one stream that follow each other are one output."""

    __slots__ = ("__weakref__", "_clear", "_entries", "_max_bytes", "_parts", "bytes", "display_ids", "truncated")

    def __init__(self, max_bytes: int) -> None:
        self._entries: list[Output] = []
        self._parts: list[str] | None = None
        """The texts of the last output, while that is a stream."""
        self._clear = False
        self._max_bytes = max_bytes
        self.bytes = 0
        self.truncated = 0
        """How many bytes were not kept."""
        self.display_ids: set[str] = set()

    def write(self, name: str, text: str) -> None:
        """A stream has written something."""
        if self._clear:
            self._empty()
        self.bytes += len(text)
        if self.bytes > self._max_bytes:
            self.bytes -= len(text)
            self.truncated += len(text)
            return
        parts = self._parts
        if parts is not None and self._entries[-1]["name"] == name:
            parts.append(text)
            return
        self._parts = [text]
        self._entries.append({"output_type": "stream", "name": name, "text": self._parts})

    def add(self, message: KernelMessage) -> None:
        """Something was displayed, is the result, or went wrong."""
        if self._clear:
            self._empty()
        self._parts = None
        content = message.content
        match message.header.msg_type:
            case "error":
                entry: Output = {
                    "output_type": "error",
                    "ename": str(content.get("ename", "")),
                    "evalue": str(content.get("evalue", "")),
                    "traceback": [str(line) for line in content.get("traceback") or ()],
                }
            case kind:
                entry = {
                    "output_type": kind,
                    "data": _mapping(content.get("data")),
                    "metadata": _mapping(content.get("metadata")),
                }
                if kind == "execute_result":
                    entry["execution_count"] = content.get("execution_count")
                if (display_id := display_id_of(content)) is not None:
                    entry["display_id"] = display_id
                    self.display_ids.add(display_id)
        size = len(message.payload)
        if self.bytes + size > self._max_bytes:
            self.truncated += size
            return
        self.bytes += size
        self._entries.append(entry)

    def update(self, display_id: str, content: Mapping[str, Any]) -> bool:
        """What is shown under this id has changed; False if nothing here is."""
        found = False
        for entry in self._entries:
            if entry.get("display_id") == display_id:
                entry["data"] = _mapping(content.get("data"))
                entry["metadata"] = _mapping(content.get("metadata"))
                found = True
        return found

    def clear(self, wait: bool) -> None:
        """Forget all of it: now, or when something new comes."""
        if wait:
            self._clear = True
        else:
            self._empty()

    def _empty(self) -> None:
        self._clear = False
        self._entries.clear()
        self._parts = None
        self.bytes = 0

    def snapshot(self) -> list[Output]:
        """The outputs so far, as values of their own. The display ids are ours, and not among them."""
        return [_finished(entry) for entry in self._entries]


def _finished(entry: Output) -> Output:
    if entry["output_type"] == "stream":
        return {**entry, "text": "".join(entry["text"])}
    return {name: value for name, value in entry.items() if name != "display_id"}


def display_id_of(content: Mapping[str, Any]) -> str | None:
    transient = content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return found if isinstance(found, str) else None


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
