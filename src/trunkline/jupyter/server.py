"""Kernels behind a Jupyter server or a kernel gateway: started and ended over REST, used over a websocket."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from trunkline.clock import World
from trunkline.errors import UsageError
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.errors import KernelNotStarted
from trunkline.jupyter.kernel import Kernel, Life
from trunkline.jupyter.metrics import Tracing
from trunkline.jupyter.opening import KernelOpening
from trunkline.jupyter.settings import KernelSettings

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

TIMEOUT_S: Final = 30.0


class RemoteKernel(msgspec.Struct, frozen=True):
    """A kernel that runs on a server, as the server describes it."""

    id: str
    name: str = ""
    execution_state: str = ""
    last_activity: str = ""
    connections: int = 0


class JupyterServer:
    """A Jupyter server, JupyterHub user server or kernel gateway.

    `token` is sent as `Authorization: token …`; `headers` are added to all requests, for proxies.
    """

    def __init__(
        self, url: str, *, token: str = "", headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"{url!r} is not the address of a Jupyter server: write it as http://127.0.0.1:8888")
        self._base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"token {token}"} if token else {}
        self._headers.update(headers or {})

    def start_kernel(
        self,
        name: str = "python3",
        *,
        bus: Bus | None = None,
        share: bool = False,
        settings: KernelSettings | None = None,
        world: World | None = None,
        tracing: Tracing | None = None,
    ) -> AwaitableContext[Kernel]:
        """`async with server.start_kernel("python3") as kernel`: a new kernel on the server, ended with the block."""
        if not str(name or "").strip():
            raise UsageError(f"a kernel is started by the name of its kernelspec, such as 'python3', not {name!r}")
        opening = KernelOpening(bus, share, settings or KernelSettings(), world or World(), tracing)

        async def start() -> Kernel:
            model = await self._ask("POST", "kernels", {"name": name})
            return await self._open(str(model["id"]), opening, owned=True)

        return AwaitableContext(start(), Kernel.aclose)

    def attach(
        self,
        kernel_id: str,
        *,
        bus: Bus | None = None,
        share: bool = False,
        settings: KernelSettings | None = None,
        world: World | None = None,
        tracing: Tracing | None = None,
    ) -> AwaitableContext[Kernel]:
        """`async with server.attach(kernel_id) as kernel`: a running kernel, which keeps running after the block."""
        opening = KernelOpening(bus, share, settings or KernelSettings(), world or World(), tracing)

        async def join() -> Kernel:
            await self._ask("GET", f"kernels/{quote(kernel_id, safe='')}")
            return await self._open(kernel_id, opening, owned=False)

        return AwaitableContext(join(), Kernel.aclose)

    async def kernels(self) -> list[RemoteKernel]:
        """The running kernels of the server."""
        found: list[RemoteKernel] = msgspec.convert(await self._ask("GET", "kernels"), list[RemoteKernel])
        return found

    async def _open(self, kernel_id: str, opening: KernelOpening, *, owned: bool) -> Kernel:
        from trunkline.jupyter.server_link import ServerLink

        settings, session = opening.settings, opening.world.uuid7()
        path = f"kernels/{quote(kernel_id, safe='')}"

        async def interrupt() -> None:
            await self._ask("POST", f"{path}/interrupt")

        async def restart() -> None:
            await self._ask("POST", f"{path}/restart")

        async def shutdown(now: bool) -> None:
            await self._ask("DELETE", path)

        async def connections() -> int:
            return int((await self._ask("GET", path)).get("connections", 0))

        link = ServerLink(
            kernel_id,
            f"ws{self._base.removeprefix('http')}/api/{path}/channels?session_id={session}",
            self._headers,
            opening.world,
            connections=connections,
            timeout_s=self._timeout_s,
            patience_s=settings.heartbeat_timeout_s,
        )
        life = Life(interrupt, restart, shutdown, ends_with_client=owned)
        return await opening.open(opening.kernel(kernel_id, link, session, life))

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One REST request, in a thread. Raises KernelNotStarted."""
        url = f"{self._base}/api/{path}"
        # The scheme was checked: http or https.
        request = urllib.request.Request(url, method=method, headers={**self._headers, "Accept": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")

        def ask() -> bytes:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                found: bytes = answer.read()
                return found

        try:
            answer = await asyncio.to_thread(ask)
            return json.loads(answer) if answer else None
        except urllib.error.HTTPError as error:
            raise KernelNotStarted(f"{method} {url}: {error.code} {_reason(error)}", path.rpartition("/")[2]) from error
        except (OSError, ValueError) as error:
            raise KernelNotStarted(f"no Jupyter server answers at {url}: {error}", path.rpartition("/")[2]) from error


def _reason(error: urllib.error.HTTPError) -> str:
    """The server's error, and the next step."""
    if error.code in (401, 403):
        return "the server refuses the token: pass the one that `jupyter server list` shows"
    with error:
        try:
            answer = json.loads(error.read())
            return str(answer.get("message") or error.reason)
        except (ValueError, AttributeError):
            return str(error.reason)
