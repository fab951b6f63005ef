"""Admission: which clients connect, their limits, and what happens to clients that break the protocol. Virtual time."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from trunkline import Cause, DeadLetter, Fate, MemoryBroker, Message, ProtocolError, columns
from trunkline.hub import admission
from trunkline.hub.admission import FRESH_S, Tokens
from trunkline.hub.hub import Hub
from trunkline.hub.session import Session
from trunkline.hub.settings import HubSettings, Limits
from trunkline.testing import Simulation, simulate, world
from trunkline.transports.pair import PairTransport
from trunkline.transports.transport import Wire
from trunkline.wire import control, frames
from trunkline.wire.frames import Kind, PublishHead

C = TypeVar("C", bound=control.Control)
_places = itertools.count(1)


class Raw:
    """A client that sends arbitrary messages."""

    def __init__(self) -> None:
        self.wire: Wire
        self.heard: asyncio.Queue[control.Control] = asyncio.Queue()
        self.numbers: asyncio.Queue[int] = asyncio.Queue()
        """Of messages that were delivered."""
        self.ended = asyncio.Event()

    @classmethod
    async def open(cls, hub: Hub) -> Raw:
        raw = cls()
        raw.wire = await PairTransport().connect(hub.addresses[0], lambda wire: raw, max_frame_bytes=2**20)
        return raw

    def say(self, *messages: control.Control) -> None:
        self.send(*(frames.control(control.write(message)) for message in messages))

    def send(self, *given: bytes) -> None:
        self.wire.send([(frame,) for frame in given])

    async def hear(self, kind: type[C]) -> C:
        """The next message of this type from the hub. Others are skipped."""
        async with asyncio.timeout(600):
            while True:
                told = await self.heard.get()
                if isinstance(told, kind):
                    return told

    async def take(self) -> int:
        """The number of the next message."""
        async with asyncio.timeout(600):
            return await self.numbers.get()

    async def greet(self, **fields: Any) -> control.Welcome:
        self.say(hello(**fields))
        return await self.hear(control.Welcome)

    # What the wire tells

    def received(self, batch: Sequence[memoryview]) -> None:
        for frame in batch:
            if frame[0] == Kind.DELIVER:
                head, _ = frames.open_deliver(frame)
                for seq in head.seqs or range(head.first, head.first + head.count):
                    self.numbers.put_nowait(seq)
            else:
                self.heard.put_nowait(control.read_from_hub(frame[1:]))

    def broken(self, error: ProtocolError) -> None:
        raise error

    def writable(self) -> None:
        return

    def lost(self, why: str) -> None:
        self.ended.set()


def hello(**fields: Any) -> control.Hello:
    return control.Hello(**{"id": 1, "versions": [1], "name": "raw", **fields})


def subscribe(number: int = 1, **fields: Any) -> control.Subscribe:
    wanted = {"id": 100 + number, "subscription": number, "pattern": "t", "name": "s", "credit": 5, **fields}
    return control.Subscribe(**wanted)


def batch(number: int, count: int = 1, size: int = 10) -> bytes:
    messages = [Message(id=f"{number}.{index}", topic="t", payload=bytes(size)) for index in range(count)]
    return frames.publish(PublishHead(number, "t", count), columns.encode(messages, [0] * count))


@asynccontextmanager
async def hub_with(simulation: Simulation, **settings: Any) -> AsyncIterator[Hub]:
    async with Hub(MemoryBroker(world(simulation)), settings=HubSettings(**settings)) as hub:
        await hub.listen(f"pair:admission-{next(_places)}")
        yield hub
        assert hub.counts["internal_errors"] == 0


# Hello


async def test_the_best_common_version_is_taken(simulation: Simulation) -> None:
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        assert (await raw.greet(versions=[99, 1])).version == 1


async def test_without_a_common_version_it_ends(simulation: Simulation) -> None:
    async with hub_with(simulation) as hub:
        for versions in ([99], [], [-1, 0]):
            raw = await Raw.open(hub)
            raw.say(hello(versions=versions))
            error = await raw.hear(control.Error)
            assert (error.code, error.re, error.details) == ("version", 1, {"versions": [1]})
            await raw.hear(control.Goodbye)
            await raw.ended.wait()
        assert not hub.sessions


async def test_a_replayed_hello_is_refused(simulation: Simulation) -> None:
    """Recorded and sent again on another connection, even after the first one has ended."""
    async with hub_with(simulation) as hub:
        first = await Raw.open(hub)
        await first.greet(token="once")
        for _ in range(2):
            raw = await Raw.open(hub)
            raw.say(hello(token="once"))
            assert (await raw.hear(control.Error)).code == "replayed"
            await raw.ended.wait()
            first.wire.close()
            await first.ended.wait()
        other = await Raw.open(hub)
        await other.greet(token="twice")


def test_a_replayed_hello_is_refused_however_many_came_since() -> None:
    # Once, not for each seed: it opens ten thousand connections.
    simulate(_replay_after_many)


async def _replay_after_many(simulation: Simulation) -> None:
    """It is refused while its time is reserved, and then because of its age."""
    async with hub_with(simulation) as hub:
        overheard = hello(token="overheard", at_ns=simulation.time_ns())
        first = await Raw.open(hub)
        first.say(overheard)
        await first.hear(control.Welcome)
        for number in range(10_001):
            other = await Raw.open(hub)
            await other.greet(token=f"another {number}", at_ns=simulation.time_ns())
            other.wire.abort()
            await other.ended.wait()
        for code, pause_s in (("replayed", FRESH_S / 2), ("replayed", FRESH_S), ("stale", FRESH_S), ("stale", 0)):
            raw = await Raw.open(hub)
            raw.say(overheard)
            assert (await raw.hear(control.Error)).code == code
            await raw.ended.wait()
            await asyncio.sleep(pause_s)


async def test_a_hello_of_the_wrong_time_says_so(simulation: Simulation) -> None:
    async with hub_with(simulation) as hub:
        for wrong_s in (-FRESH_S - 1, FRESH_S + 1, float(2**53)):
            raw = await Raw.open(hub)
            raw.say(hello(token=f"{wrong_s}", at_ns=simulation.time_ns() + int(wrong_s * 1e9)))
            error = await raw.hear(control.Error)
            assert (error.code, error.re) == ("stale", 1)
            assert "clock" in error.text
            await raw.ended.wait()
        await (await Raw.open(hub)).greet(token="in time", at_ns=simulation.time_ns() - int((FRESH_S - 1) * 1e9))


def test_tokens_are_forgotten_when_they_are_stale_and_refused_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MAX_TOKENS", 3)
    monkeypatch.setattr(admission, "MAX_UNDATED", 2)
    tokens = Tokens()
    for number in range(3):
        tokens.use("a", f"{number}", at=1000.0, now=1000.0)
    for number in range(2):
        tokens.use("a", f"undated {number}", at=0, now=1000.0)
    for token, at in (("new", 1000.0), ("undated", 0.0)):
        with pytest.raises(ProtocolError) as refused:
            tokens.use("a", token, at, now=1000.0)
        assert refused.value.code == "too_many"
    tokens.use("b", "0", at=1000.0, now=1000.0)
    later = 1000.0 + 2 * FRESH_S + 1
    tokens.use("a", "new", at=later, now=later)
    assert len(tokens) == 3, "two without a time, and the new one"
    for token, at in (("undated 0", 0.0), ("new", later)):
        with pytest.raises(ProtocolError) as refused:
            tokens.use("a", token, at, now=later)
        assert refused.value.code == "replayed"


class Guarded(dict[str, Session]):
    """The sessions of a hub. Iterating over them fails the test."""

    def values(self) -> Any:
        raise AssertionError("somebody goes through all sessions")

    __iter__ = items = values


class GuardedCounter(Counter[str]):
    def total(self) -> int:
        raise AssertionError("somebody goes through all of them")


async def test_hello_costs_the_same_however_many_are_here(simulation: Simulation) -> None:
    """Reconnecting and too frequent clients are found without scanning all sessions."""
    async with hub_with(simulation, limits=Limits(connections=2)) as hub:
        first = await Raw.open(hub)
        await first.greet(origin=5)
        before, hub.sessions = hub.sessions, Guarded(hub.sessions)
        door = hub.answers._admission
        door._connections = GuardedCounter(door._connections)
        again, other = await Raw.open(hub), await Raw.open(hub)
        await again.greet(origin=5)
        await first.ended.wait()
        await other.greet(origin=6)
        late = await Raw.open(hub)
        late.say(hello(origin=7))
        assert (await late.hear(control.Error)).code == "too_many"
        await late.ended.wait()
        before.clear()
        before.update((key, hub.sessions[key]) for key in dict.keys(hub.sessions))
        hub.sessions = before


async def test_a_second_hello_is_refused_and_changes_nothing(simulation: Simulation) -> None:
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        welcome = await raw.greet(name="honest")
        raw.say(hello(id=2, name="other", token="another"))
        error = await raw.hear(control.Error)
        assert (error.code, error.re) == ("out_of_order", 2)
        assert [session.name for session in hub.sessions.values()] == ["honest"]
        assert list(hub.sessions) == [welcome.session]


async def test_without_a_hello_it_ends_in_time(simulation: Simulation) -> None:
    async with hub_with(simulation, hello_s=2.0) as hub:
        began = simulation.now()
        raw = await Raw.open(hub)
        assert (await raw.hear(control.Error)).code == "no_hello"
        await raw.ended.wait()
        assert simulation.now() - began == pytest.approx(2.0, abs=0.1)
        assert not hub.sessions


@pytest.mark.parametrize(
    "frame",
    [frames.control(control.write(control.Stats(id=1))), batch(1), b"\1{}", b"\1", b"\0", b"\xff" * 20],
    ids=["stats", "publish", "empty json", "no json", "no kind", "garbage"],
)
async def test_anything_before_hello_ends_it(simulation: Simulation, frame: bytes) -> None:
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        raw.send(frame)
        await raw.hear(control.Error)
        await raw.hear(control.Goodbye)
        await raw.ended.wait()
        assert hub.counts["malformed"] == 1
        assert not hub.sessions


async def test_names_and_tokens_have_a_limit(simulation: Simulation) -> None:
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        raw.say(hello(token="x" * 256))
        assert (await raw.hear(control.Error)).code == "malformed"
        await raw.greet(name="two\nlines" + "x" * 1000, token="fine")
        (session,) = hub.sessions.values()
        assert session.name.startswith("two?lines")
        assert len(session.name) == 255


# Limits


async def test_too_many_connections_of_one_identity(simulation: Simulation) -> None:
    async with hub_with(simulation, limits=Limits(connections=2)) as hub:
        inside = [await Raw.open(hub) for _ in range(2)]
        for raw in inside:
            await raw.greet()
        late = await Raw.open(hub)
        late.say(hello())
        error = await late.hear(control.Error)
        assert (error.code, error.re) == ("too_many", 1)
        await late.ended.wait()
        inside[0].say(control.Goodbye())
        await inside[0].ended.wait()
        await (await Raw.open(hub)).greet()


async def test_too_many_clients(simulation: Simulation) -> None:
    async with hub_with(simulation, max_clients=2) as hub:
        for _ in range(2):
            await (await Raw.open(hub)).greet()
        late = await Raw.open(hub)
        late.say(hello(origin=7))
        error = await late.hear(control.Error)
        assert (error.code, error.text[:28]) == ("too_many", "2 clients connected already:")
        await late.ended.wait()
        assert len(hub.sessions) == 2


async def test_too_many_subscriptions_and_links(simulation: Simulation) -> None:
    async with hub_with(simulation, limits=Limits(subscriptions=2)) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        raw.say(subscribe(1), subscribe(2), subscribe(3))
        error = await raw.hear(control.Error)
        assert (error.code, error.re) == ("too_many", 103)
        for number in range(3):
            raw.say(control.Link(id=200 + number, pattern=f"p.{number}", topic="t"))
        error = await raw.hear(control.Error)
        assert (error.code, error.re) == ("too_many", 202)
        raw.say(control.Unsubscribe(id=5, subscription=1), subscribe(3))
        assert (await raw.hear(control.Subscribed)).subscription == 3


async def test_too_many_bad_frames_end_it(simulation: Simulation) -> None:
    async with hub_with(simulation, max_malformed=5) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        for _ in range(5):
            raw.send(b"\xff")
            assert (await raw.hear(control.Error)).code == "unknown_kind"
        raw.send(b"\1nonsense")
        await raw.hear(control.Goodbye)
        await raw.ended.wait()
        assert hub.counts["malformed"] == 6


# Messages must be consistent


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (subscribe(credit=-2), "malformed"),
        (subscribe(capacity=0), "malformed"),
        (subscribe(capacity=-5, overflow="drop_oldest"), "malformed"),
        (subscribe(name="x" * 256), "malformed"),
        (subscribe(overflow="nonsense"), "malformed"),
        (subscribe(pattern="a..b"), "invalid_topic"),
        (subscribe(group="g", start="yesterday", durable=True), "refused"),
        (control.Unsubscribe(id=101, subscription=7), "unknown"),
        (control.Topic(id=101, topic="*"), "invalid_topic"),
        (control.Link(id=101, pattern="a", topic="*"), "invalid_topic"),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_answered(simulation: Simulation, wrong: control.Ask, code: str) -> None:
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        raw.say(wrong)
        error = await raw.hear(control.Error)
        assert (error.code, error.re) == (code, 101)
        raw.say(control.Heartbeat(id=999))
        assert (await raw.hear(control.Beat)).re == 999


async def test_credit_is_not_taken_back_and_numbers_do_not_go_back(simulation: Simulation) -> None:
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        raw.say(subscribe(1), control.Credit(subscription=1, messages=-1))
        assert (await raw.hear(control.Error)).code == "malformed"
        raw.send(batch(5), batch(5), batch(4))
        for _ in range(2):
            assert (await raw.hear(control.Error)).code == "out_of_order"
        await raw.take()
        assert raw.numbers.empty()


async def test_a_member_says_only_what_can_be(simulation: Simulation) -> None:
    """It may not report a message as delivered by NACK, nor bury another message than the one it was sent."""
    async with hub_with(simulation) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        raw.say(subscribe(1, group="g", name="m"))
        await raw.hear(control.Subscribed)
        raw.send(batch(1), batch(2))
        first, second = await raw.take(), await raw.take()
        for fate in (Fate.DELIVERED, Fate.IN_FLIGHT, Fate.REFUSED, "nonsense"):
            raw.say(control.Nack(subscription=1, seq=first, fate=fate))
            assert (await raw.hear(control.Error)).code == "malformed"
        forged = DeadLetter(Message(topic="other", seq=second), "someone", Cause.REJECTED, "why", "Reject", "", (), 1)
        letter = base64.b64encode(forged.to_bytes()).decode()
        raw.say(control.Nack(subscription=1, seq=first, fate="dead", letter=letter))
        raw.say(control.Ack(subscription=1, ranges=[(0, 2**62), (-5, 2**62), (second, second)]))
        raw.say(control.Heartbeat(id=5))
        await raw.hear(control.Beat)
        (kept,) = hub.broker.served.dead_letters
        assert (kept.message.id, kept.message.seq, kept.subscriber) == ("1.0", first, "m")
        account = hub.broker.served.accounts()["m"]
        assert (account.accepted, account.delivered, account.dead, account.in_flight) == (2, 1, 1, 0)


# Silence


async def test_who_is_silent_is_gone(simulation: Simulation) -> None:
    async with hub_with(simulation, heartbeat_s=1.0) as hub:
        raw = await Raw.open(hub)
        await raw.greet()
        began = simulation.now()
        await raw.hear(control.Goodbye)
        assert 3.0 <= simulation.now() - began <= 4.0
        assert not hub.sessions


async def test_who_is_not_read_from_is_not_silent(simulation: Simulation) -> None:
    """A publisher whose batches wait for a subscriber sends nothing to the hub meanwhile."""
    async with hub_with(simulation, heartbeat_s=1.0, limits=Limits(pending_bytes=1000)) as hub:
        giver, taker = await Raw.open(hub), await Raw.open(hub)
        await giver.greet(name="giver")
        await taker.greet(name="taker")
        taker.say(subscribe(1, credit=0))
        await taker.hear(control.Subscribed)
        giver.send(*(batch(number, size=400) for number in range(1, 5)))
        for _ in range(20):
            await asyncio.sleep(0.5)
            taker.say(control.Heartbeat())
        assert {session.name for session in hub.sessions.values()} == {"giver", "taker"}
        taker.say(control.Credit(subscription=1, messages=10))
        for _ in range(4):
            await taker.take()
        giver.say(control.Heartbeat(id=9))
        assert (await giver.hear(control.Beat)).re == 9


async def test_a_client_that_leaves_with_many_subscriptions_is_one_line_in_the_log(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_with(simulation) as hub:
        caplog.clear()
        raw = await Raw.open(hub)
        await raw.greet()
        raw.say(*(subscribe(number, name=f"s{number}", reports=True) for number in range(7)))
        raw.send(batch(1, 3))
        for _ in range(21):
            await raw.take()
        raw.wire.abort()
        await raw.ended.wait()
        (line,) = [each.getMessage() for each in caplog.records if "disconnected: lost" in each.getMessage()]
        assert line == "raw disconnected: lost 21 messages for 7 subscriptions: s0, s1, s2, s3, s4, …"
