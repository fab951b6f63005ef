"""The executions of a kernel and their output so far, derived from its messages on the bus. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from trunkline.errors import PayloadError
from trunkline.jupyter.message_types import TOPIC_PREFIX, token
from trunkline.message import Message

MAX_OUTPUT = 20_000
"""How many characters of the output of an execution are kept. Only the last ones are kept."""


class KernelExecution(msgspec.Struct):
    """One request to execute code."""

    request_id: str
    at_ns: int
    code: str
    state: str = "running"
    """running, ok or error."""
    output: str = ""
    ended_ns: int = 0


def topics_of(kernel_id: str) -> str:
    return f"{TOPIC_PREFIX}{token(kernel_id)}.>"


def requests_to(kernel_id: str) -> str:
    return f"{TOPIC_PREFIX}{token(kernel_id)}.shell.execute_request"


def executions_in(messages: Iterable[Message]) -> list[KernelExecution]:
    """The executions, the newest first. `messages` are the messages of one kernel, in order."""
    found: dict[str, KernelExecution] = {}
    for message in messages:
        kind = message.topic.rpartition(".")[2]
        content = _content(message)
        if kind == "execute_request" and message.request_id:
            found[message.request_id] = KernelExecution(
                message.request_id, message.timestamp_ns, str(content.get("code", ""))
            )
        elif message.request_id is not None and (execution := found.get(message.request_id)) is not None:
            _add(execution, kind, content, message.timestamp_ns)
    return list(found.values())[::-1]


def _content(message: Message) -> dict[str, Any]:
    try:
        value = message.decode()
    except PayloadError:
        return {}
    content = value.get("content", value) if isinstance(value, dict) else {}
    return content if isinstance(content, dict) else {}


def _add(execution: KernelExecution, kind: str, content: dict[str, Any], at_ns: int) -> None:
    match kind:
        case "stream":
            execution.output += str(content.get("text", ""))
        case "execute_result" | "display_data":
            data = content.get("data")
            execution.output += str(data.get("text/plain", "")) + "\n" if isinstance(data, dict) else ""
        case "error":
            execution.output += f"{content.get('ename')}: {content.get('evalue')}\n"
            execution.state = "error"
        case "execute_reply":
            execution.state = "ok" if content.get("status") == "ok" else "error"
            execution.ended_ns = at_ns
    execution.output = execution.output[-MAX_OUTPUT:]
