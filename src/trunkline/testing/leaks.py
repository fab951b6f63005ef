"""Finds what a test leaves behind: threads, file descriptors, child processes, /dev/shm entries, asyncio tasks.

In a conftest.py:

    @pytest.fixture(autouse=True)
    def leaves_nothing() -> Iterator[None]:
        with no_leaks():
            yield

Where there is no /proc (macOS, Windows), only threads and tasks are checked.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from trunkline.memory.place import belongs_elsewhere
from trunkline.testing.loop import describe, idle_worker

DEADLINE_S = 2.0
POLL_S = 0.01
MIN_POLLS = 20
"""The minimum number of checks, because on a busy machine a single check may take as long as the deadline."""
TURNS_PER_POLL = 50
SHM = Path("/dev/shm")
GLOBAL_MGMT = ".global_mgmt"
"""iceoryx2 creates this file of 16 bytes once for each runtime directory, and never removes it."""

SEMAPHORE = "sem.mp-"
TRACKER = "multiprocessing.resource_tracker"
THREADS = "/proc/self/task"

# Something that is alive, and a function that describes it. None: it is not a leak.
_Found = tuple[Hashable, Callable[[], str | None]]


class LeakError(AssertionError):
    """Something was left behind by the block. `leaks` describes each."""

    def __init__(self, leaks: Sequence[str]) -> None:
        self.leaks = tuple(leaks)
        super().__init__("\n".join([f"{len(leaks)} leaked:", *(f"  {leak}" for leak in leaks)]))


def no_leaks(*, deadline_s: float = DEADLINE_S) -> LeakCheck:
    """Raise `LeakError` if anything that was created inside the `with` block still exists `deadline_s` after its end.

    Inside a coroutine, use `async with`: the event loop runs while it waits, so that closing tasks and transports can
    finish. A plain `with` blocks the loop, and reports them as leaks. An error of the block itself is raised unchanged.
    """
    return LeakCheck(deadline_s)


class LeakCheck:
    """See `no_leaks`."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._before: frozenset[Hashable] = frozenset()
        self._births: _Births | None = None

    def __enter__(self) -> None:
        loop = asyncio._get_running_loop()
        self._births = None if loop is None else _Births(loop)
        self._before = frozenset(key for key, _ in self._census())

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._forget_births()
        if kind is None:
            for _ in self._until_clean():
                time.sleep(POLL_S)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._forget_births()
        if kind is None:
            for _ in self._until_clean():
                for _ in range(TURNS_PER_POLL):
                    await asyncio.sleep(0)
                _pause()

    def _until_clean(self) -> Iterator[None]:
        deadline = time.monotonic() + self._deadline_s
        polls = 0
        while leaks := [text for key, describe in self._census() if key not in self._before and (text := describe())]:
            if not polls:
                gc.collect()  # objects in reference cycles are not leaks, only collected late
            elif polls >= MIN_POLLS and time.monotonic() >= deadline:
                raise LeakError(leaks)
            polls += 1
            yield

    def _census(self) -> Iterator[_Found]:
        yield from _threads()
        yield from _descriptors()
        yield from _children()
        yield from _shared_memory()
        if asyncio._get_running_loop() is not None:
            for task in asyncio.all_tasks():
                yield task, partial(self._tell_task, task)

    def _tell_task(self, task: asyncio.Task[Any]) -> str:
        place = self._births.places.get(task) if self._births else None
        return f"{task!r}\n    created at {place or 'an unknown place'}\n  {describe(task)}"

    def _forget_births(self) -> None:
        if self._births is not None:
            self._births.stop()


