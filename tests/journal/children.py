"""Programs that tests run in their own processes, to kill them, lock them out, or fill their disk.

`python children.py live DIRECTORY 7 disk`. They say what they did on standard output, a line at a time, and only after
it was done: what is written there outlives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import trunkline as tl
from trunkline.delivery.stream import Stream
from trunkline.journal import Journal, JournalSettings, Reader, Retention, Sync
from trunkline.journal.writer import Writer

BALLAST = "ballast"
MANY_HELD = 200


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def say_many(lines: list[str]) -> None:
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def tell_error(error: BaseException) -> None:
    """An error in a form that its parent process can read."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int)}
    say("error", json.dumps({"type": type(error).__name__, "text": str(error), **fields}))


# What lives until it is killed


class Life:
    """A bus that publishes in every way, and a durable subscriber that uses every operation.

    It closes when its standard input is closed, if it lives to see that.
    """

    def __init__(self, directory: str, seed: str, sync: str, **settings: Any) -> None:
        self._directory = directory
        self._seed = seed
        self._chance = random.Random(seed)
        self._settings = JournalSettings(seal_rows=2000, tend_s=0.05, replaced_s=0.0, sync=Sync(sync), **settings)
        self._numbers = itertools.count()
        self._said = 0

    async def run(self) -> None:
        with Journal(self._directory, self._settings) as journal:
            async with (
                tl.connect("memory:", journal=journal) as bus,
                bus.subscribe("other.>", name="watcher") as watcher,
                worker(bus) as stream,
            ):
                say("open")
                work = asyncio.gather(
                    *self._publishing(bus, journal),
                    self._work(stream),
                    self._watch(watcher),
                    self._flush(bus),
                )
                end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
                await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work

    def _publishing(self, bus: tl.Bus, journal: Journal) -> list[Coroutine[Any, Any, None]]:
        each = [self._one_by_one(bus, topic) for topic in ("work.a", "work.b", "other.c") for _ in range(3)]
        return [*each, self._many(bus), self._pipe(bus), self._dressed(bus)]

    def _payload(self) -> bytes:
        return f"{self._seed}-{next(self._numbers)}".encode()

    async def _one_by_one(self, bus: tl.Bus, topic: str) -> None:
        while True:
            payload = self._payload()
            say("p", topic, payload.decode(), await bus.publish(topic, payload))

    async def _dressed(self, bus: tl.Bus) -> None:
        """With header fields: another form of batch."""
        while True:
            payload = self._payload()
            fields = {"who": self._seed}
            message_id = await bus.publish("work.a", payload, headers=fields, priority=self._chance.randint(0, 100))
            say("p", "work.a", payload.decode(), message_id)

    async def _many(self, bus: tl.Bus) -> None:
        while True:
            topic = self._chance.choice(("work.a", "work.many", "other.c"))
            payloads = [self._payload() for _ in range(self._chance.randint(1, 100))]
            ids = await bus.publish_many(topic, payloads)
            _say_published(topic, payloads, ids)

    async def _pipe(self, bus: tl.Bus) -> None:
        while True:
            topic = self._chance.choice(("work.b", "work.pipe"))
            payloads = [self._payload() for _ in range(self._chance.randint(1, 200))]
            async with bus.pipeline(in_flight=50) as pipe:
                ids = [await pipe.publish(topic, payload) for payload in payloads]
            _say_published(topic, payloads, ids)

    async def _work(self, stream: Stream) -> None:
        held = 0
        while (message := await stream.recv()) is not None:
            say("r", message.seq, message.id, message.attempts)
            dice = self._chance.random()
            if dice < 0.04 and held < MANY_HELD:
                held += 1
                continue
            if dice < 0.12:
                dead = stream.nack(message, "not today") is None
                say(*("x", message.seq, 0) if dead else ("n", message.seq, message.attempts + 1))
            elif dice < 0.16:
                stream.reject(message, "never")
                say("x", message.seq, 0)
            else:
                stream.ack(message)
                say("a", message.seq, 0)
            self._said += 1

    async def _watch(self, stream: Stream) -> None:
        async for _ in stream:
            pass

    async def _flush(self, bus: tl.Bus) -> None:
        """Promises printed before are on disk after this: from now on they must hold."""
        while True:
            said = self._said
            await bus.flush()
            say("f", said)
            await asyncio.sleep(self._chance.uniform(0.0, 0.05))


