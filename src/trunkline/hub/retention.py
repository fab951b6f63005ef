"""The retention rules that channels set for their topics in the journal."""

from __future__ import annotations

from collections.abc import Iterable

from trunkline.brokers.store import Retention
from trunkline.registry.channel import Channel
from trunkline.registry.quality import limits
from trunkline.registry.registry import rank
from trunkline.topic import covers


def rules_of(channels: Iterable[Channel]) -> tuple[Retention, ...]:
    """The rules of all channels.

    If several match a topic, the most specific pattern applies, even if it has no limit.
    """
    channels = list(channels)
    limited = [channel.pattern for channel in channels if limits(channel.qos)]
    counting = [channel for channel in channels if any(covers(pattern, channel.pattern) for pattern in limited)]
    return tuple(
        Retention(
            topics=channel.pattern,
            max_age_s=channel.qos.max_age_s,
            max_bytes=channel.qos.max_bytes,
            max_count=channel.qos.max_messages,
        )
        for channel in sorted(counting, key=lambda channel: rank(channel.pattern))
    )
