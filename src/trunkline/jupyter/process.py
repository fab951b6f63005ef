"""A kernel's process that is ours: started by jupyter_client, watched, interrupted, restarted and ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any, Final

from trunkline.errors import MissingExtra
from trunkline.jupyter.errors import KernelNotStarted

try:
    import zmq
    from jupyter_client.kernelspec import NoSuchKernel
    from jupyter_client.manager import AsyncKernelManager
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("jupyter", "kernels") from error

LAST_WORDS_S: Final = 0.05
POLL_S: Final = 0.2
"""Where the system cannot tell that a process has ended, it is looked at so often."""


class Process:
    """The process, and the manager that knows how to start it."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._on_exit: Callable[[str], None] | None = None
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, name: str, **options: Any) -> Process:
        manager = AsyncKernelManager(kernel_name=name)
        if (transport := options.pop("transport", None)) is not None:
            manager.transport = transport
        if manager.has_trait("transport_encryption") and zmq.has("curve"):
            # Kernels that can encrypt what goes over TCP do so.
            manager.transport_encryption = "auto"
        try:
            await manager.start_kernel(**options)
        except NoSuchKernel as error:
            known = ", ".join(sorted(manager.kernel_spec_manager.find_kernel_specs())) or "none"
            raise KernelNotStarted(
                f"there is no kernel {name!r} here (known: {known}): install one, or see `jupyter kernelspec list`",
                name,
            ) from error
        except (OSError, RuntimeError) as error:
            raise KernelNotStarted(f"the kernel {name!r} could not be started: {error}", name) from error
        process = cls(manager)
        process._look()
        return process

    def watch(self, on_exit: Callable[[str], None]) -> None:
        """Call `on_exit` when the process has ended without having been asked to."""
        self._on_exit = on_exit

    def _look(self) -> None:
        self._ended = asyncio.Event()
        self._watch = asyncio.get_running_loop().create_task(self._wait(self._ended))

    async def _wait(self, ended: asyncio.Event) -> None:
        provisioner = self.manager.provisioner
        pid = getattr(provisioner, "pid", None)
        if pid is not None and hasattr(os, "pidfd_open"):
            await _exit_of(pid)
        while (code := await provisioner.poll()) is None:  # noqa: ASYNC110  # elsewhere, it is known when asked
            await asyncio.sleep(POLL_S)
        ended.set()
        # What it said last is still on its way through ZeroMQ.
        await asyncio.sleep(LAST_WORDS_S)
        if self._on_exit is not None:
            self._on_exit(_how(code))

    async def ended(self, timeout_s: float) -> bool:
        """Whether it has ended within this time."""
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
        """Kill it, if it has not ended by itself; leave nothing of it behind."""
        self._on_exit = None
        await self._stop_watching()
        await self.manager.shutdown_kernel(now=True)

    async def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)


async def _exit_of(pid: int) -> None:
    """Return when a process has ended: the system tells, nobody has to look."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        # It is gone already, or the system does not let us.
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
