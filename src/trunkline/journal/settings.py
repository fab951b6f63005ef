"""The settings of a journal."""

from __future__ import annotations

import enum

from trunkline.brokers.store import Retention as Retention
from trunkline.errors import InvalidSettings
from trunkline.settings import Group
from trunkline.topic import EVERYTHING, NEVER_DURABLE, NEVER_STORED, matches, validate_pattern

MIB = 1024 * 1024


class Sync(enum.StrEnum):
    """When a commit is complete."""

    DISK = "disk"
    """The data is on the disk, and survives a power failure."""
    SYSTEM = "system"
    """The operating system has the data.

    It survives a crash of the process, but not a power failure. This is faster.
    """


class TopicStorage(enum.IntEnum):
    """How the journal stores a topic."""

    NOT = 0
    RECORDED = 1
    DURABLE = 2


class JournalSettings(Group, frozen=True, kw_only=True):
    """Messages on `durable` topics are on disk when their publish returns; those on `recorded` topics are written
    later.

    Answers to requests and notices of dead letters are only recorded, even on durable topics, so that their publishers
    never wait. A stretch is sealed when it has `seal_rows` messages, `seal_bytes` bytes, or is `seal_age_s` old. Sealed
    files under half of `seal_rows` are joined. A file that was replaced stays for `replaced_s`, for readers that have
    it open.
    """

    may_be_zero = frozenset({"replaced_s", "flush_s", "commit_in_loop_s"})

    durable: tuple[str, ...] = (EVERYTHING,)
    recorded: tuple[str, ...] = ()
    sync: Sync = Sync.DISK
    flush_s: float = 0.02
    """How long acknowledgements and fates may wait for the next commit."""
    commit_in_loop_s: float = 0.001
    """While commits take less than this, a single publish of this process is committed in the event loop's thread."""
    max_backlog_bytes: int = 64 * MIB
    prefetch: int = 1000
    """The default `capacity` of a durable subscriber's inbox."""
    seal: bool = True
    seal_rows: int = 250_000
    seal_bytes: int = 128 * MIB
    seal_age_s: float = 3600.0
    tend_s: float = 5.0
    """How often the journal checks for messages and files to seal, join or remove."""
    replaced_s: float = 3600.0
    max_orphans: int = 100_000
    retention: tuple[Retention, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in (*self.durable, *self.recorded):
            validate_pattern(pattern)
        if any(not isinstance(rule, Retention) for rule in self.retention):
            raise InvalidSettings("JournalSettings.retention must be a tuple of Retention")

    def keeps(self, topic: str) -> TopicStorage:
        if topic.startswith(NEVER_STORED):
            return TopicStorage.NOT
        if any(matches(pattern, topic) for pattern in self.durable):
            aside = any(matches(own, topic) for own in NEVER_DURABLE)
            return TopicStorage.RECORDED if aside else TopicStorage.DURABLE
        return TopicStorage.RECORDED if any(matches(pattern, topic) for pattern in self.recorded) else TopicStorage.NOT
