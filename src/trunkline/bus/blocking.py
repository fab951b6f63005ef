"""The blocking face: the same bus for threads, scripts and notebooks. The bus lives in an event loop of its own thread.

Every method is safe from many threads at once and waits for the result of its async twin.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from trunkline.bus.bus import Bus, Unfinished
from trunkline.bus.handling import HandlerOptions
from trunkline.bus.observe import Explanation, Stats
from trunkline.delivery.deadletters import DeadLetter
from trunkline.delivery.fates import Account
from trunkline.delivery.options import DeliveryOptions
from trunkline.delivery.stream import Stream
from trunkline.errors import BusClosed, UsageError
from trunkline.message import Fields, Message

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"trunkline {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Whoever still waits for something here must be told, not forgotten.
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait. Interrupted (Ctrl-C), it is cancelled there."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("a blocking call from the bus's own thread would wait for itself: use the async bus there")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise BusClosed(self._name) from error
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class BlockingStream:
    """Messages, one by one, without an event loop. Several threads may take from it."""

    def __init__(self, thread: LoopThread, stream: Stream) -> None:
        self._thread = thread
        self._stream = stream

    def recv(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when the stream is closed; raises StreamEmpty after `timeout_s`."""
        return self._thread.call(self._stream.recv(timeout_s))

    def try_recv(self) -> Message:
        """The next message, now; raises StreamEmpty or StreamClosed."""
        return self._thread.call(as_coroutine(self._stream.try_recv))

    def __iter__(self) -> Iterator[Message]:
        while (message := self.recv()) is not None:
            yield message

    def ack(self, message: Message) -> bool:
        return self._thread.call(as_coroutine(lambda: self._stream.ack(message)))

    def nack(self, message: Message, reason: str = "not handled") -> float | None:
        return self._thread.call(as_coroutine(lambda: self._stream.nack(message, reason)))

    def close(self) -> None:
        self._thread.call(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingBus:
    def __init__(self, connect: Callable[[], Bus], name: str) -> None:
        self._thread = LoopThread(name)
        self._closed = False
        try:
            self._bus = self._thread.call(as_coroutine(connect))
            self._thread.call(self._bus.__aenter__())
            self._door = self._thread.call(as_coroutine(self._bus.from_thread))
        except BaseException:
            self._thread.stop()
            raise

    @property
    def name(self) -> str:
        return self._bus.name

    @property
    def thread(self) -> LoopThread:
        """Where it lives, for what is to live beside it."""
        return self._thread

    @property
    def bus(self) -> Bus:
        """The bus itself: to be used in its thread."""
        return self._bus

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        return self.publish_soon(topic, payload, **fields).result()

    def publish_soon(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Future[str]:
        """Publish without waiting; the future gives the id, or the error. Many at once share a wake-up."""
        if self._closed:
            raise BusClosed(self.name)
        return self._door.publish(topic, payload, **fields)

    def publish_many(self, topic: str, payloads: Iterable[object], **fields: Unpack[Fields]) -> list[str]:
        return self._thread.call(self._bus.publish_many(topic, list(payloads), **fields))

    def post(self, message: Message) -> str:
        return self._thread.call(self._bus.post(message))

    def send(self, to: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        return self._thread.call(self._bus.send(to, payload, **fields))

    def broadcast(self, payload: object = b"", **fields: Unpack[Fields]) -> str:
        return self._thread.call(self._bus.broadcast(payload, **fields))

    def request(self, topic: str, payload: object = b"", **options: Any) -> Any:
        return self._thread.call(self._bus.request(topic, payload, **options))

    def try_request(self, topic: str, payload: object = b"", **options: Any) -> Any:
        return self._thread.call(self._bus.try_request(topic, payload, **options))

    def subscribe(self, pattern: str, **options: Unpack[DeliveryOptions]) -> BlockingStream:
        """`with bus.subscribe("orders.>") as messages: for message in messages: …`"""
        return BlockingStream(self._thread, self._thread.call(self._bus.subscribe(pattern, **options).open()))

    def on(self, pattern: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Handle what matches; a plain function runs in a thread, one message at a time unless `concurrency` is set."""

        def register(function: F) -> F:
            self._thread.call(as_coroutine(lambda: self._bus.handle(pattern, function, **options)))
            return function

        return register

    def run(self, function: Callable[[Bus], T]) -> T:
        """Call a function with the async bus, in its thread: `bus.run(lambda bus: bus.router.add_rule(rule))`.

        For what has no method here. What it returns is returned, and awaited first if it is a coroutine.
        """

        async def work() -> Any:
            result = function(self._bus)
            return await result if asyncio.iscoroutine(result) else result

        result: T = self._thread.call(work())
        return result

    def stats(self) -> Stats:
        return self._thread.call(as_coroutine(self._bus.stats))

    def accounts(self) -> Mapping[str, Account]:
        return self._thread.call(as_coroutine(self._bus.accounts))

    def history(self, limit: int | None = None, topic: str | None = None) -> list[Message]:
        return self._thread.call(as_coroutine(lambda: self._bus.history(limit, topic)))

    def last(self, topic: str, *, before: int | None = None) -> Message | None:
        """The last message accepted on a stored topic; None if none is stored."""
        return self._thread.call(self._bus.last(topic, before=before))

    def explain(self, message_id: str) -> Explanation:
        return self._thread.call(self._bus.explain(message_id))

    def dead_letters(self) -> list[DeadLetter]:
        return self._thread.call(as_coroutine(lambda: list(self._bus.dead_letters)))

    def replay(self, letter: DeadLetter, **changes: Any) -> Message:
        """Give a dead letter back to the subscriber that failed on it."""
        return self._thread.call(as_coroutine(lambda: self._bus.dead_letters.replay(letter, **changes)))

    def close(self, drain_s: float | None = None) -> list[Unfinished]:
        """Drain, stop, and end the thread; return what was not finished. Closing twice is fine."""
        if self._closed:
            return []
        self._closed = True
        try:
            return self._thread.call(self._bus.aclose(drain_s))
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def as_coroutine(function: Callable[[], T]) -> T:
    return function()
