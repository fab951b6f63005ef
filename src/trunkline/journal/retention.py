"""Retention: what of a topic is removed. It goes by pieces: a batch, or what one sealed file holds of the topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from trunkline.delivery.fates import Fate
from trunkline.journal.ledger import FATE
from trunkline.journal.reader import Reader
from trunkline.journal.settings import Retention
from trunkline.journal.writer import Database
from trunkline.topic import matches


class Piece(msgspec.Struct, frozen=True):
    topic: str
    path: str | None
    """The sealed file it lies in; None if it is a batch of the journal."""
    first: int
    last: int
    count: int
    bytes: int
    at_ns: int


class Unread(msgspec.Struct, frozen=True):
    """What a durable subscription loses."""

    name: str
    first: int
    last: int
    count: int


class Remove(msgspec.Struct, frozen=True):
    topic: str
    path: str | None
    first: int
    last: int
    count: int
    why: str
    unread_by: tuple[Unread, ...]


class Progress(msgspec.Struct, frozen=True):
    """How far a durable subscription is: everything up to `low` has its fate, up to `read` it was handed out."""

    name: str
    pattern: str
    low: int
    read: int
    reading: bool = False
    """Nobody can tell how far, at this moment."""


def plan(reader: Reader, rules: Sequence[Sequence[Retention]], now_ns: int, progress: list[Progress]) -> list[Remove]:
    """What is to go now: the oldest pieces beyond a limit, up to what somebody has not read yet.

    Rules come in lists: of each the first that matches a topic counts, and of those the one that keeps least.
    """
    removes: list[Remove] = []
    for topic, pieces in _pieces(reader).items():
        readers = [each for each in progress if matches(each.pattern, topic)]
        fitting = (next((rule for rule in some if matches(rule.topics, topic)), None) for some in rules)
        going = (_going(rule, pieces, now_ns, readers) for rule in fitting if rule is not None)
        # Each takes the oldest, up to somewhere.
        for piece, why in max(going, key=len, default=[]):
            unread = tuple(_unread(reader, piece, each) for each in readers if each.read < piece.last)
            removes.append(Remove(topic, piece.path, piece.first, piece.last, piece.count, why, unread))
    return removes


def _going(rule: Retention, pieces: list[Piece], now_ns: int, readers: list[Progress]) -> list[tuple[Piece, str]]:
    going = []
    for piece, why in _beyond(rule, pieces, now_ns):
        if not rule.even_unread and any(each.low < piece.last for each in readers):
            # Those after it are as unread.
            break
        if any(each.reading for each in readers if each.read < piece.last):
            # What is lost to whom is not known yet: another time.
            break
        going.append((piece, why))
    return going


def _unread(reader: Reader, piece: Piece, progress: Progress) -> Unread:
    first = max(piece.first, progress.read + 1)
    if piece.path is None:
        return Unread(progress.name, first, piece.last, piece.last - first + 1)
    found = reader.arrow(piece.topic, first=first, last=piece.last, columns=["seq"])
    return Unread(progress.name, first, piece.last, sum(batch.num_rows for batch in found))


def _pieces(reader: Reader) -> Mapping[str, list[Piece]]:
    """By topic, oldest first."""
    found: dict[str, list[Piece]] = {}
    for row in reader.query(
        "SELECT t.topic, t.path, t.first, t.last, t.count, t.bytes, t.until_at_ns FROM file_topics t ORDER BY t.first"
    ):
        found.setdefault(row[0], []).append(Piece(*row))
    for topic, first, last, size, at_ns in reader.query(
        "SELECT topic, first, last, length(body), at_ns FROM batches ORDER BY first"
    ):
        found.setdefault(topic, []).append(Piece(topic, None, first, last, last - first + 1, size, at_ns))
    return found


def _beyond(rule: Retention, pieces: list[Piece], now_ns: int) -> list[tuple[Piece, str]]:
    """The pieces that lie wholly beyond a limit, oldest first, and which."""
    count = size = 0
    beyond: list[tuple[Piece, str]] = []
    for piece in reversed(pieces):
        why = ""
        if rule.max_age_s is not None and now_ns - piece.at_ns > rule.max_age_s * 1e9:
            why = f"older than max_age_s ({rule.max_age_s:g})"
        elif rule.max_count is not None and count >= rule.max_count:
            why = f"more than max_count ({rule.max_count})"
        elif rule.max_bytes is not None and size >= rule.max_bytes:
            why = f"more than max_bytes ({rule.max_bytes})"
        count += piece.count
        size += piece.bytes
        if why:
            beyond.append((piece, why))
    beyond.reverse()
    return beyond


def told(removes: list[Remove]) -> list[tuple[str, bool]]:
    """What is removed, a line for each topic and reason; and whether somebody had not read it."""
    lines: dict[tuple[str, str], tuple[int, set[str]]] = {}
    for remove in removes:
        count, unread = lines.setdefault((remove.topic, remove.why), (0, set()))
        unread.update(each.name for each in remove.unread_by)
        lines[remove.topic, remove.why] = (count + remove.count, unread)
    return [
        (f"removed {count} messages on {topic}: {why}{_unread_by(unread)}", bool(unread))
        for (topic, why), (count, unread) in lines.items()
    ]


def _unread_by(names: set[str]) -> str:
    return f", unread by {', '.join(sorted(names))}" if names else ""


def take_away(database: Database, removes: list[Remove], now_ns: int) -> None:
    """Drop the batches, and write down what went, and for whom it was lost."""
    removed: dict[tuple[str, str], list[int]] = {}
    for remove in removes:
        if remove.path is None:
            database.execute("DELETE FROM batches WHERE first = ? AND topic = ?", (remove.first, remove.topic))
        # One row a topic and reason, however many pieces.
        span = removed.setdefault((remove.topic, remove.why), [remove.first, remove.last, 0])
        span[1] = remove.last
        span[2] += remove.count
        for unread in remove.unread_by:
            reason = f"removed by retention before it was read: {remove.why}"
            lost = (unread.first, unread.last, unread.count)
            database.execute(FATE, (unread.name, remove.topic, Fate.DROPPED.value, *lost, reason, now_ns))
    for (topic, why), (first, last, count) in removed.items():
        database.execute(
            "INSERT INTO removals (topic, first, last, count, why, at_ns) VALUES (?, ?, ?, ?, ?, ?)",
            (topic, first, last, count, why, now_ns),
        )
