"""Runs a whole asyncio program in virtual time, reproducibly: one seed determines the schedule, the ids and the faults.

This module has the program's view of the simulation. `loop.py` implements time and order.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trunkline.testing.loop import VirtualLoop

T = TypeVar("T")

NS = 1_000_000_000
START_NS = 1_700_000_000 * NS
# The engine creates ids in blocks of 4,096 by incrementing the last 12 bits, so two ids from here must differ in the
# other bits.
ID_STEP = 1 << 12
TAIL_BITS = 74


class Simulation:
    """The environment of the simulated program: clocks, ids, random decisions.

    Each kind of random decision has its own generator, so that an additional id or fault does not change the data and
    the schedule.
    """

    def __init__(self, loop: VirtualLoop, *, seed: int, start_ns: int) -> None:
        self.seed = seed
        self.random = _stream(seed, "data")
        self._ids = _stream(seed, "ids")
        self._faults = _stream(seed, "faults")
        self._loop = loop
        self._wall_offset_ns = start_ns
        self._id_ms, self._id_tail = -1, 0

    def now(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._loop.time()

    def monotonic(self) -> float:
        """Replaces `time.monotonic`. It does not change when the wall clock is set."""
        return self._loop.time()

    def time_ns(self) -> int:
        """Replaces `time.time_ns`: the wall clock, which `jump_wall` can set."""
        return self._wall_offset_ns + round(self._loop.time() * NS)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back. Timers and `monotonic` are not affected."""
        self._wall_offset_ns += round(seconds * NS)

    def uuid7(self) -> str:
        """A UUIDv7 for the current millisecond of the wall clock.

        It is greater than all earlier ones, even if the clock went back.
        """
        ms = max(self.time_ns() // 1_000_000, 0)
        if ms > self._id_ms:
            self._id_ms = ms
            self._id_tail = self._ids.getrandbits(TAIL_BITS - 1)  # the free top bit leaves room to count up
        else:
            self._id_tail += ID_STEP + self._ids.getrandbits(32)
        high, low = divmod(self._id_tail, 1 << 62)
        return str(uuid.UUID(int=self._id_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low))

    def chance(self, p: float) -> bool:
        """True with probability `p`: 0 is never, 1 is always."""
        return self._faults.random() < p


def simulate(main: Callable[[Simulation], Awaitable[T]], *, seed: int = 0, start_ns: int = START_NS) -> T:
    """Run `main(simulation)` to its end on a new loop, like `asyncio.run`, and return its result.

    Tasks that are left over are cancelled, async generators and the default executor are shut down, the loop is closed;
    the thread's current event loop is not touched. An error of `main` is raised with a note that contains the seed.
    Raises `Deadlock` if the program can never continue, `Livelock` if it never stops running.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("simulate() runs a loop of its own: call it from a plain function, not from a coroutine")
    loop = VirtualLoop(seed=seed)
    simulation = Simulation(loop, seed=seed, start_ns=start_ns)

    async def run() -> T:
        return await main(simulation)

    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(run())
    except BaseException as error:
        error.add_note(f"replay with seed={seed}")
        raise


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(f"{name} {seed}")
