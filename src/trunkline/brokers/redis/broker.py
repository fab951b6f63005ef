"""Redis as a broker."""

from __future__ import annotations

from trunkline.brokers.engine.broker import EngineBroker
from trunkline.brokers.engine.driver import EngineDriver
from trunkline.brokers.engine.settings import EngineUrl
from trunkline.clock import World
from trunkline.errors import MissingExtra


class RedisBroker(EngineBroker):
    name = "redis"
    options = frozenset({"db", "tls_ca", "tls_cert", "tls_key"})

    @staticmethod
    def driver(where: EngineUrl, client: str, world: World) -> EngineDriver:
        try:
            from trunkline.brokers.redis.driver import RedisDriver
        except ModuleNotFoundError as error:
            raise MissingExtra("redis", "redis:") from error
        return RedisDriver(where, world)
