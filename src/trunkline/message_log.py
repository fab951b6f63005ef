"""Formats of log lines: one line per event, as JSON or as text, with the message and the trace of the event.

Pass one of these formatters to a handler of `logging`.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar

from trunkline.message import Message

TRACE = 5
"""The log level for events of every single message: below DEBUG."""

handled: ContextVar[Message | None] = ContextVar("handled", default=None)
"""The message that a handler works on; set only if the hook `Log` is used."""


def about(message: Message) -> dict[str, str]:
    """The value of `extra=` of a log call: the message and its trace."""
    found = {"message_id": message.id, "topic": message.topic}
    if message.trace is not None:
        # A W3C traceparent: version, trace, span, flags.
        found["trace_id"] = message.trace.split("-")[1] if message.trace.count("-") == 3 else message.trace
    return found


class _OneLine(logging.Formatter):
    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        current = handled.get()
        known = {} if current is None else about(current)
        names = ("message_id", "topic", "trace_id")
        return known | {name: str(getattr(record, name)) for name in names if hasattr(record, name)}

    def _cause(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        return "\n".join([*parts, *([self.formatStack(record.stack_info)] if record.stack_info else [])])


class JsonLines(_OneLine):
    """One JSON object per line: time, level, logger, text, and for events of a message its id, topic and trace."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **self._fields(record),
        }
        if cause := self._cause(record):
            event["traceback"] = cause
        # ASCII, so that characters that some readers take for line ends are escaped, too.
        return json.dumps(event)


class TextLines(_OneLine):
    """The same as text for people. Line ends and control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        words = [self.formatTime(record, "%H:%M:%S"), record.levelname, record.name, record.getMessage()]
        words += [f"{name}={value}" for name, value in self._fields(record).items()]
        if cause := self._cause(record):
            words.append(f"| {cause}")
        text = " ".join(words)
        if text.isprintable():
            return text
        return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
