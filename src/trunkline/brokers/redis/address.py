"""The address of Redis: the parts of a URL, and how the server that accepts writes is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.crc import key_slot
from trunkline.brokers.redis.link import no_retry
from trunkline.errors import UsageError

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
READ_BYTES = 256 * 1024
_TLS = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
"""Options of a URL, and their names in redis-py."""


class Node(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NotThisServer(Exception):
    """A server answered, but does not accept writes. `instead` is the server that does, if it is known."""

    def __init__(self, why: str, instead: Node | None = None) -> None:
        super().__init__(why)
        self.instead = instead


class RedisAddress:
    """The parts of a URL: `redis://user:password@one:6379,two:6379/db`.

    `rediss:` is TLS. With `redis+sentinel://one,two/service/db` the Sentinels are asked for the server of the service.
    A cluster is recognised at any of its nodes. With `redis+cluster:` the server must be part of a cluster.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self.scheme = parts.scheme
        if self.scheme not in SCHEMES:
            raise UsageError(f"{url}: the scheme must be one of {', '.join(SCHEMES)}")
        user, _, hosts = parts.netloc.rpartition("@")
        name, _, password = user.partition(":")
        self.user = unquote(name) or None
        self.password = unquote(password) or None
        self.is_sentinel = self.scheme.endswith("+sentinel")
        self.is_cluster = self.scheme.endswith("+cluster")
        self.nodes = [_node(host, SENTINEL_PORT if self.is_sentinel else DEFAULT_PORT) for host in hosts.split(",")]
        path = [unquote(step) for step in parts.path.split("/") if step]
        self.service = path.pop(0) if self.is_sentinel and path else ""
        self.db = _db(options.get("db", path[0] if path else "0"), url)
        self._tls: dict[str, Any] = {_TLS[key]: value for key, value in options.items() if key in _TLS}
        if self.is_sentinel and not self.service:
            raise UsageError(f"{url}: name the service that the Sentinels watch: redis+sentinel://host:26379/SERVICE")
        if self.is_cluster and self.db:
            raise UsageError(f"{url}: a cluster has one database only: leave /{self.db} out")
        self.safe = _without_password(url)
        """The URL without the password, for logs and errors."""

    def prefix_of(self, namespace: str) -> str:
        """The prefix of the names of all keys and channels of a namespace.

        It includes the database, because channels are not separated by database.
        """
        return f"{{{namespace}{f'@{self.db}' if self.db else ''}}}"

    def connection(self, node: Node, connect_s: float, *, sentinel: bool = False) -> AbstractConnection:
        """A connection that is not open yet. Sentinels have no databases, and have their own passwords."""
        options: dict[str, Any] = {
            "host": node.host,
            "port": node.port,
            "socket_timeout": None,
            "socket_connect_timeout": connect_s,
            "socket_keepalive": True,
            "socket_read_size": READ_BYTES,
            "protocol": 2,
            "retry": no_retry(),
            "health_check_interval": 0,
        }
        if not sentinel:
            options |= {"db": self.db, "username": self.user, "password": self.password}
        if not self.scheme.startswith("rediss"):
            return Connection(**options)
        return SSLConnection(**options, **self._tls)

    async def find(self, at: Node, connect_s: float) -> Node:
        """The server to use, found from one of the addresses. Raises NotThisServer, RedisError or OSError."""
        if self.is_sentinel:
            answer = await self._ask(at, connect_s, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service, sentinel=True)
            if not answer:
                raise NotThisServer(f"the Sentinel at {at} knows no service {self.service!r}")
            return Node(answer[0].decode(), int(answer[1]))
        return at

    async def _ask(self, node: Node, connect_s: float, *words: str, sentinel: bool = False) -> Any:
        connection = self.connection(node, connect_s, sentinel=sentinel)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command(*words)
            return await connection.read_response(disable_decoding=True)
        finally:
            await connection.disconnect(nowait=True)


def owner_of(key: str, slots: list[Any], asked: Node) -> Node:
    """The node of a cluster that has a key, from CLUSTER SLOTS. Raises NotThisServer if there is none."""
    wanted = key_slot(key.encode())
    for low, high, node, *_ in slots:
        if low <= wanted <= high:
            # An empty host means the node that was asked.
            return Node(node[0].decode() or asked.host, node[1])
    raise NotThisServer(f"no node of the cluster has slot {wanted}: it is not complete")


def _node(text: str, port: int) -> Node:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return Node(host, int(rest[1:]) if rest else port)
    host, _, given = text.partition(":")
    if given and not given.isdigit():
        raise UsageError(f"{text!r} is not an address: write host:port")
    return Node(host or "localhost", int(given) if given else port)


def _db(text: str, url: str) -> int:
    if not text.isdigit():
        raise UsageError(f"{_without_password(url)}: the database is a number, not {text!r}")
    return int(text)


def _without_password(url: str) -> str:
    head, found, rest = url.partition("://")
    user, at, hosts = rest.rpartition("@")
    return f"{head}{found}{user.partition(':')[0]}{at}{hosts}" if at else url