class LoneLife(Life):
    """Publishes one message at a time. The event loop's thread commits them, however long that takes."""

    def __init__(self, directory: str, seed: str, sync: str) -> None:
        super().__init__(directory, seed, sync, commit_in_loop_s=3600.0)

    def _publishing(self, bus: tl.Bus, journal: Journal) -> list[Coroutine[Any, Any, None]]:
        return [self._alone(bus, journal.writer)]

    async def _alone(self, bus: tl.Bus, writer: Writer) -> None:
        for topic in itertools.cycle(("work.a", "other.c")):
            payload = self._payload()
            before = writer.commits_in_loop
            message_id = await bus.publish(topic, payload)
            say_many([f"p {topic} {payload.decode()} {message_id}", *["here"] * (writer.commits_in_loop - before)])


def _say_published(topic: str, payloads: list[bytes], ids: list[str]) -> None:
    say_many([f"p {topic} {payload.decode()} {name}" for payload, name in zip(payloads, ids, strict=True)])


def worker(bus: tl.Bus, **options: Any) -> Any:
    retry = tl.Retry(attempts=3, delay_s=0.01)
    return bus.subscribe("work.>", name="worker", durable=True, start="beginning", retry=retry, **options)


async def live(directory: str, seed: str, sync: str) -> None:
    await asyncio.to_thread(sys.stdin.readline)
    await Life(directory, seed, sync).run()


async def live_alone(directory: str, seed: str, sync: str) -> None:
    await asyncio.to_thread(sys.stdin.readline)
    await LoneLife(directory, seed, sync).run()


async def drain(directory: str, upto: str) -> None:
    """Take all remaining messages of the durable subscription, up to a number (0: the last), and close."""
    with Journal(directory) as journal:
        async with tl.connect("memory:", journal=journal) as bus, worker(bus) as stream:
            async with asyncio.timeout(30):
                last = int(upto) or journal.reader.last()
                while min(each.low for each in journal.progress(journal.reader.query)) < last:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.1):
                            while (message := await stream.recv()) is not None:
                                say("r", message.seq, message.id, message.attempts)
                                stream.ack(message)
                                say("a", message.seq, 0)
                    await bus.flush()


# What seals


def _small(directory: str) -> Journal:
    return Journal(directory, JournalSettings(seal=False, seal_rows=400, replaced_s=0.0))


async def _seal(journal: Journal, name: str, rounds: Iterator[int]) -> None:
    """Small batches, sealed at once, and joined as soon as there are enough of them."""
    async with tl.connect("memory:", journal=journal) as bus, bus.subscribe(">", name="watcher") as stream:
        for number in rounds:
            payloads = [f"{name}-{number}-{n}".encode() for n in range(20)]
            _say_published(f"small.{number % 3}", payloads, await bus.publish_many(f"small.{number % 3}", payloads))
            while stream.depth:
                stream.try_recv()
            await bus.flush()
            await asyncio.to_thread(journal.seal, everything=True)
            await asyncio.to_thread(journal.tender.join)
            await asyncio.to_thread(journal.tender.forget_replaced)


async def seal(directory: str, name: str) -> None:
    await asyncio.to_thread(sys.stdin.readline)
    with _small(directory) as journal:
        say("open")
        await _seal(journal, name, itertools.count())


RETENTION = (
    Retention(topics="work.>", max_count=100, even_unread=True),
    Retention(topics="other.>", max_count=50),
)


class Removing:
    """Publishes, seals, joins and removes at once, with a durable subscriber that cannot keep up."""

    def __init__(self, directory: str, seed: str) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._settings = JournalSettings(
            seal_rows=200, seal_age_s=0.02, tend_s=0.01, replaced_s=0.0, retention=RETENTION, sync=Sync.SYSTEM
        )

    async def run(self) -> None:
        with Journal(self._directory, self._settings) as journal:
            async with tl.connect("memory:", journal=journal) as bus, worker(bus, capacity=50) as stream:
                say("open")
                working = [self._publish(bus, topic) for topic in TOPICS]
                work = asyncio.gather(*working, self._work(stream), self._watch(journal))
                end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
                await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work

    async def _publish(self, bus: tl.Bus, topic: str) -> None:
        """The number of attempts, before; the number of stored messages, after."""
        while True:
            count = self._chance.randint(1, 20)
            say("try", topic, count)
            await bus.publish_many(topic, [b"x"] * count)
            say("stored", topic, count)
            # Not more than can be sealed.
            await asyncio.sleep(0.03)

    async def _work(self, stream: Stream) -> None:
        held = 0
        while (message := await stream.recv()) is not None:
            if held < 10 and self._chance.random() < 0.01:
                held += 1
            else:
                stream.ack(message)
            # Now and then it falls so far behind that it loses something.
            await asyncio.sleep(0.5 if self._chance.random() < 0.005 else 0.0)

    async def _watch(self, journal: Journal) -> None:
        """Print when something was removed in this run."""
        count = "SELECT count(*) FROM removals"
        before = journal.reader.query(count)
        while journal.reader.query(count) == before:  # noqa: ASYNC110  # another thread removes
            await asyncio.sleep(0.005)
        say("removed")


