"""The message types of Jupyter's protocol, with the channel of an execution and the topic for each.

A kernel's traffic is published on `kernel.<id>.<socket>.<message type>`, as on its sockets.
"""

from __future__ import annotations

import re
from typing import Final

SHELL: Final = "shell"
CONTROL: Final = "control"
STDIN: Final = "stdin"
IOPUB: Final = "iopub"
SOCKETS: Final = (SHELL, CONTROL, STDIN, IOPUB)

STATUS: Final = "status"
EXECUTION: Final = "execution"
STREAM: Final = "stream"
DISPLAY: Final = "display"
COMM: Final = "comm"
CHANNELS: Final = (STATUS, EXECUTION, STREAM, DISPLAY, COMM)

CHANNEL_OF: Final = {
    "status": STATUS,
    "execute_input": EXECUTION,
    "execute_result": EXECUTION,
    "error": EXECUTION,
    "stream": STREAM,
    "display_data": DISPLAY,
    "update_display_data": DISPLAY,
    "clear_output": DISPLAY,
    "comm_open": COMM,
    "comm_msg": COMM,
    "comm_close": COMM,
}

BROADCAST: Final = frozenset({"iopub_welcome", "debug_event", "shutdown_reply"})
"""Broadcasts on iopub that belong to no request. They reach subscribers of the kernel."""

TOPIC_PREFIX: Final = "kernel."
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9_-]")


def topic_of(kernel_id: str, socket: str, msg_type: str) -> str:
    return f"{TOPIC_PREFIX}{token(kernel_id)}.{socket}.{token(msg_type)}"


def token(text: str) -> str:
    """Any text as a valid token of a topic."""
    return _NOT_IN_TOPICS.sub("_", text)[:100] or "_"
