"""Subscribing and handling: the streams and handlers of one bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

from trunkline.brokers.broker import Broker, Feature
from trunkline.bus.dispatcher import Handler
from trunkline.bus.handler_threads import HandlerThreads
from trunkline.bus.handlers import bind, is_async, name_of
from trunkline.bus.lifecycle import Lifecycle
from trunkline.bus.loop_watchdog import LoopWatchdog, unwatch_loop, watch_loop
from trunkline.bus.requester import Requester
from trunkline.bus.subscription import Subscription
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery, DeliveryOptions
from trunkline.delivery.route import Sink, Take
from trunkline.delivery.stream import Stream
from trunkline.errors import UsageError
from trunkline.hooks.hook import HookChain, Listener
from trunkline.message import Message
from trunkline.settings import Group, Settings, build
from trunkline.topic import EVERYTHING, validate_pattern


class HandlerOptions(DeliveryOptions, total=False):
    """The keywords of `bus.on`: those of a subscription, and those for running the handler."""

    concurrency: int
    timeout_s: float | None


class Running(Group, frozen=True, kw_only=True):
    """How a handler runs: the number of concurrent messages, and the time limit of each."""

    concurrency: int = 1
    timeout_s: float | None = None


class Handlers:
    """The handlers and streams of a bus. It is also the interface of the bus for dispatchers."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        hooks: HookChain,
        requester: Requester,
        life: Lifecycle,
        on_ack: Callable[[Message], None],
    ) -> None:
        self._broker = broker
        self._life = life
        self._on_ack = on_ack
        self._threads = HandlerThreads(life.name)
        self.hooks = hooks
        self.max_message_bytes = settings.max_message_bytes
        self.handled = broker.served.handled
        self.listeners = broker.served.listeners
        self.respond = requester.answer_now
        self.respond_error = requester.answer_error
        self._running: set[Handler] = set()
        # Weak references: a stream that is garbage-collected ends its subscription.
        self._streams: WeakSet[Stream] = WeakSet()
        self._listeners: list[Listener] = []
        self._warn_blocked_s = settings.warn_blocked_s
        self._watchdog: LoopWatchdog | None = None
        self.gate: asyncio.Event | None = None
        """The event that paused handlers wait for."""
        self.found_by_rules = 0
        """The number of messages that no subscriber matched, but a rule of the router did."""

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._running)

    def __len__(self) -> int:
        return len(self._running)

    def pause(self) -> None:
        """Pause all handlers: they finish their current messages and take no more."""
        self.gate = asyncio.Event()

    def resume(self) -> None:
        if self.gate is not None:
            self.gate.set()
            self.gate = None

    @property
    def streams(self) -> list[Stream]:
        return list(self._streams)

    def subscribe(self, pattern: str, delivery: Delivery) -> Subscription:
        self._broker.check_written(validate_pattern(pattern))
        self._require(delivery)
        return Subscription(lambda: self._open(pattern, delivery))

    def _open(self, pattern: str, delivery: Delivery) -> Stream:
        self._life.check_open()
        stream = self._broker.subscribe(pattern, delivery)
        stream.on_ack = self._on_ack
        if (read := self.hooks.reader_of(stream.name, stream.pattern)) is not None:
            stream.read_with(read)
        self._streams.add(stream)
        return stream

    def _require(self, delivery: Delivery) -> None:
        if delivery.durable:
            self._broker.require(Feature.DURABLE)
        if delivery.reads_stored:
            self._broker.require(Feature.STORED)
        if delivery.group is not None:
            self._broker.require(Feature.GROUPS)
        if delivery.ack:
            self._broker.require(Feature.ACKNOWLEDGEMENT)

    def handle(self, pattern: str, function: Callable[..., Any], options: HandlerOptions) -> Handler:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                f"{name_of(function)} needs a running event loop: register handlers inside `async with connect(…)`, "
                "or use connect_blocking"
            ) from None
        self._life.check_not_closed()
        self._broker.check_written(validate_pattern(pattern))
        name = options.pop("name", None) or self._broker.served.free_name(name_of(function))
        return self._start(function, lambda delivery: self._broker.subscribe(pattern, delivery), name, dict(options))

    def _start(
        self, function: Callable[..., Any], subscribe: Callable[[Delivery], Stream], name: str, options: dict[str, Any]
    ) -> Handler:
        call = bind(function, self._threads)
        running = build(Running, {key: options.pop(key) for key in ("concurrency", "timeout_s") if key in options})
        delivery = build(Delivery, {**options, "ack": True, "name": name})
        self._require(delivery)
        handler = Handler(self, subscribe(delivery), call, concurrency=running.concurrency, timeout_s=running.timeout_s)
        self._running.add(handler)
        if self._watchdog is None and self._warn_blocked_s is not None and is_async(function):
            self._watchdog = watch_loop(self._warn_blocked_s)
        return handler

    def forget(self, handler: Handler) -> None:
        """Called by a handler that was closed."""
        self._running.discard(handler)

    def start_named(self, name: str, function: Callable[..., Any], **options: Any) -> tuple[Handler, Inbox]:
        """Start a handler for the router. The broker serves it, but it has no subscription."""
        joined: list[Inbox] = []

        def join(delivery: Delivery) -> Stream:
            inbox, stream = self._broker.served.join(EVERYTHING, delivery, self._broker.served.part)
            # Rules select its messages, so ranges of numbers would be wrong.
            inbox.books.exact = True
            joined.append(inbox)
            return stream

        handler = self._start(function, join, name, options)
        return handler, joined[0]

    def tap_all(self, take: Take) -> Callable[[], None]:
        def choose(message: Message) -> Iterable[Sink] | None:
            chosen = take(message)
            if chosen and not self._broker.has_subscribers(message.topic):
                self.found_by_rules += 1
            return chosen

        return self._broker.tap(EVERYTHING, choose, hears=False)

    # How handling went, for circuit breakers

    def on_handled(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self._broker.served.listeners.append(listener)

    def end(self) -> None:
        """Called when the bus is closed: remove its listeners and the watchdog of its handlers."""
        for listener in self._listeners:
            self._broker.served.listeners.remove(listener)
        if self._watchdog is not None:
            unwatch_loop(self._watchdog)
            self._watchdog = None

    # Closing

    async def quiet(self, *, durable: bool = True) -> None:
        """Return when all handlers are idle. Without `durable`, handlers of durable subscriptions may be busy."""
        # The result of one handler may be work for another, so all must be idle at the same time.
        while busy := self.waited_for(durable=durable):
            await asyncio.gather(*(handler.quiet() for handler in busy))

    def waited_for(self, *, durable: bool) -> list[Handler]:
        """The handlers that are still busy. Without `durable`, only those whose messages would be lost."""
        return [handler for handler in self._running if handler.busy and (durable or not handler.durable)]

    def end_threads(self, *, wait: bool) -> None:
        """End the threads, after all handlers have ended.

        With `wait`, the event loop does not end before their functions.
        """
        self._threads.close(wait=wait)

    def stop(self) -> None:
        """Stop all handlers from accepting new messages."""
        for handler in self._running:
            handler.stop()
