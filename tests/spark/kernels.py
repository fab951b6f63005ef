"""Random traffic of Jupyter kernels, as bronze rows: early outputs, missing replies, errors, streams, bad payloads."""

from __future__ import annotations

import json
import random
import zlib
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tests.spark.traffic import START, Row, Traffic, message
from trunkline.codec import JSON, MSGPACK

KERNELS = ("k1", "k2", "grüße")
BROKEN = (b"", b"not json {", b"\xff\xfe", b'{"header": {"msg_id": "x1"}, "con', b"[1]", b"null")


def jupyter(kind: str, content: dict[str, Any], msg_id: str = "", parent: str | None = None) -> dict[str, Any]:
    header = {"msg_id": msg_id, "msg_type": kind, "session": "s1", "username": "ada", "date": "", "version": "5.3"}
    return {
        "header": header,
        "parent_header": {} if parent is None else {"msg_id": parent, "msg_type": "execute_request"},
        "metadata": {},
        "content": content,
    }


def kernels(seed: int, executions: int = 25) -> Traffic:
    """Executions over about two hours. Their messages arrive in an order that real networks cause."""
    chance = random.Random(seed)
    said: list[tuple[datetime, str, dict[str, Any]]] = []
    now = START
    for number in range(executions):
        now += timedelta(seconds=chance.uniform(1, 600))
        # Two kernels may be asked under the same id: clients number as they like.
        said += _execution(chance, now, chance.choice(KERNELS), f"e{number if chance.random() < 0.9 else 0}")
    said.sort(key=lambda each: each[0])
    rows: list[Row] = []
    for seq, (at, topic, jupyters) in enumerate(said, start=1):
        skew = chance.choice((0, 0, 0, chance.uniform(-200, 200)))
        rows.append(message(seq, at, topic=topic, time=at - timedelta(seconds=skew), **_payload(chance, jupyters)))
    return Traffic(rows, [], [], [])


def _payload(chance: random.Random, said: dict[str, Any]) -> dict[str, Any]:
    kind = chance.random()
    plain = json.dumps(said, ensure_ascii=chance.random() < 0.5).encode()
    if kind < 0.05:
        return {"payload": chance.choice(BROKEN)}
    if kind < 0.1:
        return {"payload": zlib.compress(plain), "encoding": "zlib"}
    if kind < 0.15:
        return {"payload": msgspec.msgpack.encode(said), "content_type": MSGPACK}
    if kind < 0.17:
        return {"payload": plain, "content_type": "application/octet-stream"}
    return {"payload": plain, "content_type": JSON}


def _execution(chance: random.Random, asked: datetime, kernel: str, msg_id: str) -> list[tuple[datetime, str, Any]]:
    found: list[tuple[datetime, str, Any]] = []
    at = asked

    def say(channel: str, kind: str, content: dict[str, Any], *, parent: str | None = msg_id, own: str = "o") -> None:
        nonlocal at
        at += timedelta(milliseconds=chance.choice((1, 20, 3000, 400_000 if chance.random() < 0.1 else 1)))
        # Now and then it is seen before what it answers.
        seen = at if chance.random() < 0.9 else asked - timedelta(milliseconds=chance.choice((1, 5000)))
        found.append((seen, f"kernel.{kernel}.{channel}.{kind}", jupyter(kind, content, own, parent)))

    request: dict[str, Any] = {"code": f"print('{kernel}')\n1 / 0"}
    if chance.random() < 0.7:
        request["silent"] = chance.random() < 0.2
    channel = chance.choice(("shell", "shell", "shell", "control"))
    say(channel, "execute_request", request, parent=None, own=msg_id)
    if chance.random() < 0.1:
        return found
    if chance.random() < 0.9:
        say("iopub", "status", {"execution_state": "busy"})
    if chance.random() < 0.8:
        say("iopub", "execute_input", {"code": request["code"], "execution_count": 7})
    for _ in range(chance.choice((0, 0, 1, 3, 6))):
        _output(chance, say)
    outcome = chance.choice(("ok", "ok", "ok", "error", "aborted", "abort", None))
    if outcome == "error":
        failure = {"ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": ["in f", "\x1b[31min g"]}
        if chance.random() < 0.8:
            say("iopub", "error", failure)
        say(channel, "execute_reply", {"status": "error", "execution_count": 8, **failure})
    elif outcome is not None:
        say(channel, "execute_reply", {"status": outcome, **({"execution_count": 8} if outcome == "ok" else {})})
    if chance.random() < 0.8:
        say("iopub", "status", {"execution_state": "idle"})
    if chance.random() < 0.2:
        say("iopub", "status", {"execution_state": "idle"})
    say("shell", "comm_info_reply", {"status": "ok"})
    say("iopub", "stream", {"name": "stdout", "text": "nobody's"}, parent=None)
    return found


def _output(chance: random.Random, say: Any) -> None:
    kind = chance.choice(("stream", "stream", "display_data", "execute_result", "update_display_data"))
    if kind == "stream":
        text = chance.choice(("héllo\n", "", "x" * 4000, "木" * 9999, "y" * 25_000))
        say("iopub", kind, {"name": chance.choice(("stdout", "stdout", "stderr")), "text": text})
        return
    data = {"text/plain": "1", "image/png": "iVBO", "application/json": {"a": [1]}}
    chosen = dict(list(data.items())[: chance.randrange(4)])
    say("iopub", kind, {"data": chosen, "metadata": {}, "transient": {}})
