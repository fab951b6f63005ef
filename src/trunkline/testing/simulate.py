"""Run a whole asyncio program in virtual time, repeatably: one seed decides the schedule, the ids and the faults.

What lives here is the program's view of that world; how time and order are kept is `loop.py`.
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
# The engine draws ids in blocks of 4,096 that count up the last 12 bits: two ids of ours must not share the rest.
ID_STEP = 1 << 12
TAIL_BITS = 74


class Simulation:
    """The world as the simulated program sees it: clocks, ids, chance.

    Each kind of chance has its own stream, so that one more id or fault leaves the data and the schedule as they were.
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
        """In the place of `time.monotonic`: never jumps with the wall clock."""
        return self._loop.time()

    def time_ns(self) -> int:
        """In the place of `time.time_ns`: the wall clock, which `jump_wall` can set."""
        return self._wall_offset_ns + round(self._loop.time() * NS)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back; timers and `monotonic` do not notice."""
        self._wall_offset_ns += round(seconds * NS)

    def uuid7(self) -> str:
        """A UUIDv7 of the wall clock's millisecond, above every earlier one even if the wall clock went back."""
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
    """Run `main(simulation)` to its end on a loop of its own, as `asyncio.run` would, and return its result.

    Tasks that are left over are cancelled, async generators and the default executor are shut down, the loop is closed;
    the thread's current event loop is not touched. An error of `main` passes through with a note that names the seed.
    Raises `Deadlock` when nothing can ever happen again, `Livelock` when it never stops happening.
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
