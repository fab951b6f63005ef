"""The blocking bus, for threads, scripts and notebooks. The async bus runs in an event loop in its own thread.

Every method can be called from any thread, and waits for the result of the async method of the same name.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from trunkline.brokers.broker import Broker
from trunkline.bus.bus import Bus
from trunkline.bus.channels import Producer
from trunkline.bus.closing import Unfinished
from trunkline.bus.handlers import check_pattern_given
from trunkline.bus.handling import HandlerOptions
from trunkline.bus.pipeline import Pipeline
from trunkline.bus.router import Router
from trunkline.bus.threads import ThreadDoor
from trunkline.delivery.dead_letters import DeadLetters
from trunkline.delivery.options import DeliveryOptions
from trunkline.delivery.requests import OrphanBox
from trunkline.delivery.stream import Stream
from trunkline.errors import BusClosed, UsageError
from trunkline.hooks.hook import HookChain
from trunkline.memory.metrics import MemoryEnds
from trunkline.message import Fields, Message
from trunkline.settings import Settings

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class BlockingCall(Generic[T]):
    """A coroutine that runs in the thread of an event loop while another thread waits for its end."""

    __slots__ = ("_done", "_ended", "_error", "_result", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            self._result = await self._work
        except (KeyboardInterrupt, SystemExit) as error:
            self._error = error
            raise
        except asyncio.CancelledError as error:
            self._error = CancelledError()
            self._error.__cause__ = error
            raise
        except BaseException as error:
            self._error = error
        finally:
            # Here, and not in a callback of the task, which would need another iteration of the loop.
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._done.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._discard()

    def wait(self) -> None:
        self._done.acquire()

    def abandon(self, error: Exception) -> None:
        """End the call with an error, because the loop ended before the call was started."""
        if not self._ended:
            self._discard()
            self._error = error
            self._end()

    def _discard(self) -> None:
        """Close the coroutine of a task that was cancelled before its first step."""
        if getcoroutinestate(self._work) == CORO_CREATED:
            self._work.close()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # Its traceback refers to this frame, which must not keep it alive.
            del error


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._calls: set[BlockingCall[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=f"trunkline {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Calls that still wait get an error.
            self._cancel_all()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._cancel_all()
            self._loop.close()
            for call in list(self._calls):
                call.abandon(BusClosed(self._name))

    def _cancel_all(self) -> None:
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in that thread and wait for its result. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("a blocking call from the bus's own thread would wait for itself: use the async bus there")
        call = BlockingCall(work)
        self._calls.add(call)
        try:
            try:
                self._loop.call_soon_threadsafe(call.start)
            except RuntimeError as error:
                work.close()
                raise BusClosed(self._name) from error
            call.wait()
        except BaseException:
            # Ctrl-C can interrupt at any point of this block.
            with suppress(RuntimeError):
                # Nothing is left to cancel if the loop has ended.
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        finally:
            self._calls.discard(call)
        return call.result()

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class BlockingStream:
    """A stream of messages for code without an event loop. Several threads may read from it."""

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

    def __exit__(self, *_: object) -> None:
        self.close()


class Block(Generic[T]):
    """The blocking variant of an `async with` block."""

    def __init__(self, thread: LoopThread, inner: AbstractAsyncContextManager[U], wrap: Callable[[U], T]) -> None:
        self._thread = thread
        self._inner = inner
        self._wrap = wrap

    def __enter__(self) -> T:
        return self._wrap(self._thread.call(_awaited(self._inner.__aenter__)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(_awaited(lambda: self._inner.__aexit__(kind, error, trace)))


class BlockingPipeline:
    """Publishes without waiting for the disk.

    Like `Pipeline`, leaving the block and `flush` can raise PartlyRefused.
    """

    def __init__(self, thread: LoopThread, pipeline: Pipeline) -> None:
        self._thread = thread
        self._pipeline = pipeline

    @property
    def in_flight(self) -> int:
        """The number of messages that are not on disk yet."""
        return self._pipeline.in_flight

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        """Start to publish; return the message's id. Waits only while `in_flight` messages are not on disk yet."""
        return self._thread.call(self._pipeline.publish(topic, payload, **fields))

    def flush(self) -> None:
        """Return when everything so far is published; raise PartlyRefused if messages were refused."""
        self._thread.call(self._pipeline.flush())


