"""The options of `format("trunkline")` for reading what a NATS or Redis server has stored."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.brokers.engine.log import EngineLog
from trunkline.brokers.engine.settings import from_url
from trunkline.brokers.nats.broker import NatsBroker
from trunkline.brokers.redis.broker import RedisBroker
from trunkline.errors import InvalidSettings, MissingExtra
from trunkline.settings import build
from trunkline.spark.source.options import RowKind, RowOptions
from trunkline.topic import validate_pattern

CLIENT = "trunkline-spark"
SPELT_BY_SPARK = {"failondataloss": "fail_on_data_loss"}
"""The name that other Spark sources use. Spark passes option names in lower case."""


class EngineOptions(RowOptions, frozen=True, kw_only=True):
    """One of `nats` and `redis` is the URL of the server, as for `tl.connect`. `topics` is a pattern, as `topic` is."""

    nats: str = ""
    redis: str = ""
    topics: str = ">"
    fail_on_data_loss: bool = True
    """Whether entries that the engine removed unread are an error. If not, they are logged."""
    partitions: int = 8
    """The maximum number of tasks that read in parallel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_pattern(self.pattern)
        if bool(self.nats) == bool(self.redis):
            raise InvalidSettings('which server? Give one of .option("nats", URL) and .option("redis", URL)')
        if self.topics != ">" and self.topic != ">":
            raise InvalidSettings("`topics` and `topic` mean the same: leave one of them out")
        if self.kind is not RowKind.MESSAGES:
            raise InvalidSettings("an engine keeps only messages: record it in a journal to read fates")

    @property
    def pattern(self) -> str:
        return self.topics if self.topic == ">" else self.topic

    def log(self) -> EngineLog:
        """The log of the engine, not connected yet."""
        if self.nats:
            where = from_url(self.nats, own=NatsBroker.options)
            try:
                from trunkline.brokers.nats.log import NatsLog
            except ModuleNotFoundError as error:
                raise MissingExtra("nats", "nats:") from error
            return NatsLog(where, CLIENT)
        where = from_url(self.redis, own=RedisBroker.options)
        try:
            from trunkline.brokers.redis.log import RedisLog
        except ModuleNotFoundError as error:
            raise MissingExtra("redis", "redis:") from error
        return RedisLog(where, CLIENT)


def engine_options(options: Mapping[str, str]) -> EngineOptions | None:
    """The options for an engine; None if they are for a journal. Raises InvalidSettings."""
    given = {SPELT_BY_SPARK.get(name.lower(), name): value for name, value in options.items()}
    if "nats" not in given and "redis" not in given:
        return None
    return build(EngineOptions, given)
