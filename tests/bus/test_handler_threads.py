"""Threads for plain functions, and the errors that such a function may raise."""

from __future__ import annotations

import asyncio

import pytest

import trunkline as tl
from trunkline.bus.handler_threads import HandlerThreads


def test_the_end_of_an_iterator_is_an_error_like_any_other() -> None:
    """A future does not accept a StopIteration: its reader would wait for ever."""

    async def main() -> None:
        threads = HandlerThreads("test", max_threads=1)
        nothing: list[int] = []
        with pytest.raises(RuntimeError, match="a handler raised StopIteration") as caught:
            await asyncio.get_running_loop().run_in_executor(threads, lambda: next(iter(nothing)))
        assert isinstance(caught.value.__cause__, StopIteration)
        threads.close(wait=True)
        async with tl.connect() as bus:

            @bus.on("first")
            def first(numbers: list[int]) -> int:
                return next(iter(numbers))

            assert await bus.request("first", [1]) == 1
            with pytest.raises(tl.RequestFailed, match="a handler raised StopIteration"):
                await bus.request("first", [])

    async def soon() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(soon())


def test_no_more_threads_than_allowed() -> None:
    async def main() -> None:
        threads = HandlerThreads("test", max_threads=2)
        loop = asyncio.get_running_loop()
        barrier = asyncio.Barrier(2)

        def both() -> int:
            asyncio.run_coroutine_threadsafe(barrier.wait(), loop).result(60)
            return 1

        assert await asyncio.gather(*(loop.run_in_executor(threads, both) for _ in range(6))) == [1] * 6
        threads.close(wait=True)

    asyncio.run(main())