TOPICS = ("work.a", "work.b", "other.c")


async def remove(directory: str, seed: str) -> None:
    await asyncio.to_thread(sys.stdin.readline)
    await Removing(directory, seed).run()


async def die(directory: str, call: str, nth: str, when: str) -> None:
    """Seal and join, and be killed right before, or right after, the nth call of a function of the system."""
    real: Callable[..., Any] = getattr(os, call)
    calls = itertools.count(1)

    def fatal(*args: Any, **options: Any) -> Any:
        last = next(calls) == int(nth)
        try:
            if not last or when == "after":
                return real(*args, **options)
        finally:
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

    with _small(directory) as journal:
        setattr(os, call, fatal)
        await _seal(journal, f"{call}{nth}{when}", iter(range(30)))


async def seal_nothing(directory: str) -> None:
    """Publish messages one by one until it is killed."""
    with Journal(directory, JournalSettings(seal=False)) as journal:
        async with tl.connect("memory:", journal=journal) as bus:
            for number in itertools.count():
                say("p", "single", number, await bus.publish("single", str(number).encode()))


# Writers and readers


async def own(directory: str) -> None:
    """Open the journal, publish one message, and keep it open until standard input is closed."""
    try:
        with Journal(directory) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                say("p", "mine", os.getpid(), await bus.publish("mine", str(os.getpid()).encode()))
                await asyncio.to_thread(sys.stdin.read)
    except tl.TrunklineError as error:
        tell_error(error)


def read(directory: str) -> None:
    """Print what can be read, and what cannot."""
    try:
        with Reader(directory, on_damage=tell_error) as reader:
            _say_read(reader)
    except tl.TrunklineError as error:
        tell_error(error)


def _say_read(reader: Reader) -> None:
    messages = list(reader.messages())
    assert [message.seq for message in messages] == [n for batch in reader.arrow() for n in batch["seq"].to_pylist()]
    say_many([f"m {each.seq} {each.topic} {each.payload.decode().rstrip('.')} {each.id}" for each in messages])
    for subscriber, seq in reader.query("SELECT subscriber, seq FROM dead_letters"):
        say("letter", subscriber, seq)


# Bits that flip


def flip(directory: str, seed: str, count: str) -> None:
    """Flip bits of the one sealed file, one at a time, and print what a reader finds for each.

    It reads in a process of its own: what it finds may be the end of it, and then another one goes on.
    """
    (path,) = Path(directory).glob("messages/*/*.parquet")
    good = path.read_bytes()
    chance = random.Random(seed)
    places = [(chance.randrange(len(good)), chance.randrange(8)) for _ in range(int(count))]

    def look_at(first: int) -> Iterator[str]:
        whole = _look(directory)
        for at, bit in places[first:]:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
            found = _look(directory)
            path.write_bytes(good)
            yield "same" if found == whole else found

    done = 0
    while done < len(places):
        for outcome in _in_a_process(look_at, done):
            at, bit = places[done]
            say("flipped", outcome, f"bit {bit}, {len(good) - at} from the end of {len(good)}")
            done += 1
        path.write_bytes(good)


def _look(directory: str) -> str:
    told: list[tl.JournalDamaged] = []
    try:
        with Reader(directory, on_damage=told.append) as reader:
            found = [*reader.messages(), *(row for batch in reader.arrow() for row in batch.to_pylist())]
            found += [*reader.some_after("topic.*", 5, 100), reader.some([1, 2, 3])]
    except Exception as error:
        return type(error).__name__
    return "told" if told else f"read:{hashlib.sha256(repr(found).encode()).hexdigest()}"


def _in_a_process(function: Callable[[int], Iterator[str]], start: int) -> Iterator[str]:
    """The output of a function, and the signal that ended it."""
    theirs, ours = os.pipe()
    if (pid := os.fork()) == 0:
        for text in function(start):
            os.write(ours, f"{text}\n".encode())
        os._exit(0)
    os.close(ours)
    with os.fdopen(theirs) as answers:
        yield from map(str.strip, answers)
    _, status = os.waitpid(pid, 0)
    if status:
        yield signal.Signals(os.WTERMSIG(status)).name


# A disk without room


