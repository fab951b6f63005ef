"""The data that JetStream stores for a namespace: the stream of messages, and a few keys."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from nats.aio.msg import Msg
from trunkline.brokers.engine.driver import Entry
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.nats.jetstream import JetStream, StoredMessage, merged
from trunkline.brokers.nats.link import NatsLink
from trunkline.brokers.nats.names import NatsNames, place_of
from trunkline.brokers.nats.owners import Owners
from trunkline.brokers.nats.refusals import STREAM_EXISTS, JetStreamRefused, of_answer
from trunkline.errors import EngineUnavailable, NotStored
from trunkline.topic import covers

log = logging.getLogger("trunkline.connection")

DUPLICATES_S = 120
MAX_UPDATES = 10
PAGE = 100
STORED_TOPICS = "stored-topics"
"""What one process at a time changes: JetStream replaces the subjects of a stream without a comparison."""
NANOS = 1_000_000_000


class NatsStore:
    def __init__(self, link: NatsLink, names: NatsNames, settings: EngineSettings, changed: Callable[[], None]) -> None:
        self._link = link
        self._names = names
        self._settings = settings
        self._changed = changed
        """Called when another process has changed which topics are stored."""
        self._warned = False
        self._added: set[str] = set()
        """Patterns that this process has added to the stored topics."""
        self.owners = Owners(link, names, self)
        self.js: JetStream
        self.durable: tuple[str, ...] = ()
        """Patterns of the topics that are stored."""
        self.run = ""

    async def prepare(self) -> None:
        settings, names = self._settings, self._names
        found = await self.js.stream(names.stream)
        if found is None:
            found = await self._create(
                names.stream,
                subjects=self._subjects(merged(settings.durable)),
                discard="old",
                max_age=int((settings.max_age_s or 0) * NANOS),
                max_bytes=settings.max_bytes or -1,
                duplicate_window=int(min(DUPLICATES_S, settings.max_age_s or DUPLICATES_S) * NANOS),
                allow_direct=True,
            )
            self._warn_of_sync()
        self._learn(found)
        if await self.js.stream(names.kept) is None:
            await self._create(names.kept, subjects=[f"{names.kept}.>"], max_msgs_per_subject=1)
        for pattern in settings.durable:
            await self.add_durable(pattern)

    async def _create(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a stream. If another process has created it meanwhile, perhaps for other topics, returns that one."""
        replicas = self._settings.replicas
        try:
            return await self.js.ask(
                f"STREAM.CREATE.{name}",
                name=name,
                retention="limits",
                storage="file",
                num_replicas=replicas,
                **config,
            )
        except JetStreamRefused as refused:
            if refused.number == STREAM_EXISTS and (found := await self.js.stream(name)) is not None:
                return found
            raise

    def _subjects(self, patterns: list[str]) -> list[str]:
        return [f"{self._names.again}>", *(self._names.prefix + each for each in patterns)]

    def _warn_of_sync(self) -> None:
        if not self._settings.synced and not self._warned:
            self._warned = True
            log.warning(
                "%s acknowledges before it syncs to disk, unless its configuration has `sync_interval: always`: a "
                "power failure may lose acknowledged messages. Set it, and then pass synced=true",
                self._link.url,
            )

    # Stored topics

    def _learn(self, stream: dict[str, Any]) -> None:
        prefix = self._names.prefix
        subjects = stream["config"]["subjects"]
        self.durable = tuple(each[len(prefix) :] for each in subjects if each.startswith(prefix))
        self.run = stream["created"]

    async def add_durable(self, pattern: str) -> None:
        self._added.add(pattern)
        if await self._without(pattern) is not None:
            async with self.owners.alone(STORED_TOPICS):
                await self._update(pattern)
        self._link.publish(f"{self._names.control}durable", b"")

    async def _update(self, pattern: str) -> None:
        for _ in range(MAX_UPDATES):
            config = await self._without(pattern)
            if config is None:
                return
            subjects = self._subjects(merged([*self.durable, pattern]))
            await self.js.ask(f"STREAM.UPDATE.{self._names.stream}", **{**config, "subjects": subjects})
        raise NotStored(f"{pattern}: other processes keep changing the stored topics: try again")

    async def _without(self, pattern: str) -> dict[str, Any] | None:
        """The configuration of the stream, if it does not store a pattern; None if it does."""
        found = await self.js.stream(self._names.stream)
        if found is None:
            raise NotStored(f"{pattern}: the stream {self._names.stream} is gone")
        self._learn(found)
        config: dict[str, Any] = found["config"]
        return None if any(covers(each, pattern) for each in self.durable) else config

    async def durable_changed(self, message: Msg) -> None:
        """Called when a process has announced that more topics are stored."""
        self._link.start(self._learn_again())

    async def _learn_again(self) -> None:
        before = self.durable
        try:
            found = await self.js.stream(self._names.stream)
        except (EngineUnavailable, JetStreamRefused) as error:
            log.warning("could not read which topics %s stores: %s", self._link.url, error)
            return
        if found is not None:
            self._learn(found)
            learned = self.durable
            # Publishers are informed after that: topics that are added again stay durable for them.
            await self._add_again()
            if not before == learned == self.durable:
                self._changed()

    async def _add_again(self) -> None:
        """Add patterns again that another program, or a process that did not answer in time, has removed."""
        for pattern in self._added:
            if not any(covers(each, pattern) for each in self.durable):
                try:
                    await self.add_durable(pattern)
                except (EngineUnavailable, JetStreamRefused, NotStored) as error:
                    log.error("%s no longer stores %s: %s", self._link.url, pattern, error)

    def only_has(self, pattern: str) -> bool:
        """Whether every stored topic matches the pattern."""
        return all(covers(pattern, each) for each in self.durable)

    # Entries

    async def give_back(self, role: str, topic: str, data: bytes) -> None:
        await self.put(f"{self._names.again}{place_of(role)}.{topic}", data)

    async def put(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        """Store a message. Returns its number when it is stored. Raises JetStreamRefused."""
        answer = json.loads((await self._link.request(subject, data, headers)).data)
        if (error := of_answer(answer)) is not None:
            raise error
        return int(answer["seq"])

    async def last(self, topic: str, below: int | None) -> Entry | None:
        subject = self._names.prefix + topic
        found = await self.js.message(self._names.stream, last_by_subj=subject)
        if found is not None and below is not None and found.seq >= below:
            found = await self._before(subject, below)
        return None if found is None else Entry(found.seq, topic, found.data, nanoseconds(found.time))

    async def _before(self, subject: str, below: int) -> StoredMessage | None:
        """The last message of a subject below a number.

        Needs a search, because JetStream can only find the next one.
        """
        low, step = below, 1
        found = None
        while found is None and low > 1:
            low = max(1, low - step)
            step *= 2
            found = await self._next(subject, low, below)
        if found is None:
            return None
        high = below
        # There may be later messages between the one found and `below`.
        while found.seq + 1 < high:
            middle = (found.seq + 1 + high) // 2
            each = await self._next(subject, middle, below)
            if each is None:
                high = middle
            else:
                found = each
        return found

    async def _next(self, subject: str, first: int, below: int) -> StoredMessage | None:
        found = await self.js.message(self._names.stream, seq=first, next_by_subj=subject)
        return found if found is not None and found.seq < below else None

    # A few keys

    async def keep(self, table: str, key: str, value: bytes) -> None:
        await self.put(f"{self._names.kept}.{table}.{key}", value)

    async def discard(self, table: str, key: str = ">") -> None:
        """Remove a value, or all values of a table."""
        await self.js.purge(self._names.kept, f"{self._names.kept}.{table}.{key}")

    async def kept(self, table: str, key: str) -> bytes | None:
        found = await self.js.message(self._names.kept, last_by_subj=f"{self._names.kept}.{table}.{key}")
        return None if found is None else found.data

    async def page(self, table: str, after: str) -> tuple[list[tuple[str, bytes]], str]:
        subject = f"{self._names.kept}.{table}."
        found: list[tuple[str, bytes]] = []
        at = int(after or 0) + 1
        while len(found) < PAGE:
            each = await self.js.message(self._names.kept, seq=at, next_by_subj=f"{subject}>")
            if each is None:
                return found, ""
            found.append((each.subject[len(subject) :], each.data))
            at = each.seq + 1
        return found, str(at - 1)


def nanoseconds(moment: str) -> int:
    """The nanoseconds of a time in JetStream's format, which has up to nine decimal places."""
    whole, _, rest = moment.rstrip("Z").partition(".")
    digits, _, _ = rest.partition("+")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * NANOS + int(digits.ljust(9, "0")[:9] or 0)
