"""Subscribing and handling: the third layer of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack
from weakref import WeakSet

from trunkline.brokers.broker import Broker, Feature
from trunkline.bus.consuming import Consumption
from trunkline.bus.dispatcher import Around, Handler
from trunkline.bus.handlers import bind, name_of
from trunkline.bus.requesting import Requesting
from trunkline.bus.router import Router
from trunkline.bus.subscription import Subscription
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery, DeliveryOptions
from trunkline.delivery.route import Sink, Take
from trunkline.delivery.stream import Stream
from trunkline.errors import UsageError
from trunkline.hooks.hook import Hook
from trunkline.message import Message
from trunkline.settings import Group, Settings, build
from trunkline.topic import EVERYTHING

F = TypeVar("F", bound=Callable[..., Any])


class HandlerOptions(DeliveryOptions, total=False):
    """Keywords of `bus.on`: those of a subscription, and how the handler runs."""

    concurrency: int
    timeout_s: float | None


class Running(Group, frozen=True, kw_only=True):
    """How a handler runs: so many messages at once, none longer than `timeout_s`."""

    concurrency: int = 1
    timeout_s: float | None = None


class Handling(Requesting):
    def __init__(self, broker: Broker, name: str, settings: Settings | None, hooks: Iterable[Hook]) -> None:
        super().__init__(broker, name, settings, hooks)
        self.arounds: list[Around] = []
        self._handlers: set[Handler] = set()
        # Weak: a stream that nobody holds any more is gone, and its subscription with it.
        self._streams: WeakSet[Stream] = WeakSet()
        self.router = Router(self._start_named, self._tap_all, self.settings.backpressure)

    def subscribe(self, pattern: str, **options: Unpack[DeliveryOptions]) -> Subscription:
        """`async with bus.subscribe("orders.>") as messages`: inside, every publish that matches is seen."""
        delivery = build(Delivery, options)
        self._require(delivery)
        return Subscription(lambda: self._open(pattern, delivery))

    def consume(
        self,
        channel: str,
        consumer_id: str,
        *,
        schema: Any = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[DeliveryOptions],
    ) -> Consumption:
        """`async with bus.consume("orders", "billing-1", schema=Order) as messages`: from a channel of the hub.

        What its contract says holds for what is not given here: overflow policy, the group whose members share the
        messages, and on a durable channel a place that is kept under the consumer's id, or the group's name.
        """

        directory = self.broker.require_directory()

        async def attach() -> Subscription:
            terms = await directory.attach(channel, consumer_id, schema=schema, metadata=metadata)
            asked: DeliveryOptions = {"name": consumer_id}
            asked |= terms.options
            asked |= options
            return self.subscribe(terms.pattern, **asked)

        return Consumption(attach, lambda: directory.unregister_consumer(channel, consumer_id))

    def _open(self, pattern: str, delivery: Delivery) -> Stream:
        self._out.check_open()
        stream = self.broker.subscribe(pattern, delivery)
        if self.opens:
            stream.read_with(self._readable)
        self._streams.add(stream)
        return stream

    def _require(self, delivery: Delivery) -> None:
        if delivery.durable:
            self.broker.require(Feature.DURABLE)
        if delivery.reads_stored:
            self.broker.require(Feature.STORED)
        if delivery.group is not None:
            self.broker.require(Feature.GROUPS)
        if delivery.ack:
            self.broker.require(Feature.ACKNOWLEDGEMENT)

    def on(self, pattern: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Handle what matches: `@bus.on("orders.*", retry=Retry(attempts=5))`. The function stays as it is."""

        def register(function: F) -> F:
            self.handle(pattern, function, **options)
            return function

        return register

    def handle(self, pattern: str, function: Callable[..., Any], **options: Unpack[HandlerOptions]) -> Handler:
        """Run a function on each message that matches; the handler's `aclose` ends it.

        The payload is decoded to the annotated type. What the function returns answers a request. If it raises, the
        message is tried again as `retry` says (3 attempts by default), and then is a dead letter.
        """
        self._out.check_open()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                f"{name_of(function)} needs a running event loop: register handlers inside `async with connect(…)`, "
                "or use connect_blocking"
            ) from None
        name = options.pop("name", None) or self.broker.roster.free_name(name_of(function))
        return self._start(function, lambda delivery: self.broker.subscribe(pattern, delivery), name, dict(options))

    def _start(
        self, function: Callable[..., Any], subscribe: Callable[[Delivery], Stream], name: str, options: dict[str, Any]
    ) -> Handler:
        call = bind(function)
        running = build(Running, {key: options.pop(key) for key in ("concurrency", "timeout_s") if key in options})
        delivery = build(Delivery, {**options, "ack": True, "name": name})
        self._require(delivery)
        handler = Handler(self, subscribe(delivery), call, concurrency=running.concurrency, timeout_s=running.timeout_s)
        self._handlers.add(handler)
        return handler

    def forget(self, handler: Handler) -> None:
        """Called by a handler that was closed."""
        self._handlers.discard(handler)

    def _start_named(self, name: str, function: Callable[..., Any], **options: Any) -> tuple[Handler, Inbox]:
        """A handler for the router: in the roster, but with no subscription of its own."""
        joined: list[Inbox] = []

        def join(delivery: Delivery) -> Stream:
            inbox, stream = self.broker.roster.join(EVERYTHING, delivery, self.broker.roster.part)
            # Rules decide what it gets: ranges would claim the rest as well.
            inbox.books.exact = True
            joined.append(inbox)
            return stream

        handler = self._start(function, join, name, options)
        return handler, joined[0]

    def _tap_all(self, take: Take) -> Callable[[], None]:
        def choose(message: Message) -> Iterable[Sink] | None:
            chosen = take(message)
            if chosen and not self.broker.heard(message.topic):
                self._out.unrouted -= 1
            return chosen

        return self.broker.tap(EVERYTHING, choose, hears=False)

    def subscribers(self, topic: str) -> list[str]:
        """The names of the subscribers in this process that would get a message on this topic.

        Through a hub, if there are none, `somebody elsewhere` if others would get it.
        """
        return self.broker.subscribers(topic)
