"""Reduces a text with carriage returns and backspaces, as progress bars write it, to what a terminal would show."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n\r])")
_ERASED = re.compile(r"[^\n\x08]\x08")

Output = dict[str, Any]


def on_screen(text: str) -> str:
    """Text before a carriage return is overwritten by the text after it. A backspace erases the character before it."""
    if "\x08" in text:
        before = ""
        while before != text:
            before, text = text, _ERASED.sub("", text)
    return _OVERWRITTEN.sub("", text) if "\r" in text else text


def coalesced(outputs: list[Output]) -> list[Output]:
    """One output per stream, at the position of its first output. Adjacent outputs are ordered stdout before stderr."""
    found: list[Output] = []
    streams: dict[str, Output] = {}
    for output in outputs:
        if output["output_type"] != "stream":
            found.append(output)
        elif (first := streams.get(output["name"])) is not None:
            first["text"] += output["text"]
        else:
            streams[output["name"]] = dict(output)
            found.append(streams[output["name"]])
    for place, (one, other) in enumerate(pairwise(found)):
        if (one.get("name"), other.get("name")) == ("stderr", "stdout"):
            found[place : place + 2] = [other, one]
    return found
