"""Retention: which messages of a topic are removed. The unit is a batch, or all of a topic in one sealed file."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from trunkline.delivery.fates import Fate
from trunkline.journal import records
from trunkline.journal.ledger import FATE
from trunkline.journal.reader import Reader
from trunkline.journal.settings import Retention
from trunkline.journal.writer import Database
from trunkline.plural import counted
from trunkline.topic import STATE_PREFIX, matches

PIECES = (
    "SELECT topic, path, first, last, count, bytes, until_at_ns FROM file_topics UNION ALL"
    " SELECT topic, NULL, first, last, last - first + 1, length(body), at_ns FROM batches"
    " ORDER BY topic DESC, first DESC"
)
"""The query for all parts, topic by topic, newest first. It merges two indexes and needs no sort."""
Numbers = dict[str, "array[int]"]
"""The numbers of the removed messages of a file, in order, by topic."""


class StoredPart(msgspec.Struct, frozen=True):
    topic: str
    path: str | None
    """Its sealed file; None for a batch of the journal."""
    first: int
    last: int
    count: int
    bytes: int
    at_ns: int


class Unread(msgspec.Struct, frozen=True):
    """Unread messages that a durable subscription loses."""

    name: str
    first: int
    last: int
    count: int


class Remove(msgspec.Struct, frozen=True):
    """A part to remove, or a removed part."""

    topic: str
    path: str | None
    first: int
    last: int
    count: int
    why: str
    even_unread: bool
    place: int
    """Its ordinal among the parts of its topic: the newest is 0, the one before it -1."""
    unread_by: tuple[Unread, ...] = ()


class CursorProgress(msgspec.Struct, frozen=True):
    """The position of a durable subscription: all messages up to `low` have a fate, up to `high` all but pending ones.

    Messages up to `read` were delivered. Those between `high` and `read` are held by a process; the disk has no record
    of that.
    """

    name: str
    pattern: str
    low: int
    high: int
    read: int


def plan(
    reader: Reader, rules: Sequence[Sequence[Retention]], now_ns: int, progress: list[CursorProgress], committed: int
) -> list[Remove]:
    """The parts to remove now: the oldest ones beyond a limit that no subscription needs.

    Rules come in lists. In each list, the first rule that matches a topic applies; of these, the strictest one.
    Messages after `committed` are being delivered, and are kept. Only the parts to remove are held in memory.
    """
    removes: list[Remove] = []
    for topic, rows in groupby(reader.each(PIECES), itemgetter(0)):
        fitting = [next((rule for rule in some if matches(rule.topics, topic)), None) for some in rules]
        handed_out = (piece for row in rows if (piece := StoredPart(*row)).last <= committed)
        going = _going([rule for rule in fitting if rule is not None], handed_out, now_ns, progress)
        # Each rule removes the oldest parts up to some point.
        most: list[Remove] = max(going, key=lambda some: len(some), default=[])
        removes += reversed(most)
    return removes


def _going(
    rules: list[Retention], pieces: Iterable[StoredPart], now_ns: int, progress: list[CursorProgress]
) -> list[list[Remove]]:
    """For each rule, the parts of one topic that are completely beyond a limit, newest first.

    Excludes parts that are needed: unread ones, and those that a subscriber holds.
    """
    going: list[list[Remove]] = [[] for _ in rules]
    count = size = 0
    for place, piece in enumerate(pieces):
        for rule, some in zip(rules, going, strict=True):
            kept = place == 0 and (rule.keep_last or piece.topic.startswith(STATE_PREFIX))
            why = "" if kept else _beyond(rule, piece, count, size, now_ns)
            if why:
                numbers = (piece.first, piece.last, piece.count)
                remove = Remove(piece.topic, piece.path, *numbers, why, rule.even_unread, -place)
                if is_free(remove, progress):
                    some.append(remove)
        count += piece.count
        size += piece.bytes
    return going


def is_free(remove: Remove, progress: list[CursorProgress]) -> bool:
    """Whether no durable subscription needs this part.

    Messages that a subscriber holds without a fate on disk are never free: after a crash their fate would be unknown.
    Unread messages are free only if the rule has `even_unread`.
    """
    for each in progress:
        if not matches(each.pattern, remove.topic):
            continue
        if max(remove.first, each.high + 1) <= min(remove.last, each.read):
            return False
        if not remove.even_unread and each.low < remove.last:
            return False
    return True


def _unread(remove: Remove, progress: CursorProgress, numbers: Numbers) -> Unread:
    first = max(remove.first, progress.read + 1)
    count = remove.last - first + 1
    if remove.path is not None:
        there = numbers[remove.topic]
        count = len(there) - bisect_left(there, first)
    return Unread(progress.name, first, remove.last, count)


def _beyond(rule: Retention, piece: StoredPart, count: int, size: int, now_ns: int) -> str:
    """The limit that a part exceeds completely, given the parts after it on its topic; empty if none."""
    if rule.max_age_s is not None and now_ns - piece.at_ns > rule.max_age_s * 1e9:
        return f"older than max_age_s ({rule.max_age_s:g})"
    if rule.max_count is not None and count >= rule.max_count:
        return f"more than max_count ({rule.max_count})"
    if rule.max_bytes is not None and size >= rule.max_bytes:
        return f"more than max_bytes ({rule.max_bytes})"
    return ""


def log_lines(removes: list[Remove]) -> list[tuple[str, bool]]:
    """The log lines of a removal: one for each topic and reason, with the subscriptions that had not read it."""
    lines: dict[tuple[str, str], tuple[int, set[str]]] = {}
    for remove in removes:
        count, unread = lines.setdefault((remove.topic, remove.why), (0, set()))
        unread.update(each.name for each in remove.unread_by)
        lines[remove.topic, remove.why] = (count + remove.count, unread)
    return [
        (f"removed {counted(count, 'message')} on {topic}: {why}{_unread_by(unread)}", bool(unread))
        for (topic, why), (count, unread) in lines.items()
    ]


def _unread_by(names: set[str]) -> str:
    return f", unread by {', '.join(sorted(names))}" if names else ""


def take_away(
    database: Database, removes: list[Remove], progress: list[CursorProgress], numbers: Numbers, now_ns: int
) -> list[Remove]:
    """Delete batches, and record the removal and the losses of subscriptions; part of a transaction.

    Returns what was removed. The caller removes the file of a sealed part.
    """
    removed: list[Remove] = []
    for remove in removes:
        if remove.path is None:
            gone = database.execute("DELETE FROM batches WHERE first = ? AND topic = ?", (remove.first, remove.topic))
            if not gone.rowcount:
                # It is in quarantine.
                continue
        readers = [each for each in progress if each.read < remove.last and matches(each.pattern, remove.topic)]
        unread = tuple(_unread(remove, each, numbers) for each in readers)
        removed.append(msgspec.structs.replace(remove, unread_by=unread))
        database.execute(records.FORGET, (remove.first, remove.last, remove.topic))
        for each in unread:
            reason = f"removed by retention before it was read: {remove.why}"
            lost = (each.first, each.last, each.count)
            database.execute(FATE, (each.name, remove.topic, Fate.DROPPED.value, *lost, reason, now_ns))
    database.executemany(
        "INSERT INTO removals (topic, first, last, count, why, at_ns) VALUES (?, ?, ?, ?, ?, ?)",
        [(topic, first, last, count, why, now_ns) for topic, first, last, count, why in _joined(removed)],
    )
    return removed


def _joined(removed: list[Remove]) -> list[tuple[str, int, int, int, str]]:
    """Adjacent parts as one: topic, first, last, count, why."""
    joined: list[tuple[str, int, int, int, str]] = []
    before: Remove | None = None
    for each in removed:
        if before is not None and (before.topic, before.why, before.place + 1) == (each.topic, each.why, each.place):
            topic, first, _, count, why = joined.pop()
            joined.append((topic, first, each.last, count + each.count, why))
        else:
            joined.append((each.topic, each.first, each.last, each.count, each.why))
        before = each
    return joined
