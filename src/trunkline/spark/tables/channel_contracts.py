"""The channels of a hub, read from the directory of its journal, and their lookup by topic as in the hub."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.hub.registry_file import RegistryFile
from trunkline.registry.registry import rank
from trunkline.spark.tables.table import ChannelContract
from trunkline.topic import TopicTree, is_wild, overlaps, regex

if TYPE_CHECKING:
    from pyspark.sql import Column

OWN = "_"
"""Topics with this prefix are internal to the bus and belong to no channel."""


def contracts(journal: str | Path) -> tuple[ChannelContract, ...]:
    """The channels that were created on the hub of this journal, sorted by name; empty if there are none.

    Raises JournalUnusable if the hub's file cannot be read.
    """
    kept = RegistryFile(Path(journal)).read()
    schemas = {version.hash: version.schema for schema in kept.schemas for version in schema.versions}
    channels = sorted(kept.channels, key=lambda each: each.channel)
    return tuple(ChannelContract(each.channel, each.pattern, schemas.get(each.schema_hash)) for each in channels)


class Finder:
    """Finds the channel of a topic. If several match, it is the one with the most specific pattern."""

    def __init__(self, channels: Iterable[ChannelContract]) -> None:
        self._tree: TopicTree[ChannelContract] = TopicTree()
        for channel in channels:
            self._tree.add(channel.pattern, channel)

    def find(self, topic: str) -> ChannelContract | None:
        if topic.startswith(OWN):
            return None
        return min(self._tree.match(topic), key=lambda channel: rank(channel.pattern), default=None)


# The same lookup as expressions of Spark


def on_any(channels: Iterable[ChannelContract]) -> Column:
    """Whether a topic matches the pattern of any of these channels. It may still belong to another channel."""
    patterns = sorted({channel.pattern for channel in channels})
    wild = [regex(pattern) for pattern in patterns if is_wild(pattern)]
    plain = [pattern for pattern in patterns if not is_wild(pattern)]
    topic = F.col("topic")
    fits = [topic.isin(plain)] if plain else []
    if wild:
        fits.append(topic.rlike("|".join(wild)))
    return reduce(or_, fits) & ~topic.startswith(OWN) if fits else F.lit(False)


def belongs(channel: ChannelContract, channels: Iterable[ChannelContract]) -> Column:
    """Whether a topic belongs to this channel: it matches, and no channel with a more specific pattern matches."""
    closer = [
        other
        for other in channels
        if rank(other.pattern) < rank(channel.pattern) and overlaps(other.pattern, channel.pattern)
    ]
    return on_any([channel]) & ~on_any(closer)
