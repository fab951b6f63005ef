"""What conversations, executions and conformance must hold, worked out from rows in plain Python."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tests.spark.traffic import Row, Traffic
from trunkline.errors import PayloadError
from trunkline.message import Message
from trunkline.registry.registry import Registry, Who
from trunkline.schema import Checker, hash_of
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables.table import ChannelContract
from trunkline.wire.control import ChannelCreate

HOUR = timedelta(hours=1)
SETTINGS = PipelineSettings()


def reach(settings: PipelineSettings = SETTINGS) -> timedelta:
    return math.ceil(settings.horizon_s / 3600) * HOUR


def ms(start: datetime, end: datetime) -> float:
    return (end - start) / timedelta(milliseconds=1)


# Conversations


def parent_of(row: Row, rows: list[Row], settings: PipelineSettings = SETTINGS) -> Row | None:
    def near(other: Row) -> bool:
        return bool(other["seq"] < row["seq"] and abs(row["hour"] - other["hour"]) <= reach(settings))

    earlier = [other for other in rows if near(other)]
    meant = row["correlation_id"]
    if meant is not None:
        named = [other for other in earlier if other["id"] == meant]
        if named:
            return max(named, key=lambda each: int(each["seq"]))
    if row["type"] in ("response", "error") and row["request_id"] is not None:
        asked = [each for each in earlier if each["type"] == "request" and each["request_id"] == row["request_id"]]
        if asked:
            return max(asked, key=lambda each: int(each["seq"]))
    if meant is not None:
        alike = [other for other in earlier if other["correlation_id"] == meant]
        if alike:
            return min(alike, key=lambda each: int(each["seq"]))
    return None


def conversations(traffic: Traffic, settings: PipelineSettings = SETTINGS) -> list[Row]:
    rows = traffic.messages
    parents = {row["seq"]: parent_of(row, rows, settings) for row in rows}
    trees: dict[int, list[tuple[Row, int]]] = defaultdict(list)
    roots: dict[int, Row] = {}
    for row in rows:
        way = [row]
        while (above := parents[way[-1]["seq"]]) is not None:
            way.append(above)
        top, steps = way[-1], len(way) - 1
        if all(abs(each["hour"] - top["hour"]) <= reach(settings) for each in way):
            roots[top["seq"]] = top
            trees[top["seq"]].append((row, steps))
    found = []
    for seq, members in trees.items():
        if len(members) < 2:
            continue
        root = roots[seq]
        messages = [row for row, _ in members]
        children: dict[int, int] = defaultdict(int)
        for row in messages:
            if (above := parents[row["seq"]]) is not None:
                children[above["seq"]] += 1
        ended = max(row["placed"] for row in messages)
        found.append(
            {
                "root_id": root["id"],
                "key": root["id"] if root["correlation_id"] is None else root["correlation_id"],
                "topic": root["topic"],
                "sender": root["sender"],
                "messages": len(messages),
                "depth": max(steps for _, steps in members) + 1,
                "fan_out": max(children.values()),
                "senders": sorted({row["sender"] for row in messages}),
                "topics": sorted({row["topic"] for row in messages}),
                "began": root["placed"],
                "ended": ended,
                "total_ms": ms(root["placed"], ended),
                "errors": sum(row["type"] == "error" for row in messages),
                "hour": root["hour"],
            }
        )
    return found


def closed(traffic: Traffic, hours: set[datetime], settings: PipelineSettings = SETTINGS) -> list[datetime]:
    """With the hours that messages of these refer to, in both directions and repeatedly, as in a run."""
    while True:
        more = set()
        for row in traffic.messages:
            if row["hour"] not in hours:
                continue
            for other in traffic.messages:
                if abs(row["hour"] - other["hour"]) <= reach(settings) and _refers(row, other):
                    more.add(other["hour"])
        if more <= hours:
            return sorted(hours)
        hours = hours | more


def _refers(row: Row, other: Row) -> bool:
    if row["topic"].startswith("kernel.") and other["topic"].startswith("kernel."):
        return True
    meant = row["correlation_id"]
    if meant is not None and meant in (other["id"], other["correlation_id"]):
        return True
    return bool(
        row["type"] in ("response", "error") and other["type"] == "request" and row["request_id"] == other["request_id"]
    )


# Executions


def jupyter_of(row: Row) -> dict[str, Any] | None:
    try:
        value = _message(row).decode()
    except PayloadError:
        return None
    return value if isinstance(value, dict) else None


def _message(row: Row) -> Message:
    return Message(
        seq=row["seq"],
        payload=row["payload"],
        topic=row["topic"],
        sender=row["sender"],
        id=row["id"],
        content_type=row["content_type"],
        encoding=row["encoding"],
    )


def executions(traffic: Traffic, settings: PipelineSettings = SETTINGS) -> list[Row]:
    heard: list[tuple[Row, str, str, dict[str, Any]]] = []
    for row in traffic.messages:
        parts = row["topic"].split(".")
        said = jupyter_of(row)
        if len(parts) == 4 and parts[0] == "kernel" and said is not None and "header" in said:
            channel = "shell" if parts[2] == "control" else parts[2]
            heard.append((row, parts[1], f"{channel}/{parts[3]}", said))
    found = []
    for row, kernel, kind, said in heard:
        if kind == "shell/execute_request":
            mine = [
                (other, what, its["content"])
                for other, its_kernel, what, its in heard
                if its_kernel == kernel
                and its["parent_header"].get("msg_id") == said["header"]["msg_id"]
                and abs(other["hour"] - row["hour"]) <= reach(settings)
            ]
            mine.sort(key=lambda each: int(each[0]["seq"]))
            found.append(_execution(row, kernel, said, mine))
    return found


def _execution(row: Row, kernel: str, said: dict[str, Any], mine: list[tuple[Row, str, dict[str, Any]]]) -> Row:
    def placed(kind: str, **wanted: str) -> datetime | None:
        return next(
            (each["placed"] for each, what, its in mine if what == kind and wanted.items() <= its.items()), None
        )

    def said_first(kind: str) -> dict[str, Any]:
        return next((its for _, what, its in mine if what == kind), {})

    reply, error, echo = (
        said_first(f"{kind}") for kind in ("shell/execute_reply", "iopub/error", "iopub/execute_input")
    )
    busy, idle = (placed("iopub/status", execution_state=state) for state in ("busy", "idle"))
    replied = placed("shell/execute_reply")
    ends = [each for each in (idle, replied) if each is not None]
    ended = max(ends, default=None)
    streams = {
        name: "".join(its["text"] for _, what, its in mine if what == "iopub/stream" and its["name"] == name)
        for name in ("stdout", "stderr")
    }
    shown = ("iopub/display_data", "iopub/execute_result", "iopub/update_display_data")
    outputs = [its for _, what, its in mine if what in shown]
    lines = reply.get("traceback", error.get("traceback"))
    return {
        "kernel": kernel,
        "msg_id": said["header"]["msg_id"],
        "session": "s1",
        "username": "ada",
        "code": said["content"]["code"],
        "silent": said["content"].get("silent", False),
        "execution_count": reply.get("execution_count", echo.get("execution_count")),
        "asked": row["placed"],
        "started": busy,
        "ended": ended,
        "duration_ms": None if ended is None else ms(busy or row["placed"], ended),
        "status": {None: "open", "abort": "aborted"}.get(reply.get("status"), reply.get("status")),
        "ename": reply.get("ename", error.get("ename")),
        "evalue": reply.get("evalue", error.get("evalue")),
        "traceback": None if lines is None else "\n".join(lines),
        "stdout": streams["stdout"][:10_000],
        "stderr": streams["stderr"][:10_000],
        "truncated": any(len(text) > 10_000 for text in streams.values()),
        "outputs": len(outputs),
        "mime_types": sorted({mime for its in outputs for mime in its["data"]}),
        "complete": idle is not None and replied is not None,
        "hour": row["hour"],
    }


# Conformance


def registry(channels: tuple[ChannelContract, ...]) -> Registry:
    """The checker of the hub, with these channels."""
    made = Registry()
    who = Who("session", "name", "identity")
    for channel in channels:
        made.create(who, ChannelCreate(id=1, channel=channel.name, pattern=channel.pattern), 0)
    return made


def conformance(traffic: Traffic) -> list[Row]:
    hub = registry(traffic.channels)
    schemas = {channel.name: channel.schema for channel in traffic.channels}
    found = []
    for row in traffic.messages:
        channel = hub.find(row["topic"])
        if channel is None or schemas[channel.name] is None:
            continue
        schema = schemas[channel.name]
        problem = Checker(schema).broken(_message(row))
        field, why = problem or (None, None)
        found.append(
            {
                **{name: row[name] for name in ("seq", "id", "topic")},
                "channel": channel.name,
                "schema_hash": hash_of(schema),
                "sender": row["sender"],
                "ok": problem is None,
                "field": field,
                "problem": why,
                "hour": row["hour"],
            }
        )
    return found


def payloads(traffic: Traffic, channel: str) -> dict[int, Any]:
    """The content of typed tables: the values of matching messages, by number."""
    fitting = {row["seq"] for row in conformance(traffic) if row["ok"] and row["channel"] == channel}
    return {row["seq"]: _message(row).decode() for row in traffic.messages if row["seq"] in fitting}


def as_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))
