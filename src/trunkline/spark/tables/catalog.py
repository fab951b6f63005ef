"""The tables of the warehouse, in the order in which a run builds them."""

from __future__ import annotations

from trunkline.spark.tables import bronze
from trunkline.spark.tables.table import BuiltTable, ChannelContract, Table


def built(channels: tuple[ChannelContract, ...]) -> list[BuiltTable]:
    """The tables that are built from bronze. Each comes after the tables that it needs."""
    from trunkline.spark.tables import (
        accounting,
        anomalies,
        conformance,
        conversations,
        dead_letters,
        deliveries,
        executions,
        orphans,
        requests,
        sender_minute,
        slow_consumers,
        subscriber_minute,
        topic_minute,
        typed,
    )

    parts = (
        deliveries,
        requests,
        orphans,
        dead_letters,
        conversations,
        executions,
        conformance,
        topic_minute,
        sender_minute,
        subscriber_minute,
        accounting,
        slow_consumers,
        anomalies,
    )
    return [*(part.TABLE for part in parts), *typed.tables(channels)]


def every(channels: tuple[ChannelContract, ...]) -> list[Table]:
    return [*bronze.TABLES, *built(channels)]
