"""Replay: redelivers dead letters to the subscribers that failed, and publishes stored messages again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trunkline.delivery.dead_letters import Cause, Choice, DeadLetter, Key
from trunkline.delivery.limits import Buckets, Rate
from trunkline.errors import Closed, TrunklineError, UsageError
from trunkline.journal.reader import Reader
from trunkline.message import Message
from trunkline.moment import Moment
from trunkline.plural import counted
from trunkline.topic import CONTROL, DEAD_PREFIX, HEARTBEAT_PREFIX, REPLIES, validate_pattern, validate_topic

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

T = TypeVar("T")

REPLAYED_FROM = "replayed-from"
"""The header of a message that is published again: the number it had the first time."""
CHUNK = 1000
OWN = (REPLIES, DEAD_PREFIX, CONTROL, HEARTBEAT_PREFIX)


class ReplayFailure(msgspec.Struct, frozen=True):
    message_id: str
    reason: str


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay or of a dry run: the ids of the messages, in order, and which of them failed."""

    ids: tuple[str, ...]
    failed: tuple[ReplayFailure, ...] = ()
    dry_run: bool = False

    @property
    def count(self) -> int:
        return len(self.ids) - len(self.failed)

    def __str__(self) -> str:
        messages = counted(self.count, "message")
        if self.dry_run:
            return f"{messages} would be replayed"
        failed = f", {len(self.failed)} failed, the first because {self.failed[0].reason}" if self.failed else ""
        return f"{messages} replayed{failed}"


class Pace:
    """Waits as required by a rate; without one, only lets other tasks run."""

    def __init__(self, per_s: float | None) -> None:
        if per_s is not None and not per_s > 0:
            raise UsageError(f"per_s must be above 0 messages a second, not {per_s!r}; leave it out for no limit")
        self._buckets = None if per_s is None else Buckets(Rate(per_s=per_s, burst=1))

    async def step(self) -> None:
        if self._buckets is None:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        while (wait_s := self._buckets.take("", loop.time())) > 0:  # noqa: ASYNC110  # the pause is computed
            await asyncio.sleep(wait_s)


async def replay_dead(
    bus: Bus,
    *,
    message_id: str | None,
    subscriber: str | None,
    cause: Cause | None,
    pattern: str,
    per_s: float | None,
    dry_run: bool,
) -> Replayed:
    ids: list[str] = []
    failed: list[ReplayFailure] = []
    seen: set[Key] = set()
    pace = Pace(per_s)
    choice = Choice(topic=validate_pattern(pattern), subscriber=subscriber, cause=cause, message_id=message_id)
    async for letters in _dead_letters(bus):
        # A message that fails again meanwhile is not replayed again, or the replay might never end.
        found = [letter for letter in letters if letter.key not in seen]
        seen.update(letter.key for letter in found)
        for letter in filter(choice.holds, found):
            ids.append(letter.message.id)
            if dry_run:
                continue
            await pace.step()
            if (why := _replay(bus, letter)) is not None:
                failed.append(ReplayFailure(letter.message.id, why))
    return Replayed(tuple(ids), tuple(failed), dry_run)


async def _dead_letters(bus: Bus) -> AsyncIterator[list[DeadLetter]]:
    """The dead letters in memory, then the stored ones page by page, which may be more."""
    yield list(bus.dead_letters)
    store, after, more = bus.broker.store, "", True
    while store is not None and more:
        letters, after = await store.recall_dead_letters(after)
        yield letters
        more = after != ""


def _replay(bus: Bus, letter: DeadLetter) -> str | None:
    try:
        bus.dead_letters.replay_stored(letter)
    except TrunklineError as error:
        return str(error)
    return None


async def replay(
    bus: Bus,
    source: str | Path,
    pattern: str,
    *,
    first: int,
    last: int | None,
    since: Moment | None,
    until: Moment | None,
    to: str | None,
    per_s: float | None,
    dry_run: bool,
) -> Replayed:
    with Reader(source) as reader:
        # Messages that are published during the replay are not replayed, or it might never end.
        end = reader.last() if last is None else min(last, reader.last())
        messages = reader.messages(pattern, first=first, last=end, since=since, until=until)
        own = pattern.startswith("_")
        return await replay_these(bus, messages, to=to, per_s=per_s, dry_run=dry_run, own=own)


async def replay_these(
    bus: Bus,
    messages: Iterable[Message],
    *,
    to: str | None = None,
    per_s: float | None = None,
    dry_run: bool = False,
    own: bool = False,
) -> Replayed:
    """Publish messages again, in order.

    Internal messages of the bus, answers and notices are included only with `own`.
    """
    ids: list[str] = []
    failed: list[ReplayFailure] = []
    pace = Pace(per_s)
    if to is not None:
        validate_topic(to)
    async for message in _in_thread(messages):
        if not own and message.topic.startswith(OWN):
            # Old answers and notices have no receiver now.
            continue
        ids.append(message.id)
        if dry_run:
            continue
        await pace.step()
        try:
            await bus.post(_again(bus.hooks.reopened(message), to))
        except Closed:
            # All later messages would fail, too.
            raise
        except TrunklineError as error:
            failed.append(ReplayFailure(message.id, str(error)))
    return Replayed(tuple(ids), tuple(failed), dry_run)


def _again(message: Message, to: str | None) -> Message:
    """A new message with the content of the old one, and a header that marks it as a replay."""
    return message.replace(
        id="",
        timestamp_ns=0,
        attempts=0,
        topic=message.topic if to is None else f"{to}.{message.topic}",
        correlation_id=message.correlation_id or message.id,
        headers={**(message.headers or {}), REPLAYED_FROM: str(message.seq)},
    )


async def _in_thread(messages: Iterable[Message]) -> AsyncIterator[Message]:
    """Read messages in a thread, in chunks."""
    source = iter(messages)

    def chunk() -> list[Message]:
        return [message for _, message in zip(range(CHUNK), source, strict=False)]

    while found := await _to_its_end(asyncio.to_thread(chunk)):
        for message in found:
            yield message


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a thread, also when cancelled: its data must not be closed while it reads."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