class Fill:
    """Publish until the disk is full, and some more; free space; continue. Prints what could be published."""

    def __init__(self, folder: str, ballast: str) -> None:
        self._folder = Path(folder)
        self._ballast = int(ballast)
        self._numbers = itertools.count()

    async def run(self, meanwhile: Callable[[Journal, tl.Bus, Stream], Awaitable[None]]) -> None:
        with Journal(self._folder / "journal", JournalSettings(seal=False)) as journal:
            async with tl.connect("memory:", journal=journal) as bus, worker(bus) as stream:
                # From the first commit on, the log has the length it will have.
                await self._publish(bus)
                (self._folder / BALLAST).write_bytes(bytes(self._ballast))
                while await self._publish(bus):
                    pass
                # Not a moment, but a state: what comes next fails in the same way, in whatever way it comes.
                assert not await self._publish(bus)
                await self._refused(bus)
                self._take_the_rest()
                say("full")
                await meanwhile(journal, bus, stream)
                (self._folder / BALLAST).unlink()
                for _ in range(10):
                    assert await self._publish(bus)
                await meanwhile(journal, bus, stream)
                await bus.flush()
                say("room")
        say("closed")

    async def _publish(self, bus: tl.Bus) -> bool:
        payload = f"{next(self._numbers)}-".encode().ljust(20_000, b".")
        try:
            name = await bus.publish("work.fill", payload)
        except tl.NotStored as error:
            tell_error(error)
            return False
        say("p", "work.fill", payload.decode().rstrip("."), name)
        return True

    def _take_the_rest(self) -> None:
        """Not even a fate can be written."""
        with (self._folder / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
            while rest.write(bytes(1024)):
                pass

    async def _refused(self, bus: tl.Bus) -> None:
        payloads = [b"refused".ljust(4000, b".") for _ in range(50)]
        for publish in (bus.publish_many("work.fill", payloads), self._pipe(bus, payloads)):
            refused: tuple[tuple[tl.Message, Exception], ...] = ()
            try:
                await publish
            except tl.PartlyRefused as error:
                refused = error.refused
            assert len(refused) == len(payloads)
            assert all(isinstance(each, tl.NotStored) for _, each in refused)

    async def _pipe(self, bus: tl.Bus, payloads: list[bytes]) -> None:
        async with bus.pipeline() as pipe:
            for payload in payloads:
                await pipe.publish("work.fill", payload)


async def fill(folder: str, ballast: str) -> None:
    async def nothing(journal: Journal, bus: tl.Bus, stream: Stream) -> None:
        pass

    await Fill(folder, ballast).run(nothing)


async def fill_and_settle(folder: str, ballast: str) -> None:
    """Reject a message and acknowledge one, on a full disk and after space is freed."""

    async def settle(journal: Journal, bus: tl.Bus, stream: Stream) -> None:
        rejected, handled = stream.try_recv(), stream.try_recv()
        stream.reject(rejected, "never")
        say("x", rejected.seq, 0)
        stream.ack(handled)
        say("a", handled.seq, 0)
        with contextlib.suppress(tl.NotStored):
            await bus.flush()

    await Fill(folder, ballast).run(settle)


async def fill_and_seal(folder: str, ballast: str) -> None:
    async def seal(journal: Journal, bus: tl.Bus, stream: Stream) -> None:
        try:
            say("sealed", await asyncio.to_thread(journal.seal, everything=True))
        except tl.TrunklineError as error:
            tell_error(error)

    await Fill(folder, ballast).run(seal)


async def squeeze(directory: str) -> None:
    """Open a journal on a nearly full disk, publish a little, and see how much fits."""
    stored = 0
    try:
        with Journal(directory) as journal:
            async with tl.connect("memory:", journal=journal) as bus:
                try:
                    for number in range(10_000):
                        payload = f"{number}-".encode().ljust(1000, b".")
                        say("p", "work.little", f"{number}-", await bus.publish("work.little", payload))
                        stored += 1
                except tl.NotStored as error:
                    tell_error(error)
    except tl.TrunklineError as error:
        tell_error(error)
    say("stored", stored)


ASYNC = (live, live_alone, drain, seal, seal_nothing, remove, die, own, fill, fill_and_settle, fill_and_seal, squeeze)
PLAIN = (read, flip)


def main(name: str, *words: str) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # Every dead letter is a line there, and these programs make many of them.
    logging.getLogger("trunkline.delivery").setLevel(logging.CRITICAL)
    plain: dict[str, Callable[..., None]] = {function.__name__: function for function in PLAIN}
    loops: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {function.__name__: function for function in ASYNC}
    if name in plain:
        plain[name](*words)
    else:
        asyncio.run(loops[name](*words))


if __name__ == "__main__":
    main(*sys.argv[1:])