class _Births:
    """Records where tasks are created, which asyncio does only in its slow debug mode."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.places: WeakKeyDictionary[asyncio.Future[Any], str] = WeakKeyDictionary()
        self._loop = loop
        self._inner: Any = loop.get_task_factory()
        self._factory: Any = self._create
        loop.set_task_factory(self._factory)

    def stop(self) -> None:
        if self._loop.get_task_factory() is self._factory:
            self._loop.set_task_factory(self._inner)

    def _create(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Future[Any]:
        create: Any = self._inner
        task: asyncio.Future[Any] = (
            create(loop, coro, **options) if create else asyncio.Task(coro, loop=loop, **options)
        )
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "asyncio":
            frame = frame.f_back
        self.places[task] = _place(frame)
        return task


def _threads() -> Iterator[_Found]:
    def describe(thread: threading.Thread) -> str | None:
        # The default executor keeps its threads until its loop is closed; a working one is a leak in any case.
        if thread.name.startswith("asyncio_") and idle_worker(thread):
            return None
        kind = "daemon thread" if thread.daemon else "thread"
        return f"{kind} {thread.name!r}, now at {_place(sys._current_frames().get(thread.ident or 0))}"

    for thread in threading.enumerate():
        yield thread, partial(describe, thread)


def _descriptors() -> Iterator[_Found]:
    def describe(fd: int) -> str | None:
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return None
        if "/.hypothesis/" in target or fd in _multiprocessing("_fd", "_forkserver_alive_fd"):
            return None
        if target.startswith("socket:"):
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as twin:
                target += f" {twin.family.name} {twin.type.name} {twin.getsockname()!r}"
        return f"file descriptor {fd}: {target}"

    for fd in map(int, _list("/proc/self/fd")):
        if fd <= 2:
            continue  # pytest's capture exchanges what they point to
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # the descriptor for reading this folder
        # The inode, not the path: a file may be renamed.
        yield ("fd", fd, status.st_dev, status.st_ino), partial(describe, fd)


def _children() -> Iterator[_Found]:
    def describe(pid: int) -> str | None:
        if pid in _multiprocessing("_pid", "_forkserver_pid"):
            return None
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        return f"child process {pid}: {command or _read(f'/proc/{pid}/comm').strip() + ' (ended, never waited for)'}"

    for pid in _child_pids():
        yield ("child", pid), partial(describe, pid)


def _child_pids() -> list[int]:
    if os.path.exists(f"{THREADS}/{os.getpid()}/children"):
        return [int(pid) for thread in _list(THREADS) for pid in _read(f"{THREADS}/{thread}/children").split()]
    # Kernels without CONFIG_PROC_CHILDREN: ask every process for its parent, the second field after the name.
    stats = {int(pid): _read(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in _list("/proc") if pid.isdigit()}
    return [pid for pid, fields in stats.items() if fields[1:2] == [str(os.getpid())]]


def _shared_memory() -> Iterator[_Found]:
    def describe(name: str) -> str | None:
        if name.endswith(GLOBAL_MGMT) or belongs_elsewhere(name):
            return None
        # The folder is shared by all processes of the machine: files that other processes have mapped are theirs.
        path = SHM / name
        try:
            status = path.stat()
        except OSError:
            return None
        # A directory is not shared memory: it contains files of some program.
        if status.st_uid != os.getuid() or S_ISDIR(status.st_mode):
            return None
        family = {os.getpid(), *_child_pids()}
        strangers = [pid for pid in _list("/proc") if pid.isdigit() and int(pid) not in family]
        if str(path) not in _read("/proc/self/maps") and any(str(path) in _read(f"/proc/{p}/maps") for p in strangers):
            return None
        # The semaphores of a program that is ending are not mapped by any process until its resource tracker removes
        # them.
        if name.startswith(SEMAPHORE) and any(TRACKER in _read(f"/proc/{pid}/cmdline") for pid in strangers):
            return None
        return f"shared memory {path}"

    for name in _list(str(SHM)):
        yield ("shm", name), partial(describe, name)


def _multiprocessing(*names: str) -> set[object]:
    """Attributes of multiprocessing's resource tracker and fork server: both live as long as the process, by design."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    return {getattr(helper, name, None) for helper in (tracker, server) for name in names}


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "an unknown place"


def _list(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _read(path: str) -> str:
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def _pause() -> None:
    time.sleep(POLL_S)  # in real time: the loop's own sleep may be virtual
