"""Which hours a run must make anew: those with new messages, and those whose rows change by what is new."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.pipeline.manifest import HOUR, Manifest, at, hour_of, name_of, truncated
from trunkline.spark.pipeline.settings import PipelineSettings
from trunkline.spark.tables.requests import ANSWERS
from trunkline.spark.tables.times import HOUR_S, hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def horizon_hours(settings: PipelineSettings) -> int:
    return math.ceil(settings.horizon_s / 3600)


def around(manifest: Manifest, hours: Iterable[str], settings: PipelineSettings) -> list[str]:
    """These hours, and those up to the horizon before and after each of them, as far as there is anything in them."""
    far = horizon_hours(settings)
    wanted = {name_of(hour_of(hour) + step * HOUR) for hour in hours for step in range(-far, far + 1)}
    return sorted(wanted & manifest.hours.keys())


def before(manifest: Manifest, hours: Iterable[str], settings: PipelineSettings) -> list[str]:
    """Hours up to the horizon before any of these, without them."""
    hours = set(hours)
    reach = range(1, horizon_hours(settings) + 1)
    wanted = {name_of(hour_of(hour) - step * HOUR) for hour in hours for step in reach}
    return sorted((wanted - hours) & manifest.hours.keys())


def by_time(manifest: Manifest, upto: datetime) -> set[str]:
    """Hours that change because time has passed: with open requests, and those around the end of the stream so far."""
    last = truncated(upto)
    return (set(manifest.open) | {name_of(last), name_of(last - HOUR)}) & manifest.hours.keys()


def by_fates(manifest: Manifest, fates: DataFrame) -> set[str]:
    """Hours of the messages that new fates are about."""
    # Told by ranges of a few thousand numbers: one by one they may be millions.
    grain = 4096
    pieces = (
        fates.select(F.expr(f"first div {grain}").alias("low"), F.expr(f"last div {grain}").alias("high"))
        .distinct()
        .collect()
    )
    found = set()
    for hour, span in manifest.hours.items():
        if any(span.meets(row["low"] * grain, (row["high"] + 1) * grain - 1) for row in pieces):
            found.add(hour)
    return found


def links(messages: DataFrame) -> DataFrame:
    """What points to earlier messages: answers to requests, correlated messages, and the traffic of kernels."""
    answers = messages.where(F.col("type").isin(*ANSWERS)).select(F.concat(F.lit("r"), "request_id").alias("link"))
    related = messages.select(F.concat(F.lit("c"), "correlation_id").alias("link"))
    return answers.unionByName(related).where("link is not null").distinct()


def targets(messages: DataFrame) -> DataFrame:
    """What can be pointed to, with its hour."""
    asked = messages.where("type = 'request'").select(F.concat(F.lit("r"), "request_id").alias("link"), "hour")
    own = messages.select(F.concat(F.lit("c"), "id").alias("link"), "hour")
    shared = messages.select(F.concat(F.lit("c"), "correlation_id").alias("link"), "hour")
    return asked.unionByName(own).unionByName(shared).where("link is not null")


def hours_of(rows: DataFrame) -> set[str]:
    return {name_of_number(row[0]) for row in rows.select(hour_number("hour")).distinct().collect()}


def name_of_number(number: int) -> str:
    """Of an hour that is so many after the beginning of 1970."""
    return name_of(at(number * HOUR_S))


def kernel_hours(messages: DataFrame) -> set[str]:
    return hours_of(messages.where(F.col("topic").startswith("kernel.")))
