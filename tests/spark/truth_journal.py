"""The content of a journal as rows for the plain computations. Without Spark."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any

from tests.spark.traffic import Row, Traffic, hour_of
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.journal import Reader
from trunkline.journal.layout import MESSAGES
from trunkline.spark.settings import PipelineSettings


def traffic_of(journal: Path, settings: PipelineSettings = PipelineSettings()) -> Traffic:
    with Reader(journal) as reader:
        rows = [row for batch in reader.arrow() for row in batch.to_pylist()]
        messages = _messages(sorted(rows, key=lambda row: row["seq"]), settings)
        sealed = [
            row
            for file in reader.files("fates")
            for batch in reader.file_batches(file, None, None)
            for row in batch.to_pylist()
        ]
        columns = ("number", "subscriber", "pattern", "fate", "first", "last", "count", "reason", "time")
        hot = reader.query(
            "SELECT number, subscriber, pattern, fate, first, last, count, reason, at_ns FROM fates ORDER BY number"
        )
        fates = [{**row, "time": naive(row["time"])} for row in sealed]
        fates += [dict(zip(columns, (*row[:8], moment(row[8])), strict=True)) for row in hot]
        letters = [
            _letter(*row)
            for row in reader.query("SELECT subscriber, seq, at_ns, topic, id, cause, reason, letter FROM dead_letters")
        ]
        orphans = [
            dict(zip(("seq", "id", "request_id", "topic", "why", "at"), (*row[:5], moment(row[5])), strict=True))
            for row in reader.query("SELECT seq, id, request_id, topic, why, at_ns FROM orphans")
        ]
    return Traffic(messages, fates, letters, orphans)


def _messages(rows: list[Row], settings: PipelineSettings) -> list[Row]:
    """At its hour. A message is left out if a kept one has the same id and is near by its hour."""
    far = timedelta(hours=ceil(settings.horizon_s / 3600))
    kept: defaultdict[str, list[datetime]] = defaultdict(list)
    found = []
    for row in rows:
        time, accepted = naive(row["time"]), naive(row["accepted"])
        late = abs((accepted - time).total_seconds()) > settings.watermark_s
        placed = accepted if late else time
        if any(abs(hour_of(placed) - hour) <= far for hour in kept[row["id"]]):
            continue
        kept[row["id"]].append(hour_of(placed))
        headers = None if row["headers"] is None else dict(row["headers"])
        extra = {"placed": placed, "hour": hour_of(placed), "late": late, "headers": headers}
        found.append({**{name: row[name] for name in MESSAGES.names}, "time": time, "accepted": accepted, **extra})
    return found


def _letter(subscriber: str, seq: int, at_ns: int, topic: str, id: str, cause: str, reason: str, data: bytes) -> Row:
    letter = DeadLetter.from_bytes(data)
    row: dict[str, Any] = {"subscriber": subscriber, "seq": seq, "at": moment(at_ns), "topic": topic, "id": id}
    row |= {"cause": cause, "reason": reason, "error_type": letter.error_type}
    return row | {"traceback": letter.traceback, "attempts": len(letter.attempts)}


def naive(when: datetime) -> datetime:
    return when.astimezone(UTC).replace(tzinfo=None)


def moment(ns: int) -> datetime:
    micros = ns // 1000
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(tzinfo=None, microsecond=micros % 1_000_000)
