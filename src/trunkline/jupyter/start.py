"""Ways to get a kernel: start one, attach to a running one, or join one that is shared on a bus."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from trunkline.clock import World
from trunkline.errors import MissingExtra, UsageError
from trunkline.jupyter.autorestart import AutoRestart
from trunkline.jupyter.awaitable_context import AwaitableContext
from trunkline.jupyter.bus_link import BusLink
from trunkline.jupyter.client import DEAD, STARTING
from trunkline.jupyter.errors import KernelNotStarted
from trunkline.jupyter.kernel import Kernel, Life
from trunkline.jupyter.launch import LaunchOptions
from trunkline.jupyter.message_types import CONTROL
from trunkline.jupyter.metrics import Tracing
from trunkline.jupyter.opening import KernelOpening
from trunkline.jupyter.presence import check_shared
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.sockets import KernelConnection, SocketLink, beat

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus

log = logging.getLogger("trunkline.jupyter")

STARTS: Final = 3
"""The number of attempts to start: a port that was free a moment ago may be in use when the kernel binds it."""


def start_kernel(
    name: str = "python3",
    *,
    bus: Bus | None = None,
    share: bool = False,
    settings: KernelSettings | None = None,
    world: World | None = None,
    tracing: Tracing | None = None,
    **launch: Unpack[LaunchOptions],
) -> AwaitableContext[Kernel]:
    """`async with start_kernel("python3") as kernel`: a new kernel of any language, ended with the block.

    With a `bus`, its traffic is published on `kernel.<id>.>`; with `share`, others on that bus may use it. `launch` has
    options for its process: see LaunchOptions. Raises KernelNotStarted.
    """
    if not str(name or "").strip():
        raise UsageError(
            f"a kernel is started by the name of its kernelspec, such as 'python3', not {name!r}:"
            " `jupyter kernelspec list` shows the installed ones"
        )
    given = KernelOpening(bus, share, settings or KernelSettings(), world or World(), tracing)
    return AwaitableContext(_start(name, launch, given), Kernel.aclose)


async def _start(name: str, launch: LaunchOptions, given: KernelOpening) -> Kernel:
    for _ in range(STARTS - 1):
        try:
            return await _start_once(name, launch, given)
        except KernelNotStarted as error:
            if not error.died:
                raise
            log.info("%s; retrying", error)
    return await _start_once(name, launch, given)


async def _start_once(name: str, launch: LaunchOptions, given: KernelOpening) -> Kernel:
    # Imported only here: joining a kernel on a bus needs no jupyter_client.
    from trunkline.jupyter.process import Process

    process = await Process.start(name, launch, given.world.uuid7())
    try:
        manager = process.manager
        session = given.world.uuid7()
        connection = KernelConnection.of(manager.get_connection_info())
        link = SocketLink(manager.kernel_id, connection, session, given.world, linger_s=0.0)
        life = Life(process.interrupt, process.restart, lambda now: shutdown(now))
        kernel = given.kernel(manager.kernel_id, link, session, life)
        kernel.connection_file = Path(manager.connection_file)
    except BaseException:
        await process.end()
        raise

    async def shutdown(now: bool) -> None:
        try:
            if not now and kernel.state not in (DEAD, STARTING):
                await link.send(kernel.client.compose(CONTROL, "shutdown_request", {"restart": False}))
                await process.ended(given.settings.shutdown_timeout_s)
        finally:
            await process.end()

    process.watch(kernel.lost)
    await given.open(kernel)
    if launch.get("autorestart"):
        process.watch(AutoRestart(kernel).exited)
    return kernel


def attach(
    connection_file: str | Path | None = None,
    *,
    bus: Bus | None = None,
    share: bool = False,
    settings: KernelSettings | None = None,
    world: World | None = None,
    tracing: Tracing | None = None,
) -> AwaitableContext[Kernel]:
    """`async with attach("kernel-42.json") as kernel`: a running kernel, which keeps running after the block.

    The connection file is a path, or a file name or a part of it in the directory of `jupyter --runtime-dir`. The
    default is the newest file.
    """
    given = KernelOpening(bus, share, settings or KernelSettings(), world or World(), tracing)
    return AwaitableContext(_attach(connection_file, given), Kernel.aclose)


async def _attach(connection_file: str | Path | None, given: KernelOpening) -> Kernel:
    path = find(connection_file)
    connection = KernelConnection.load(path)
    session = given.world.uuid7()
    kernel_id = path.stem.removeprefix("kernel-")
    kernel = given.kernel(kernel_id, SocketLink(kernel_id, connection, session, given.world), session)
    kernel.connection_file = path
    watching = asyncio.get_running_loop().create_task(_watch_heartbeat(kernel, connection))

    async def stop() -> None:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    kernel.on_close(stop)
    return await given.open(kernel)


async def _watch_heartbeat(kernel: Kernel, connection: KernelConnection) -> None:
    """Watch the heartbeat, the only sign of life of a kernel that was started elsewhere."""
    settings = kernel.settings
    kernel.lost(await beat(connection, settings.heartbeat_s, settings.heartbeat_timeout_s, kernel.client.heart_beats))


def find(connection_file: str | Path | None) -> Path:
    """Find the connection file by its path or name."""
    if connection_file is not None and Path(connection_file).is_file():
        return Path(connection_file)
    try:
        from jupyter_client.connect import find_connection_file
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError as error:
        raise MissingExtra("jupyter", "finding kernels by name") from error
    try:
        return Path(find_connection_file(str(connection_file or "kernel-*.json")))
    except OSError as error:
        raise KernelNotStarted(
            f"no connection file {connection_file or 'kernel-*.json'} in {jupyter_runtime_dir()}: "
            "start a kernel first, or pass the path of its connection file",
            str(connection_file or ""),
        ) from error


def join(
    bus: Bus,
    kernel_id: str,
    *,
    name: str | None = None,
    start: int | str | None = None,
    settings: KernelSettings | None = None,
    tracing: Tracing | None = None,
) -> AwaitableContext[Kernel]:
    """`async with join(bus, kernel_id) as kernel`: a kernel that is shared on the bus with `share=True`.

    With a journal behind the bus, a client with a `name` first gets the messages it has missed, then new ones, without
    a gap or a duplicate; `start` is where it begins the first time ("beginning", a number, a time).
    """
    given = KernelOpening(None, False, settings or KernelSettings(), bus.broker.world, tracing)
    session = given.world.uuid7()
    link = BusLink(bus, kernel_id, session, name=name, start=start)

    async def joining() -> Kernel:
        await check_shared(bus, kernel_id)
        return await given.open(given.kernel(kernel_id, link, session))

    return AwaitableContext(joining(), Kernel.aclose)
