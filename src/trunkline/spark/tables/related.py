"""Related messages: requests, answers and messages with a correlation id. Several tables read only these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REQUEST = "request"
ANSWERS = ("response", "error")


def related(messages: DataFrame) -> DataFrame:
    """The messages that refer to others, and all requests, with only the columns that are needed."""
    wanted = F.col("correlation_id").isNotNull() | F.col("type").isin(REQUEST, *ANSWERS)
    return messages.where(wanted).select(
        *("seq", "id", "type", "topic", "sender", "request_id", "correlation_id", "placed", "accepted", "hour")
    )
