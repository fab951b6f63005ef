"""NATS as a broker."""

from __future__ import annotations

from trunkline.brokers.engine.broker import EngineBroker
from trunkline.brokers.engine.driver import EngineDriver
from trunkline.brokers.engine.settings import EngineUrl
from trunkline.clock import World
from trunkline.errors import MissingExtra


class NatsBroker(EngineBroker):
    name = "nats"
    options = frozenset({"creds", "nkey", "token", "tls_ca", "tls_cert", "tls_key"})

    @staticmethod
    def driver(where: EngineUrl, client: str, world: World) -> EngineDriver:
        try:
            from trunkline.brokers.nats.driver import NatsDriver
        except ModuleNotFoundError as error:
            raise MissingExtra("nats", "nats:") from error
        return NatsDriver(where, client)
