"""The process of a kernel, started with jupyter_client: watching, interrupting, restarting and ending it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from trunkline.errors import MissingExtra
from trunkline.jupyter.errors import KernelNotStarted
from trunkline.jupyter.launch import LaunchOptions

try:
    import zmq
    from jupyter_client.kernelspec import NoSuchKernel
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.paths import jupyter_runtime_dir
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("jupyter", "kernels") from error

log = logging.getLogger("trunkline.jupyter")

MAX_SOCKET_PATH: Final = 104
"""The maximum length of a path of a unix socket in bytes, on the strictest system."""
HISTORY: Final = "--HistoryManager.hist_file"
LAST_WORDS_S: Final = 0.05
POLL_S: Final = 0.2
"""The polling interval on systems without notification of a process's end."""


class Process:
    """The process, and the manager that starts it."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._on_exit: Callable[[str], None] | None = None
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, launch: LaunchOptions, kernel_id: str) -> Process:
        manager = AsyncKernelManager(kernel_name=name, kernel_id=kernel_id)
        if (runtime := _runtime_dir()) is not None:
            # Where `attach`, `trunkline kernel list` and all other clients of Jupyter look for it.
            manager.connection_file = os.path.join(runtime, f"kernel-{kernel_id}.json")
        if manager.has_trait("transport_encryption") and zmq.has("curve"):
            # Encrypt TCP traffic if the kernel supports it.
            manager.transport_encryption = "auto"
        if launch.get("transport") == "ipc" and not _fits(manager):
            raise KernelNotStarted(
                f"the kernel {name!r} cannot use unix sockets: {os.path.dirname(manager.connection_file)} is too"
                " long for a socket path; set JUPYTER_RUNTIME_DIR to a shorter one, or use transport='tcp'",
                name,
            )
        try:
            manager.transport = launch.get("transport") or _transport(manager)
            await _launched(manager, _popen_options(manager, launch))
        except NoSuchKernel as error:
            known = ", ".join(sorted(manager.kernel_spec_manager.find_kernel_specs())) or "none"
            step = "pip install ipykernel" if name.startswith("python") else "install it, or name a known one"
            raise KernelNotStarted(
                f"the kernel {name!r} is not installed (installed: {known}): {step}",
                name,
            ) from error
        except (OSError, RuntimeError) as error:
            raise KernelNotStarted(f"the kernel {name!r} could not be started: {error}", name) from error
        process = cls(manager)
        process._look()
        if (on_launch := launch.get("on_launch")) is not None:
            on_launch()
        return process

    def watch(self, on_exit: Callable[[str], None]) -> None:
        """Call `on_exit` when the process has ended unexpectedly."""
        self._on_exit = on_exit

    def _look(self) -> None:
        self._ended = asyncio.Event()
        self._watch = asyncio.get_running_loop().create_task(self._wait(self._ended))

    async def _wait(self, ended: asyncio.Event) -> None:
        provisioner = self.manager.provisioner
        pid = getattr(provisioner, "pid", None)
        if pid is not None and hasattr(os, "pidfd_open"):
            await _exit_of(pid)
        while (code := await provisioner.poll()) is None:  # noqa: ASYNC110  # no notification here
            await asyncio.sleep(POLL_S)
        ended.set()
        # Its last messages are still in transit through ZeroMQ.
        await asyncio.sleep(LAST_WORDS_S)
        if self._on_exit is not None:
            self._on_exit(_how(code))

    async def ended(self, timeout_s: float) -> bool:
        """Wait up to this time for its end. Returns whether it has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def interrupt(self) -> None:
        await self.manager.interrupt_kernel()

    async def restart(self) -> None:
        on_exit, self._on_exit = self._on_exit, None
        await self._stop_watching()
        await self.manager.restart_kernel(now=True)
        self._on_exit = on_exit
        self._look()

    async def end(self) -> None:
        """Kill it, unless it has ended, and clean up."""
        self._on_exit = None
        await self._stop_watching()
        await self.manager.shutdown_kernel(now=True)

    async def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)


def _runtime_dir() -> str | None:
    """Jupyter's runtime directory, created if it is missing.

    None if that is not permitted: the connection file is then a temporary one.
    """
    place: str = jupyter_runtime_dir()
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
    except OSError as error:
        log.warning("other programs cannot find this kernel: %s cannot be created (%s)", place, error.strerror)
        return None
    return place


async def _launched(manager: AsyncKernelManager, options: dict[str, Any]) -> None:
    """Start the process. If the call is cancelled, nothing is left behind."""
    starting = asyncio.ensure_future(manager.start_kernel(**options))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait((starting,))
        if starting.exception() is None:
            await manager.shutdown_kernel(now=True)
        raise


def _transport(manager: AsyncKernelManager) -> str:
    """Unix sockets if possible: they need no ports, and only this user can read the traffic.

    TCP would need encryption for this, which takes a seventh of the processor time of a notebook with short cells.
    """
    return "ipc" if _fits(manager) and _is_ipykernel(manager) else "tcp"


def _fits(manager: AsyncKernelManager) -> bool:
    """Whether the names of its unix sockets are short enough."""
    longest = f"{os.path.splitext(manager.connection_file)[0]}-ipc-65535"
    return sys.platform != "win32" and len(os.fsencode(longest)) < MAX_SOCKET_PATH


def _is_ipykernel(manager: AsyncKernelManager) -> bool:
    spec = manager.kernel_spec
    return spec is not None and any("ipykernel" in word for word in spec.argv)


def _popen_options(manager: AsyncKernelManager, launch: LaunchOptions) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if (cwd := launch.get("cwd")) is not None:
        options["cwd"] = os.fspath(cwd)
    if (env := launch.get("env")) is not None:
        options["env"] = {**os.environ, **env}
    arguments = list(launch.get("arguments", ()))
    own_file = launch.get("keep_history") or any(word.startswith(HISTORY) for word in arguments)
    if not own_file and _is_ipykernel(manager):
        arguments.append(f"{HISTORY}=:memory:")
    if arguments:
        options["extra_arguments"] = arguments
    return options


async def _exit_of(pid: int) -> None:
    """Wait for the end of a process, without polling."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        # It has already ended, or the system does not permit it.
        return
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        loop.remove_reader(descriptor)
        if not gone.done():
            gone.set_result(None)

    loop.add_reader(descriptor, end)
    try:
        await gone
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _how(code: int) -> str:
    if code < 0:
        try:
            return f"its process was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"its process was ended by signal {-code}"
    return f"its process ended with exit code {code}"
