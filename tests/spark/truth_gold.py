"""The gold tables in plain Python, from their definitions: what Spark makes must be equal to this."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from statistics import fmean, pstdev

from tests.spark.traffic import Row, Traffic, hour_of
from tests.spark.truth_silver import deliveries as deliveries
from trunkline.topic import matches

MINUTE = timedelta(minutes=1)
ZERO = timedelta(0)


def minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def requests(given: Traffic) -> list[Row]:
    """Each request with its first answer. Details of duplicates do not matter here."""
    rows = []
    for asked in (row for row in given.messages if row["type"] == "request"):
        came = [
            row
            for row in given.messages
            if row["type"] in ("response", "error") and row["request_id"] == asked["request_id"]
        ]
        first = min(came, key=lambda row: int(row["seq"]), default=None)
        outcome = "timed out" if first is None else "answered" if first["type"] == "response" else "failed"
        row = {name: asked[name] for name in ("seq", "id", "request_id", "topic", "sender", "hour")}
        row |= {"asked": asked["placed"], "outcome": outcome, "answers": len(came)}
        row |= {"answered": first and first["placed"], "responder": first and first["sender"]}
        row |= {"answer_seq": first and first["seq"], "answer_id": first and first["id"]}
        row["latency_ms"] = first and micros(first["accepted"] - asked["accepted"]) / 1000
        rows.append(row)
    return rows


# Percentiles


def exact(values_ms: Iterable[float]) -> dict[int, float | None]:
    """By percent: exact percentiles, without a sketch or rounding."""
    rising = sorted(max(value, 0.0) for value in values_ms)
    return {
        percent: rising[-(-len(rising) * percent // 100) - 1] if rising else None for percent in (50, 95, 99)
    }  # fmt: skip


def _percentiles(stem: str, values_ms: Iterable[float]) -> Row:
    values = list(values_ms)
    sizes = Counter(_bucket(value) for value in values)
    sketch = [{"bucket": bucket, "count": count} for bucket, count in sorted(sizes.items())] or None
    return {f"{stem}_p{percent}_ms": value for percent, value in exact(values).items()} | {f"{stem}_sketch": sketch}


def _bucket(value_ms: float) -> int:
    whole = round(value_ms * 1000)
    return math.ceil(math.log(whole) * 50) if whole > 0 else -1


# Tables


def topic_minute(given: Traffic) -> list[Row]:
    rows = []
    answered, died = requests(given), deliveries(given)
    for (topic, minute), mine in _grouped(given.messages, lambda row: (row["topic"], minute_of(row["placed"]))).items():
        errors = sum(row["type"] == "error" for row in mine)
        dead = sum(_is(row, topic=topic, fate="dead") and minute_of(row["published"]) == minute for row in died)
        took = [
            row["latency_ms"]
            for row in answered
            if _is(row, topic=topic, outcome="answered") and minute_of(row["asked"]) == minute
        ]
        rows.append(
            {
                "topic": topic,
                "minute": minute,
                "messages": len(mine),
                "bytes": sum(len(row["payload"]) for row in mine),
                "senders": len({row["sender"] for row in mine}),
                "requests": sum(row["type"] == "request" for row in mine),
                "errors": errors,
                "dead": dead,
                "error_rate": (errors + dead) / len(mine),
                **_percentiles("latency", took),
                **_percentiles("delay", [micros(max(row["accepted"] - row["time"], ZERO)) / 1000 for row in mine]),
                "hour": hour_of(minute),
            }
        )
    return rows


def sender_minute(given: Traffic) -> list[Row]:
    rows = []
    asked = requests(given)
    for (sender, minute), mine in _grouped(
        given.messages, lambda row: (row["sender"], minute_of(row["placed"]))
    ).items():
        own = [row for row in asked if row["sender"] == sender and minute_of(row["asked"]) == minute]
        ends = Counter(row["outcome"] for row in own)
        rows.append(
            {
                "sender": sender,
                "minute": minute,
                "messages": len(mine),
                "bytes": sum(len(row["payload"]) for row in mine),
                "topics": len({row["topic"] for row in mine}),
                "requests": len(own),
                "answered": ends["answered"],
                "failed": ends["failed"],
                "timed_out": ends["timed out"],
                "error_rate": (ends["failed"] + ends["timed out"]) / len(own) if own else None,
                **_percentiles("latency", [row["latency_ms"] for row in own if row["outcome"] == "answered"]),
                "hour": hour_of(minute),
            }
        )
    return rows


FATES = ("delivered", "filtered", "expired", "dropped", "dead", "refused")


def subscriber_minute(given: Traffic) -> list[Row]:
    rows = []
    for (name, minute), mine in _grouped(
        deliveries(given), lambda row: (row["subscriber"], minute_of(row["published"]))
    ).items():
        ends = Counter(row["fate"] for row in mine)
        got = [row for row in mine if row["fate"] == "delivered"]
        rows.append(
            {
                "subscriber": name,
                "minute": minute,
                **{fate: ends[fate] for fate in FATES},
                "bytes": sum(row["bytes"] for row in got),
                "error_rate": (ends["dropped"] + ends["dead"] + ends["expired"]) / len(mine),
                **_percentiles("lag", [row["lag_ms"] for row in got]),
                "lag_max_ms": max((max(row["lag_ms"], 0.0) for row in got), default=None),
                "hour": hour_of(minute),
            }
        )
    return rows


def slow_consumers(minutes: list[Row], slow_s: float) -> list[Row]:
    rows = []
    for hour in {row["hour"] for row in minutes}:
        bad = []
        for row in minutes:
            lag = row["lag_p50_ms"]
            why = [word for word, true in (("slow", lag and lag > slow_s * 1000), ("dropped", row["dropped"])) if true]
            if row["hour"] == hour and why:
                names = ("subscriber", "minute", "lag_p50_ms", "lag_p99_ms", "dropped", "delivered", "hour")
                bad.append({name: row[name] for name in names} | {"why": " and ".join(why)})
        bad.sort(key=lambda row: (-(row["lag_p50_ms"] or -1), -row["dropped"], row["subscriber"], row["minute"]))
        rows += [row | {"rank": place} for place, row in enumerate(bad, 1)]
    return rows


def anomalies(given: Traffic, minutes: list[Row]) -> list[Row]:
    rows = []
    for (topic, hour), mine in _grouped(minutes, lambda row: (row["topic"], row["hour"])).items():
        of_hour = [row for row in given.messages if row["hour"] == hour]
        seen = minute_of(min(max(row[name] for row in of_hour) for name in ("placed", "accepted")))
        by_minute = {row["minute"]: row for row in mine}

        def add(
            what: str, minute: datetime, value: float, expected: float, spread: float, lasted: int = 1,
            topic: str = topic, hour: datetime = hour,
        ) -> None:  # fmt: skip
            z = (value - expected) / spread
            row = {"topic": topic, "minute": minute, "what": what, "minutes": lasted, "hour": hour}
            if abs(z) > 4 and abs(value - expected) >= 10:
                rows.append(row | {"value": value, "expected": expected, "z": z})

        for minute, row in by_minute.items():
            rates = [by_minute[each]["messages"] for each in by_minute if each < minute]
            if len(rates) >= 10 and (row["messages"] > fmean(rates) or minute < seen):
                add("rate", minute, row["messages"], fmean(rates), max(pstdev(rates), math.sqrt(fmean(rates))))
            times = [by_minute[each]["latency_p95_ms"] for each in by_minute if each < minute]
            times = [each for each in times if each is not None]
            p95 = row["latency_p95_ms"]
            if p95 is not None and len(times) >= 10 and p95 > fmean(times):
                add("latency", minute, p95, fmean(times), max(pstdev(times), fmean(times) / 10, 1.0))
            lately = [by_minute.get(minute - MINUTE * back) for back in range(10)]
            silent = 0
            while (next_one := minute + MINUTE * (silent + 1)) < min(seen, hour + 60 * MINUTE):
                if next_one in by_minute:
                    break
                silent += 1
            rates = [each["messages"] for each in lately if each is not None]
            if len(rates) == 10 and silent >= 3:
                spread = max(pstdev(rates), math.sqrt(fmean(rates))) * math.sqrt(silent)
                add("silence", minute + MINUTE, 0, fmean(rates) * silent, spread, silent)
    return rows


def accounting(given: Traffic) -> list[Row]:
    refused = {row["seq"] for row in deliveries(given) if row["fate"] == "refused"}
    settled = [row for row in deliveries(given) if row["fate"] != "refused"]
    rows: list[Row] = []
    for (name, hour), mine in _grouped(settled, lambda row: (row["subscriber"], row["hour"])).items():
        of_hour = [row for row in given.messages if row["hour"] == hour]
        fated = {row["seq"]: row for row in mine}
        of_topic = {topic: dict.fromkeys((*FATES[:5], "unaccounted", "in_flight", "claimed"), 0) for topic in
                    {row["topic"] for row in mine}}  # fmt: skip
        ranges = [row for row in given.fates if row["subscriber"] == name and row["first"] < row["last"]]
        claimed: dict[int, list[Row]] = defaultdict(list)
        for row in mine:
            of_topic[row["topic"]][row["fate"]] += 1
            if row["range"] is not None:
                claimed[row["range"]].append(row)
        ranged = bool(claimed)
        for source in ranges:
            found = sorted(claimed[source["number"]], key=lambda row: -int(row["seq"]))
            too_many = max(0, len(found) - source["count"])
            # All on the topic of its last message first, then all on that of the last on another, and so on.
            topics = list(dict.fromkeys(row["topic"] for row in found))
            for row in sorted(found, key=lambda row: topics.index(row["topic"]))[:too_many]:
                of_topic[row["topic"]][row["fate"]] -= 1
                of_topic[row["topic"]]["unaccounted"] += 1
        for source in given.fates:
            end = _end_of(source, given.messages)
            if source["subscriber"] == name and source["fate"] != "refused" and end is not None and end["hour"] == hour:
                of_topic[end["topic"]]["claimed"] += source["count"]
        for topic, sums in of_topic.items():
            if any(row["topic"] == topic and matches(row["pattern"], topic) for row in mine):
                for row in of_hour:
                    if row["topic"] != topic or row["seq"] in fated or row["seq"] in refused:
                        continue
                    if row["seq"] > max(fated):
                        sums["in_flight"] += 1
                    elif row["seq"] > min(fated) and ranged:
                        sums["unaccounted"] += 1
            accepted = sum(value for key, value in sums.items() if key != "claimed")
            sums |= {"accepted": accepted, "adds_up": sums["unaccounted"] == 0, "removed": 0}
            rows.append({"topic": topic, "subscriber": name, "hour": hour, **sums})
    return rows


def _end_of(fate: Row, messages: list[Row]) -> Row | None:
    """The last message of a fate, of those that exist."""
    about = (row for row in messages if fate["first"] <= row["seq"] <= fate["last"])
    mine = [row for row in about if fate["first"] == fate["last"] or matches(fate["pattern"], row["topic"])]
    return max(mine, key=lambda row: int(row["seq"]), default=None)


def _is(row: Row, **fields: object) -> bool:
    return all(row[name] == value for name, value in fields.items())


def _grouped(rows: Iterable[Row], key: Callable[[Row], tuple[str, datetime]]) -> dict[tuple[str, datetime], list[Row]]:
    groups: dict[tuple[str, datetime], list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
