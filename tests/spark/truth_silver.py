"""What deliveries, requests, orphans and dead letters must hold, worked out from rows in plain Python."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from tests.spark.traffic import Row, Traffic
from trunkline.spark.settings import PipelineSettings
from trunkline.topic import matches

SETTINGS = PipelineSettings()


def ms(start: datetime, end: datetime) -> float:
    return (end - start) / timedelta(milliseconds=1)


# Deliveries


def is_about(fate: Row, message: Row) -> bool:
    if not fate["first"] <= message["seq"] <= fate["last"]:
        return False
    return bool(fate["first"] == fate["last"] or matches(fate["pattern"], message["topic"]))


def weight(fate: Row) -> tuple[bool, int]:
    """A row that counts each of its messages takes precedence over a range with gaps; then the higher number."""
    return fate["last"] - fate["first"] + 1 == fate["count"], fate["number"]


def deliveries(given: Traffic) -> list[Row]:
    found = []
    for message in given.messages:
        by_subscriber: dict[str, list[Row]] = defaultdict(list)
        for fate in given.fates:
            if is_about(fate, message):
                by_subscriber[fate["subscriber"]].append(fate)
        for subscriber, fates in by_subscriber.items():
            fate = max(fates, key=weight)
            row = {name: message[name] for name in ("seq", "id", "topic", "sender", "hour")}
            row |= {name: fate[name] for name in ("pattern", "fate", "reason")}
            row["range"] = fate["number"] if fate["first"] < fate["last"] else None
            row |= {"subscriber": subscriber, "published": message["placed"], "settled": fate["time"]}
            row |= {"lag_ms": ms(message["accepted"], fate["time"]), "bytes": len(message["payload"])}
            found.append(row)
    return found


# Requests


def is_near(later: Row, start: Row, settings: PipelineSettings) -> bool:
    return bool(abs(later["placed"] - start["placed"]) <= timedelta(seconds=settings.horizon_s))


def requests(given: Traffic, settings: PipelineSettings = SETTINGS) -> list[Row]:
    orphaned = {row["seq"] for row in given.orphans}
    refused = {row["first"] for row in given.fates if row["fate"] == "refused"}
    found = []
    for asked in given.messages:
        if asked["type"] != "request":
            continue
        answers = [
            row
            for row in sorted(given.messages, key=lambda row: row["seq"])
            if row["type"] in ("response", "error")
            and row["request_id"] is not None
            and row["request_id"] == asked["request_id"]
            and is_near(row, asked, settings)
        ]
        awaited = [row for row in answers if row["seq"] not in orphaned]
        if asked["seq"] in refused:
            outcome = "refused"
        elif awaited:
            outcome = "answered" if awaited[0]["type"] == "response" else "failed"
        elif answers:
            outcome = "orphaned"
        elif given.upto - asked["accepted"] >= timedelta(seconds=settings.request_timeout_s):
            outcome = "timed out"
        else:
            outcome = "open"
        first = next(iter(awaited or answers), None)
        row = {name: asked[name] for name in ("seq", "id", "request_id", "topic", "sender", "hour")}
        row |= {"asked": asked["placed"], "outcome": outcome, "answers": len(answers)}
        row |= {
            "answered": first and first["placed"],
            "latency_ms": first and ms(asked["accepted"], first["accepted"]),
            "responder": first and first["sender"],
            "answer_seq": first and first["seq"],
            "answer_id": first and first["id"],
        }
        found.append(row)
    return found


# Orphans


def orphans(given: Traffic, settings: PipelineSettings = SETTINGS) -> list[Row]:
    found = []
    for orphan in given.orphans:
        for message in given.messages:
            if message["seq"] != orphan["seq"]:
                continue
            asked = [
                row
                for row in given.messages
                if row["type"] == "request"
                and message["request_id"] is not None
                and row["request_id"] == message["request_id"]
                and abs(row["placed"] - message["placed"]) <= timedelta(seconds=settings.horizon_s)
            ]
            request = min(asked, key=lambda row: row["seq"], default=None)
            row = {name: message[name] for name in ("seq", "id", "request_id", "topic", "type", "sender", "hour")}
            row |= {"came": message["placed"], "kept": orphan["at"], "why": orphan["why"]}
            row |= {
                "request_seq": request and request["seq"],
                "request_topic": request and request["topic"],
                "asker": request and request["sender"],
                "asked": request and request["placed"],
                "after_ms": request and ms(request["accepted"], message["accepted"]),
            }
            found.append(row)
    return found


# Dead letters


def dead_letters(given: Traffic) -> list[Row]:
    """Without fingerprints and columns that depend on them: these are compared by which rows share one."""
    letters = {(row["subscriber"], row["seq"]): row for row in sorted(given.letters, key=lambda row: row["at"])}
    found = []
    for message in given.messages:
        fates = [row for row in given.fates if is_about(row, message)]
        for subscriber in {row["subscriber"] for row in fates}:
            mine = [row for row in fates if row["subscriber"] == subscriber]
            dead = sorted((row for row in mine if row["fate"] == "dead"), key=weight)
            if not dead:
                continue
            later = [row for row in mine if row["fate"] == "delivered" and weight(row) > weight(dead[-1])]
            letter = letters.get((subscriber, message["seq"]))
            row = {name: message[name] for name in ("seq", "id", "topic", "sender", "hour")}
            row |= {"subscriber": subscriber, "published": message["placed"], "died": dead[-1]["time"]}
            row |= {"deaths": len(dead), "replayed": bool(later)}
            row["replayed_at"] = max(later, key=weight)["time"] if later else None
            for name in ("cause", "error_type", "traceback", "attempts"):
                row[name] = letter and letter[name]
            row["reason"] = (letter or dead[-1])["reason"]
            found.append(row)
    return found
