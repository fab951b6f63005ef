"""An event loop on virtual time, with a seeded order of tasks: ordinary asyncio code runs on it unchanged.

Time stands still while anything can run, and jumps to the next timer when nothing can. Events outside the loop happen
in real time: threads and file descriptors work, but the seed does not determine their order. To run a whole program,
see `simulate.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread
import itertools
import linecache
import math
import random
import selectors
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Events = list[tuple[selectors.SelectorKey, int]]

CLOCK_RESOLUTION_S = 1e-9
POLL_S = 0.02


class Deadlock(AssertionError):
    """Nothing can run, no timer is set, and no thread or socket can change that. `tasks` lists the waiting tasks, and
    where they wait."""

    def __init__(self, now: float, tasks: Sequence[str]) -> None:
        self.tasks = tuple(tasks)
        super().__init__(f"deadlock at virtual time {now:.9g}: no timer is set, and these wait:\n" + "\n".join(tasks))


class Livelock(AssertionError):
    """More callbacks ran than the loop was allowed. `tasks` lists the tasks that were alive, and where they were."""

    def __init__(self, now: float, max_steps: int, tasks: Sequence[str]) -> None:
        self.tasks = tuple(tasks)
        super().__init__(
            f"livelock at virtual time {now:.9g}: {max_steps:,} callbacks ran (raise max_steps if that is right), "
            "and these are not done:\n" + "\n".join(tasks)
        )


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time and, with a seed, a shuffled order of tasks.

    The same seed gives the same schedule. Only steps of tasks change places; callbacks keep their order, as asyncio
    promises. The seed does not determine two things: work in threads, and code that iterates over a set
    (`asyncio.as_completed` does so with coroutines; pass tasks instead). While work runs in an executor, virtual time
    stands still, and the loop waits for the work for at most `patience_s` of real time. Before a `Deadlock` is raised,
    it waits equally long for watched sockets and other threads.
    """

    # Declared by asyncio, unknown to its type stubs.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _default_executor: concurrent.futures.ThreadPoolExecutor | None
    _check_closed: Callable[[], None]

    virtual = True
    """Marks the loop as virtual: the watchdog for blocking calls is off."""

    def __init__(
        self, *, start: float = 0.0, seed: int | None = None, max_steps: int = 10_000_000, patience_s: float = 10.0
    ) -> None:
        self._now = start
        self._order = None if seed is None else random.Random(seed)
        self._ranks: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._next_rank = itertools.count()
        self._max_steps, self._steps_done = max_steps, 0
        self._patience_s = patience_s
        self._work: list[tuple[concurrent.futures.Future[Any], asyncio.Future[Any]]] = []
        self._known_threads = set(threading.enumerate())
        self._poll = _Selector(self)
        super().__init__(self._poll)
        self._jump(start)

    def time(self) -> float:
        return self._now

    def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        self._check_closed()
        if executor is None:
            if self._default_executor is None:
                self.set_default_executor(concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio"))
            executor = self._default_executor
            assert executor is not None
        work = executor.submit(func, *args)
        future = asyncio.wrap_future(work, loop=self)
        self._work.append((work, future))
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # A virtual timeout does not apply to threads: `patience_s` limits the wait instead.
        await super().shutdown_default_executor()

    def _turn(self, timeout: float | None) -> _Events:
        """Replaces `select`, which asyncio calls once per iteration, before it runs what is ready."""
        self._steps_done += max(1, len(self._ready))
        if self._steps_done > self._max_steps:
            self._steps_done = 0  # cleanup after this error may run further steps
            raise Livelock(self._now, self._max_steps, self._waiting())
        if self._order is not None:
            self._shuffle(self._order)
        if timeout is not None and timeout <= 0:
            # The loop's own pipe only signals that something is ready, which is already known.
            return self._poll.wait(0) if len(self._poll.get_map()) > 1 else []
        # Checked before polling: work that ends in between has written to the pipe that the poll watches.
        working = self._working()
        if events := self._poll.wait(self._patience_s if working else 0):
            return events
        if working:
            self._work.clear()  # its time limit is over: from now on the clock does not wait for it
        if self._scheduled:
            self._jump(self._scheduled[0].when())
            return []
        if events := self._poll_other_threads():
            return events
        raise Deadlock(self._now, self._waiting())

    def _jump(self, when: float) -> None:
        self._now = when
        # asyncio runs the timers before now + resolution: far from zero, one nanosecond would be lost in rounding.
        self._clock_resolution = max(CLOCK_RESOLUTION_S, math.ulp(when))

    def _shuffle(self, order: random.Random) -> None:
        """Shuffle the ready steps of tasks."""
        handles = list(self._ready)
        steps = [(place, task) for place, handle in enumerate(handles) if (task := _stepped(handle)) is not None]
        if len(steps) < 2:
            for _, task in steps:
                self._rank(task)
            return
        places = {place for place, _ in steps}
        # The callbacks of one future run in the order they were added, and asyncio relies on this: TaskGroup would
        # report an error twice if a task that awaits a child ran before the group's own callback. Such a step keeps its
        # place.
        shared = {id(arg) for place, handle in enumerate(handles) if place not in places for arg in handle._args or ()}
        queues: defaultdict[int, deque[asyncio.Handle]] = defaultdict(deque)  # a task's own steps stay in order
        free: list[int] = []
        ranks: list[int] = []
        for place, task in steps:
            rank = self._rank(task)
            if shared.isdisjoint(map(id, handles[place]._args or ())):
                free.append(place)
                ranks.append(rank)
                queues[rank].append(handles[place])
        ranks.sort()
        order.shuffle(ranks)
        for place, rank in zip(free, ranks, strict=True):
            self._ready[place] = queues[rank].popleft()  # by place: another thread may append meanwhile

    def _rank(self, task: asyncio.Task[Any]) -> int:
        """The rank of a task, by first appearance.

        The order of wake-ups may depend on a set, and so on memory addresses.
        """
        rank = self._ranks.get(task)
        if rank is None:
            rank = self._ranks[task] = next(self._next_rank)
        return rank

    def _working(self) -> bool:
        # Both must be done: the first when the thread has finished, the second when the loop has noticed it.
        self._work = [(work, future) for work, future in self._work if not (work.done() and future.done())]
        return bool(self._work)

    def _poll_other_threads(self) -> _Events:
        give_up = time.monotonic() + self._patience_s
        while self._outsiders() and time.monotonic() < give_up:
            if events := self._poll.wait(POLL_S):  # polled: a thread that ends gives no notice
                return events
        return self._poll.wait(0)  # events of a thread that has just ended

    def _outsiders(self) -> bool:
        """Whether something outside may still wake this loop: a watched descriptor, or a thread started since."""
        mine = {*self._known_threads, threading.current_thread()}
        watched = len(self._poll.get_map()) > 1  # one is the loop's own pipe
        return watched or any(thread not in mine and not idle_worker(thread) for thread in threading.enumerate())

    def _waiting(self) -> list[str]:
        names = {task: task.get_name() for task in asyncio.all_tasks(self)}
        return [describe(task) for task in sorted(names, key=lambda task: (len(names[task]), names[task]))]


class _Selector(selectors.DefaultSelector):
    """Passes each iteration to the loop. `wait` is the actual selector."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> _Events:
        return self._loop._turn(timeout)

    def wait(self, timeout_s: float) -> _Events:
        return super().select(timeout_s)


def _stepped(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """The task that this handle continues, if it is a step of a task.

    A step is bound to its task but is not an attribute of it, unlike `task.cancel` in `call_soon(task.cancel)`.
    """
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task) and not hasattr(owner, getattr(callback, "__name__", "")):
        return owner
    return None


def idle_worker(thread: threading.Thread) -> bool:
    """Whether this is a thread of an executor that waits for work."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is concurrent.futures.thread._worker.__code__


def describe(task: asyncio.Task[Any]) -> str:
    """The name of a task and the places where it is suspended, outermost first."""
    lines = [f"  {task.get_name()!r} waits in"]
    awaited: Any = task.get_coro()
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        frame = getattr(awaited, f"{kind}_frame", None)
        if frame is None:
            break
        file, line = frame.f_code.co_filename, frame.f_lineno
        lines.append(f"    {file}:{line} {frame.f_code.co_name}: {linecache.getline(file, line).strip()}")
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
    waiter = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, asyncio.Task):
        lines.append(f"    for the task {waiter.get_name()!r}")
    return "\n".join(lines)