class BlockingProducer:
    """Publishes on the topics of one channel."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self.pattern = producer.pattern

    def publish(self, payload: object = b"", *, topic: str | None = None, **fields: Unpack[Fields]) -> str:
        """As `bus.publish`, on the channel's topic. If the channel has several topics, `topic` selects one of them."""
        return self._thread.call(self._producer.publish(payload, topic=topic, **fields))


class There(Generic[T]):
    """A proxy for a part of the bus, such as its dead letters, whose methods run in the bus's thread."""

    def __init__(self, thread: LoopThread, part: T) -> None:
        self._thread = thread
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found):
            return found

        @wraps(found)
        def call(*args: Any, **options: Any) -> Any:
            return self._thread.call(_awaited(lambda: found(*args, **options)))

        return call

    def __iter__(self) -> Iterator[Any]:
        return iter(self._thread.call(as_coroutine(lambda: list(cast(Any, self._part)))))

    def __len__(self) -> int:
        return self._thread.call(as_coroutine(lambda: len(cast(Any, self._part))))

    def __repr__(self) -> str:
        return repr(self._part)


def _waits(method: Callable[Concatenate[Bus, P], Awaitable[T]]) -> Callable[Concatenate[BlockingBus, P], T]:
    """A method that runs the async method in the bus's thread and waits for its result."""

    @wraps(method)
    def wait(self: BlockingBus, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = self.thread.call(_awaited(lambda: method(self.bus, *args, **options)))
        return result

    return wait


def _asks(method: Callable[Concatenate[Bus, P], T]) -> Callable[Concatenate[BlockingBus, P], T]:
    """As `_waits`, for a method that is not a coroutine."""

    @wraps(method)
    def ask(self: BlockingBus, /, *args: P.args, **options: P.kwargs) -> T:
        return self.thread.call(as_coroutine(lambda: method(self.bus, *args, **options)))

    return ask


class BlockingBus:
    """The blocking counterpart of `Bus`: all its public methods, with the same names and meanings."""

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
    def settings(self) -> Settings:
        return self._bus.settings

    @property
    def broker(self) -> Broker:
        """The broker itself. Use it only in the bus's thread, as with `run`."""
        return self._bus.broker

    @property
    def hooks(self) -> HookChain:
        return self._bus.hooks

    @property
    def memory_ends(self) -> MemoryEnds:
        return self._bus.memory_ends

    @property
    def thread(self) -> LoopThread:
        """The thread of the bus, for components that run in the same event loop."""
        return self._thread

    @property
    def bus(self) -> Bus:
        """The bus itself. Use it only in its thread."""
        return self._bus

    # Publishing

    def publish(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> str:
        return self.publish_soon(topic, payload, **fields).result()

    def publish_soon(self, topic: str, payload: object = b"", **fields: Unpack[Fields]) -> Future[str]:
        """Publish without waiting. The future returns the id or raises the error.

        Concurrent calls share a wake-up of the loop.
        """
        if self._closed:
            raise BusClosed(self.name)
        return self._door.publish(topic, payload, **fields)

    publish_many = _waits(Bus.publish_many)
    post = _waits(Bus.post)
    post_many = _waits(Bus.post_many)
    send = _waits(Bus.send)
    broadcast = _waits(Bus.broadcast)
    message = _asks(Bus.message)
    flush = _waits(Bus.flush)

    def pipeline(self, in_flight: int = 1000) -> Block[BlockingPipeline]:
        """Publish many messages without waiting for each: `with bus.pipeline() as pipe: pipe.publish(…)`."""
        return Block(self._thread, self._bus.pipeline(in_flight), lambda pipe: BlockingPipeline(self._thread, pipe))

    def produce(
        self, channel: str, producer_id: str, *, schema: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> Block[BlockingProducer]:
        """`with bus.produce("orders", "shop-1", schema=Order) as producer: producer.publish(order)`."""
        inner = self._bus.produce(channel, producer_id, schema=schema, metadata=metadata)
        return Block(self._thread, inner, lambda producer: BlockingProducer(self._thread, producer))

    def from_thread(self) -> ThreadDoor:
        """The object that `publish_soon` uses. It is not needed here: every method is safe from any thread."""
        return self._door

    # Asking

    def request(self, topic: str = "", payload: object = b"", **options: Any) -> Any:
        return self._thread.call(self._bus.request(topic, payload, **options))

    def try_request(self, topic: str = "", payload: object = b"", **options: Any) -> Any:
        """Like `request`, but returns None if no answer arrives in time, or if the bus is closed meanwhile."""
        return self._thread.call(self._bus.try_request(topic, payload, **options))

    wait_reply = _waits(Bus.wait_reply)
    respond = _waits(Bus.respond)
    respond_error = _waits(Bus.respond_error)
    acknowledge = _waits(Bus.acknowledge)

    # Subscribing

    def subscribe(self, pattern: str, **options: Unpack[DeliveryOptions]) -> BlockingStream:
        """`with bus.subscribe("orders.>") as messages: for message in messages: …`"""
        return BlockingStream(self._thread, self._thread.call(self._bus.subscribe(pattern, **options).open()))

    def consume(
        self,
        channel: str,
        consumer_id: str,
        *,
        schema: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[DeliveryOptions],
    ) -> Block[BlockingStream]:
        """`with bus.consume("orders", "billing-1", schema=Order) as messages: for message in messages: …`"""
        inner = self._bus.consume(channel, consumer_id, schema=schema, metadata=metadata, **options)
        return Block(self._thread, inner, lambda stream: BlockingStream(self._thread, stream))

    def on(self, pattern: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Handle messages that match.

        A plain function runs in a thread, one message at a time unless `concurrency` is set.
        """
        check_pattern_given(pattern)

        def register(function: F) -> F:
            self.handle(pattern, function, **options)
            return function

        return register

    handle = _asks(Bus.handle)
    on_handled = _asks(Bus.on_handled)
    opened = _asks(Bus.opened)
    link = _asks(Bus.link)
    unlink = _asks(Bus.unlink)
    forget_durable = _waits(Bus.forget_durable)

    @property
    def router(self) -> Router:
        """The routing rules."""
        return cast(Router, There(self._thread, self._bus.router))

    # Observation

    stats = _asks(Bus.stats)
    _repr_html_ = _asks(Bus._repr_html_)
    health = _asks(Bus.health)
    accounts = _asks(Bus.accounts)
    pending = _asks(Bus.pending)
    history = _asks(Bus.history)
    subscribers = _asks(Bus.subscribers)
    last = _waits(Bus.last)
    explain = _waits(Bus.explain)
    quiet = _waits(Bus.quiet)

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages that could not be handled, with cause, attempts and traceback. They can be replayed from here."""
        return cast(DeadLetters, There(self._thread, self._bus.dead_letters))

    @property
    def orphans(self) -> OrphanBox:
        """Answers for which no request was registered."""
        there = self._thread.call(as_coroutine(lambda: self._bus.orphans))
        return cast(OrphanBox, There(self._thread, there))

    replay = _waits(Bus.replay)
    replay_dead = _waits(Bus.replay_dead)
    replay_orphans = _asks(Bus.replay_orphans)

    # Control

    pause = _asks(Bus.pause)
    resume = _asks(Bus.resume)
    control = _waits(Bus.control)
    ping = _waits(Bus.ping)

    def run(self, function: Callable[[Bus], T]) -> T:
        """Call a function with the async bus, in its thread. If it returns a coroutine, that is awaited."""
        result: T = self._thread.call(_awaited(lambda: function(self._bus)))
        return result

    def close(self, drain_s: float | None = None) -> list[Unfinished]:
        """Drain, stop, and end the thread; return the unfinished messages. Closing twice is allowed."""
        if self._closed:
            return []
        return self._end(lambda: self._bus.aclose(drain_s))

    def _end(self, close: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._closed = True
        try:
            return self._thread.call(close())
        except KeyboardInterrupt:
            # The call was cancelled, so closing no longer waits for handlers.
            self._thread.call(self._bus.aclose())
            raise
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._closed:
            self._end(lambda: self._bus.__aexit__(kind))


async def _awaited(function: Callable[[], Any]) -> Any:
    result = function()
    return await result if isinstance(result, Awaitable) else result


async def as_coroutine(function: Callable[[], T]) -> T:
    return function()
