"""The context for plain `def` handlers, which run in threads: each call returns when the event loop has done it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from trunkline.errors import UsageError

if TYPE_CHECKING:
    from trunkline.actors.actor import Actor
    from trunkline.actors.context import Context, ContextCell
    from trunkline.actors.ref import Ref
    from trunkline.actors.timers import Timer

T = TypeVar("T")


class BlockingContext:
    """Like `Context`, for a handler that runs in a thread."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: Context, cell: ContextCell) -> None:
        self._context = context
        self._loop = cell.loop

    def send(self, to: str | Ref, payload: object = b"", **fields: Any) -> str:
        return self._wait(lambda: self._context.send(to, payload, **fields))

    def publish(self, topic: str, payload: object = b"", **fields: Any) -> str:
        return self._wait(lambda: self._context.publish(topic, payload, **fields))

    def request(self, to: str | Ref, payload: object = b"", **options: Any) -> Any:
        return self._wait(lambda: self._context.request(to, payload, **options))

    def try_request(self, to: str | Ref, payload: object = b"", **options: Any) -> Any:
        return self._wait(lambda: self._context.try_request(to, payload, **options))

    def spawn(self, kind: type[Actor], *arguments: Any, **options: Any) -> Ref:
        return self._wait(lambda: self._context.spawn(kind, *arguments, **options))

    def watch(self, other: str | Ref) -> None:
        self._do(lambda: self._context.watch(other))

    def unwatch(self, other: str | Ref) -> None:
        self._do(lambda: self._context.unwatch(other))

    def stop(self) -> None:
        self._context.stop()

    def become(self, *methods: Callable[..., Any]) -> None:
        self._do(lambda: self._context.become(*methods))

    def unbecome(self) -> None:
        self._do(self._context.unbecome)

    def stash(self) -> None:
        self._do(self._context.stash)

    def unstash(self) -> None:
        self._do(self._context.unstash)

    def schedule(self, delay_s: float, payload: object, *, every: bool = False, key: Hashable = None) -> BlockingTimer:
        return self._timer(lambda: self._context.schedule(delay_s, payload, every=every, key=key))

    def schedule_at_rate(
        self, period_s: float, payload: object, *, first_s: float | None = None, key: Hashable = None
    ) -> BlockingTimer:
        return self._timer(lambda: self._context.schedule_at_rate(period_s, payload, first_s=first_s, key=key))

    def cancel_timer(self, key: Hashable) -> bool:
        return self._do(lambda: self._context.cancel_timer(key))

    def set_receive_timeout(self, timeout_s: float | None) -> None:
        self._do(lambda: self._context.set_receive_timeout(timeout_s))

    def _timer(self, start: Callable[[], Timer]) -> BlockingTimer:
        return BlockingTimer(self._do(start), self)

    def _do(self, call: Callable[[], T]) -> T:
        async def done() -> T:
            return call()

        return self._wait(done)

    def _wait(self, call: Callable[[], Awaitable[T]]) -> T:
        if asyncio._get_running_loop() is not None:
            raise UsageError("context.blocking is for plain `def` handlers: an `async def` handler awaits context")

        async def wait() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()


class BlockingTimer:
    """A timer, for the thread of a handler."""

    __slots__ = ("_context", "_timer")

    def __init__(self, timer: Timer, context: BlockingContext) -> None:
        self._timer = timer
        self._context = context

    def cancel(self) -> None:
        self._context._do(self._timer.cancel)

    @property
    def active(self) -> bool:
        return self._timer.active
