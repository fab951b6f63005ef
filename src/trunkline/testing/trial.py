"""The tools for writing the promises of `contract.py`, and the report of a broken one.

Everything works in virtual and in real time, for brokers in this process and in others. A message counts as arrived
only after it was observed, and no wait is longer than DEADLINE_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, Unpack

from trunkline.brokers.broker import Broker, Feature
from trunkline.delivery.fates import Fate
from trunkline.delivery.options import Delivery
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import StreamClosed, StreamEmpty, Unsupported
from trunkline.message import Fields, Message
from trunkline.topic import endpoint

E = TypeVar("E", bound=Exception)
T = TypeVar("T")

Make = Callable[[], AbstractAsyncContextManager[Broker]]
"""Makes a broker. A broker is a context manager that closes it."""
Guest = Callable[[Broker], AbstractAsyncContextManager[Broker]]
"""Connects to the address of a broker as another identity, which may only publish and subscribe on `ALLOWED`."""

ALLOWED: Final = "allowed.>"

DEADLINE_S: Final = 10.0
"""How long anything may take that should happen immediately."""
SOON_S: Final = 0.2
"""How long to watch for events that must not happen. Also the lease of messages that are not acknowledged."""
POLL_S: Final = 0.005
END: Final = "the end"


class BrokenPromise(AssertionError):
    """`promise` is the name of the broken promise; `seen` is what the broker did instead."""

    def __init__(self, broker: str, promise: Promise, seen: str) -> None:
        super().__init__(f"the {broker} broker breaks {promise.name}\n  promised: {promise.says}\n  seen: {seen}")
        self.promise = promise.name
        self.seen = seen


class Promise:
    """One promise. `await promise(make)` makes a broker, tests it and closes it. Raises BrokenPromise.

    A broker with rules (Feature.RIGHTS) is also tested with a `guest`.
    """

    def __init__(self, attempt: Callable[[Trial], Awaitable[None]]) -> None:
        self.name: str = attempt.__name__
        self.says = " ".join((attempt.__doc__ or "").split())
        self._attempt = attempt

    def __str__(self) -> str:
        return self.name

    async def __call__(self, make: Make, guest: Guest | None = None) -> None:
        broker_name = "nameless"
        try:
            async with tried(make(), guest) as trial:
                broker_name = trial.broker.name
                await self._attempt(trial)
        except Exception as error:
            seen = str(error) if isinstance(error, Seen) else f"{type(error).__name__}: {error}"
            raise BrokenPromise(broker_name, self, seen) from error


def promise(attempt: Callable[[Trial], Awaitable[None]]) -> Promise:
    """Make a promise from a coroutine function. Its docstring is the text of the promise."""
    return Promise(attempt)


def promises_in(module: Mapping[str, object]) -> tuple[Promise, ...]:
    """The promises that a module defines, in order."""
    return tuple(each for each in module.values() if isinstance(each, Promise))


class Seen(Exception):
    """An observation that contradicts the promise."""


@asynccontextmanager
async def tried(made: AbstractAsyncContextManager[Broker], guest: Guest | None = None) -> AsyncIterator[Trial]:
    """Make a trial of a broker, and close the broker.

    At the end the books must balance, and nothing may be in flight.
    """
    async with made as broker:
        trial = Trial(broker, guest)
        try:
            yield trial
            trial.balanced()
        finally:
            await trial.tidy()
    trial.balanced()
    left = sum(account.in_flight for account in broker.served.accounts().values())
    expect(left == 0, f"{left} messages are in flight after the broker was closed")


class Trial:
    """One broker, and the operations and checks of a promise. After each step the books must balance."""

    def __init__(self, broker: Broker, guest: Guest | None = None) -> None:
        self.broker = broker
        self.guest = guest
        self._opened: list[Stream] = []
        """Streams that are kept until the broker is closed, which also closes them."""
        self._tasks: list[asyncio.Task[Any]] = []

    # Doing

    def message(self, topic: str, text: str = "", **fields: Unpack[Fields]) -> Message:
        fields = {"id": self.broker.world.uuid7(), "sender": "the contract", **fields}
        return Message(topic=topic, payload=text.encode(), timestamp_ns=self.broker.world.time_ns(), **fields)

    async def publish(self, topic: str, *texts: str, **fields: Unpack[Fields]) -> list[Message]:
        """Publish one batch. Returns when the broker has it."""
        batch = [self.message(topic, text, **fields) for text in texts]
        await self.send(batch)
        return batch

    async def send(self, batch: Sequence[Message]) -> None:
        try:
            async with within("a publish that nothing holds up did not return"):
                await self.broker.publish(batch)
                await self.broker.flush()
        finally:
            self.balanced()

    async def end(self, *topics: str) -> None:
        """Publish an end mark on each topic. A message after the mark arrived too late, or twice."""
        for topic in topics:
            await self.publish(topic, END)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that ends with the trial."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def tidy(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def open(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        stream = self.broker.subscribe(pattern, delivery)
        self._opened.append(stream)
        async with within(f"the subscription to {pattern} was not confirmed"):
            await stream.opened()
        return stream

    async def take(self, stream: Stream) -> Message:
        message = await self._recv(stream)
        if message is None:
            raise Seen(f"{stream.name} ended")
        return message

    async def _recv(self, stream: Stream) -> Message | None:
        async with within(f"{stream.name} got nothing"):
            message = await stream.recv()
        self.balanced()
        return message

    async def rest(self, stream: Stream, ends: int = 1) -> list[Message]:
        """All messages up to the marks of `end`.

        There is one mark per topic, because order is only promised per topic.
        """
        found: list[Message] = []
        while ends:
            message = await self.take(stream)
            if text(message) == END:
                ends -= 1
            else:
                found.append(message)
        return found

    async def arrived(self, count: int, *streams: Stream) -> None:
        """Return when `count` messages wait in these streams."""
        await until(
            lambda: sum(stream.depth for stream in streams) == count,
            lambda: f"{sum(stream.depth for stream in streams)} messages arrived instead of {count}",
        )

    async def fates(self, message: Message) -> dict[str, Fate]:
        """The result of `explain` for a message: one fate for each subscriber."""
        found, outcomes = await self.broker.explain(message.id, message)
        expect(found is not None and found.id == message.id, f"the message is {found}")
        fates = {outcome.subscriber: outcome.fate for outcome in outcomes}
        expect(len(fates) == len(outcomes), f"two fates of one subscriber: {outcomes}")
        return fates

    async def ended(self, message: Message, wanted: Mapping[str, Fate]) -> None:
        """Check that the message has exactly these fates."""
        seen = await self.fates(message)
        expect(seen == wanted, f"of {text(message)!r}: {seen} instead of {wanted}")

    # Judging

    def balanced(self) -> None:
        for name, account in self.broker.served.accounts().items():
            expect(account.balanced, f"the books of {name or 'those who left'} do not balance: {account}")

    async def takes(self, stream: Stream, *wanted: str) -> None:
        """Check that the next messages are these, in this order."""
        got = [text(await self.take(stream)) for _ in wanted]
        expect(got == list(wanted), f"{stream.name} got {got} instead of {list(wanted)}")

    async def has_only(self, stream: Stream, *wanted: str, ends: int = 1) -> None:
        """Check that exactly these messages arrive before the end marks."""
        got = [text(message) for message in await self.rest(stream, ends)]
        expect(sorted(got) == sorted(wanted), f"{stream.name} got {got} instead of {list(wanted)}")

    def is_empty(self, stream: Stream) -> None:
        """Check that the stream has no message now, and is not closed."""
        with raises(StreamEmpty, f"try_recv on {stream.name}, which is empty,"):
            stream.try_recv()

    async def is_over(self, stream: Stream) -> None:
        """Check that the stream has no message, and has ended."""
        last = await self._recv(stream)
        expect(last is None, f"{stream.name} got {last} after its end")
        with raises(StreamClosed, f"try_recv on {stream.name} after its end"):
            stream.try_recv()

    async def offers(self, feature: Feature) -> bool:
        """Whether the broker has a feature. If not, using it must raise Unsupported immediately."""
        if feature in self.broker.features:
            return True
        with raises(Unsupported, f"asking for {feature.value}, which it says it lacks,") as refusal:
            match feature:
                case Feature.GROUPS:
                    await self.open("t", Delivery(group="g"))
                case Feature.PRIORITY:
                    await self.broker.publish([self.message("t", priority=75)])
                case Feature.ACKNOWLEDGEMENT:
                    await self.open("t", Delivery(ack=True))
                case Feature.BACKPRESSURE:
                    await self.open("t", Delivery(capacity=1, overflow=Overflow.REJECT))
                case Feature.DURABLE:
                    await self.open("t", Delivery(name="d", durable=True))
                case Feature.STORED:
                    with raises(Unsupported, "a subscription that starts with what is stored"):
                        await self.open("t", Delivery(start="last"))
                    await self.broker.require_store().last("t")
                case Feature.LINKS:
                    self.broker.link("t", endpoint("e"))
                case Feature.CHANNELS:
                    self.broker.require_directory()
                case Feature.RIGHTS:
                    expect(self.guest is None, "it has no rules, but an identity that they limit")
                    self.broker.require(Feature.RIGHTS)
        named = refusal.error.feature
        expect(named == feature.value, f"asked for {feature.value}, it names {named} as the missing feature")
        return False


def text(message: Message) -> str:
    return bytes(message.payload).decode()


def expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise Seen(otherwise)


class raises(Generic[E]):
    """The block must raise an error of this kind; it is then in `error`."""

    error: E

    def __init__(self, kind: type[E], what: str) -> None:
        self._kind = kind
        self._what = what

    def __enter__(self) -> raises[E]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, self._kind):
            self.error = error
            return True
        expect(error is not None, f"{self._what} did not raise {self._kind.__name__}")
        if isinstance(error, Exception) and not isinstance(error, Seen):
            raise Seen(f"{self._what} raised {error!r} instead of {self._kind.__name__}") from error
        return False


@asynccontextmanager
async def within(otherwise: str) -> AsyncIterator[None]:
    """Check that the block does not take longer than DEADLINE_S."""
    try:
        async with asyncio.timeout(DEADLINE_S) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Seen(f"{otherwise} within {DEADLINE_S:g} s") from None


async def until(condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Return when the condition holds. For events in another process that are not reported."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        if loop.time() >= deadline:
            raise Seen(f"{otherwise()} within {DEADLINE_S:g} s")
        await asyncio.sleep(POLL_S)
