"""The hub's side of the protocol, without sockets: its promises hold for any input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline import ProtocolError
from trunkline.wire import control, frames, server
from trunkline.wire.frames import PREFIX, Kind, PublishHead
from trunkline.wire.server import ServerLimits, ServerProtocol, batch_number

LIMITS = ServerLimits(
    pending_bytes=1000, max_frame_bytes=4000, max_malformed=5, window=80, heartbeat_s=1.0, congested_bytes=500
)


@dataclass
class Batch:
    number: int
    count: int = 1
    size: int = 100
    first: int = 0
    urgent: bool = False
    failures: list[control.Failure] = field(default_factory=list)


Protocol = ServerProtocol[Batch]


def protocol_of(*, greeted: bool = True) -> Protocol:
    protocol: Protocol = ServerProtocol(LIMITS, 0.0)
    protocol.greeted = greeted
    return protocol


def published(number: Any, count: int = 1, topic: str = "t", **fields: Any) -> memoryview:
    return memoryview(frames.publish(PublishHead(number, topic, count, **fields), bytes(8 * max(1, count))))


def spoken(message: control.Control) -> memoryview:
    return memoryview(frames.control(control.write(message)))


def sent(protocol: Protocol) -> list[control.Control | bytes]:
    """What a flush returns: control messages, and the first parts of data frames."""
    found: list[control.Control | bytes] = []
    for frame in protocol.flush():
        first = bytes(frame[0])
        found.append(control.read_from_hub(first[1:]) if first[0] == Kind.CONTROL else first)
    return found


def accept(protocol: Protocol, number: int, **fields: Any) -> Batch:
    assert protocol.receive(published(number)) is not None
    batch = Batch(number, **fields)
    protocol.accept(batch)
    return batch


def dropped(position: int, reason: str = "full") -> control.Dropped:
    return control.Dropped(
        subscription=1, ranges=[(position + 1, position + 1)], reason=reason, topic="t", count=1, position=position
    )


# Order


@pytest.mark.parametrize("frame", [published(0), spoken(control.Stats(id=1)), memoryview(b"\1{}"), memoryview(b"")])
def test_anything_before_hello_ends_it(frame: memoryview) -> None:
    protocol = protocol_of(greeted=False)
    assert protocol.receive(frame) is None
    error, goodbye = sent(protocol)
    assert isinstance(error, control.Error)
    assert isinstance(goodbye, control.Goodbye)
    assert protocol.ended
    assert protocol.reason == goodbye.reason
    assert not protocol.reading


def test_hello_comes_first_and_in_time() -> None:
    protocol = protocol_of(greeted=False)
    hello = control.Hello(id=1, versions=[1], name="a")
    assert protocol.receive(spoken(hello)) == hello
    protocol.greeted = True
    protocol.hello_missing(5.0)
    assert not protocol.ended
    late = protocol_of(greeted=False)
    late.hello_missing(5.0)
    assert [type(each) for each in sent(late)] == [control.Error, control.Goodbye]
    assert late.ended


def test_numbers_of_batches_go_up() -> None:
    protocol = protocol_of()
    for number, taken in ((3, True), (3, False), (2, False), (0, False), (4, True), (2**62, True), (5, False)):
        assert (protocol.receive(published(number)) is not None) is taken, number
        errors = sent(protocol)
        assert [(each.code, each.batch) for each in errors if isinstance(each, control.Error)] == (
            [] if taken else [("out_of_order", number)]
        )


def test_a_frame_that_is_refused_does_not_use_up_its_number() -> None:
    protocol = protocol_of()
    assert protocol.receive(published(7, priority=101)) is None
    assert protocol.receive(published(7)) is not None


def test_too_many_bad_frames_end_it() -> None:
    protocol = protocol_of()
    for number in range(LIMITS.max_malformed):
        assert protocol.receive(memoryview(b"\xff")) is None
        assert (protocol.malformed, protocol.ended) == (number + 1, False)
    protocol.receive(memoryview(b"\xff"))
    assert protocol.ended
    assert isinstance(sent(protocol)[-1], control.Goodbye)
    assert protocol.receive(spoken(control.Stats(id=1))) is None
    assert sent(protocol) == []


def test_a_control_frame_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = protocol_of()
    message = spoken(control.Withdraw(batch=1, reason="x" * 100))
    monkeypatch.setattr(server, "MAX_CONTROL_BYTES", len(message))
    assert protocol.receive(message) is not None
    monkeypatch.setattr(server, "MAX_CONTROL_BYTES", len(message) - 1)
    assert protocol.receive(message) is None
    (error,) = sent(protocol)
    assert isinstance(error, control.Error)
    assert error.code == "too_large"


@pytest.mark.parametrize(
    ("head", "number"),
    [([7, "t"], 7), ([True], -1), ([-1], -1), ([2**64 - 1], 2**64 - 1), (["x"], -1), ([], -1), ({"a": 1}, -1), (5, -1)],
)
def test_the_number_of_a_batch_that_is_refused(head: Any, number: int) -> None:
    data = msgspec.msgpack.encode(head)
    assert batch_number(memoryview(PREFIX.pack(Kind.PUBLISH, len(data)) + data)) == number


# TAKEN


def test_batches_that_follow_each_other_are_one_run() -> None:
    protocol = protocol_of()
    batches = [accept(protocol, number) for number in range(4)]
    for batch, first in zip(batches, (10, 11, 20, 21), strict=True):
        batch.first = first
        assert protocol.settle(batch)
        assert not protocol.taken_due, "nobody waits for it"
    assert sent(protocol) == []
    protocol.report()
    assert sent(protocol) == [], "it waits for something to travel with"
    protocol.report()
    assert sent(protocol) == [control.Taken(runs=[(0, 1, 10), (2, 3, 20)])]
    for _ in range(2):
        protocol.report()
        assert sent(protocol) == []


def test_taken_that_has_waited_travels_with_the_next_batch() -> None:
    protocol = protocol_of()
    protocol.settle(accept(protocol, 0))
    protocol.deliver((b"\3head", b"body"))
    assert len(protocol.flush()) == 1, "it waits for others"
    protocol.report()
    assert protocol.flush() == []
    protocol.deliver((b"\3head", b"body"))
    batch, taken = protocol.flush()
    assert batch == (b"\3head", b"body")
    assert isinstance(control.read_from_hub(memoryview(taken[0])[1:]), control.Taken)
    protocol.report()
    assert not protocol.taken_joins


def test_taken_of_many_batches_travels_with_the_next_frame_without_a_timer() -> None:
    protocol: Protocol = ServerProtocol(LIMITS._replace(window=100_000), 0.0)
    protocol.greeted = True
    for number in range(2 * server.JOIN_BATCHES):
        protocol.confirm(number, 10 + 2 * number, 1, urgent=False)
        assert sent(protocol) == [], "alone it would be a write more"
        protocol.deliver((b"batch",))
        batch, *rest = sent(protocol)
        assert batch == b"batch"
        if (number + 1) % server.JOIN_BATCHES:
            assert rest == []
        else:
            (taken,) = rest
            assert isinstance(taken, control.Taken)
            assert len(taken.runs) == server.JOIN_BATCHES


def test_a_frame_overtakes_nothing_and_leaves_nothing_behind() -> None:
    def clear(change: Callable[[Protocol], object]) -> bool:
        protocol = protocol_of()
        assert protocol.clear
        change(protocol)
        return protocol.clear

    def joins(protocol: Protocol) -> None:
        protocol.confirm(0, 1, 1, urgent=False)
        protocol.report()

    def drops(protocol: Protocol) -> None:
        protocol.congested = True
        protocol.notify(control.Dropped(subscription=1, ranges=[(1, 1)], topic="t", count=1, reason="full"))

    def many(protocol: Protocol) -> None:
        for number in range(server.JOIN_BATCHES):
            protocol.confirm(number, 1 + number, 0, urgent=False)

    assert clear(lambda protocol: protocol.confirm(0, 1, 1, urgent=False)), "TAKEN may wait for others"
    assert not clear(lambda protocol: protocol.confirm(0, 1, 1, urgent=True))
    assert not clear(joins)
    assert not clear(many)
    assert not clear(drops)
    assert not clear(lambda protocol: protocol.deliver((b"before",)))
    assert not clear(lambda protocol: protocol.end("bye"))


def test_taken_is_due_when_somebody_waits_or_enough_has_gathered() -> None:
    for fields in ({"urgent": True}, {"failures": [control.Failure(batch=0, index=-1, code="c", text="t")]}):
        protocol = protocol_of()
        protocol.settle(accept(protocol, 0, **fields))
        assert protocol.taken_due
        (taken,) = sent(protocol)
        assert isinstance(taken, control.Taken)
        assert taken.failures == fields.get("failures", [])
    protocol = protocol_of()
    protocol.settle(accept(protocol, 0, count=LIMITS.window // 8 - 1))
    assert not protocol.taken_due
    protocol.settle(accept(protocol, 1))
    assert protocol.taken_due


def test_taken_asks_a_client_to_let_others_run() -> None:
    protocol = protocol_of()
    for yields in (False, True, False):
        protocol.yields = yields
        protocol.confirm(7, 10, 1, urgent=True)
        (taken,) = sent(protocol)
        assert isinstance(taken, control.Taken)
        assert taken.yields is yields


def test_taken_goes_before_what_comes_later() -> None:
    protocol = protocol_of()
    protocol.settle(accept(protocol, 0))
    protocol.send(control.Beat(re=5))
    assert [type(each) for each in sent(protocol)] == [control.Taken, control.Beat]


def test_where_the_hub_fails_a_batch_is_answered_once() -> None:
    protocol = protocol_of()
    accept(protocol, 0)
    protocol.fail(published(0))
    assert [getattr(each, "batch", None) for each in sent(protocol)] == [0]
    settled = accept(protocol, 1)
    protocol.settle(settled)
    protocol.fail(published(1))
    taken, error = sent(protocol)
    assert isinstance(taken, control.Taken)
    assert isinstance(error, control.Error)
    assert (error.code, error.batch) == ("internal", -1)
    assert not protocol.settle(settled)
    assert protocol.pending_bytes == 0


# Reading


def test_pending_bytes_stop_reading() -> None:
    protocol = protocol_of()
    first = accept(protocol, 0, size=LIMITS.pending_bytes)
    assert protocol.reading, "at the limit"
    second = accept(protocol, 1, size=1)
    assert not protocol.reading
    second.size = 500
    protocol.settle(second)
    assert protocol.reading
    assert protocol.pending_bytes == first.size, "the size counts that it had"


def test_the_rate_stops_reading_whatever_else_goes_on() -> None:
    protocol = protocol_of()
    protocol.throttle()
    protocol.settle(accept(protocol, 0))
    protocol.drained(0)
    assert not protocol.reading
    protocol.unthrottle()
    assert protocol.reading


def test_a_client_that_does_not_read_is_not_read_from_and_in_the_end_cut_off() -> None:
    protocol = protocol_of()
    most = LIMITS.congested_bytes
    protocol.flushed(most)
    assert (protocol.congested, protocol.reading) == (False, True)
    protocol.flushed(most + 1)
    assert (protocol.congested, protocol.reading) == (True, True)
    protocol.flushed(4 * most + 1)
    assert (protocol.congested, protocol.reading) == (True, False)
    protocol.drained(10)
    assert (protocol.congested, protocol.reading) == (False, True)
    protocol.flushed(LIMITS.pending_bytes + LIMITS.max_frame_bytes)
    assert not protocol.ended
    protocol.send(control.Beat(re=1))
    protocol.flushed(LIMITS.pending_bytes + LIMITS.max_frame_bytes + 1)
    assert protocol.ended
    assert protocol.overrun
    assert sent(protocol) == [], "it would not read a GOODBYE either"


# Notices


def test_notices_wait_while_the_client_is_congested_and_go_before_the_next_delivery() -> None:
    protocol = protocol_of()
    protocol.notify(dropped(0))
    assert sent(protocol) == [dropped(0)]
    protocol.flushed(LIMITS.congested_bytes + 1)
    for position in range(1, 100):
        protocol.notify(dropped(position))
    assert sent(protocol) == []
    protocol.shrunk(0)
    protocol.deliver((b"\3head", b"body"))
    notice, delivery = sent(protocol)
    assert isinstance(notice, control.Dropped)
    assert (notice.ranges, notice.count) == ([(2, 100)], 99)
    assert delivery == b"\3head"
    protocol.flushed(LIMITS.congested_bytes + 1)
    protocol.notify(dropped(100))
    protocol.drained(LIMITS.congested_bytes + 1)
    assert protocol.has_notices, "still congested"
    protocol.drained(0)
    assert sent(protocol) == [dropped(100)]


# Silence


def test_who_is_silent_is_suspected_and_then_gone() -> None:
    protocol = protocol_of()
    for now, suspected, ended in ((2.0, False, False), (2.1, True, False), (3.0, True, False), (3.1, True, True)):
        protocol.tick(now, 0)
        assert (protocol.suspected, protocol.ended) == (suspected, ended), now
    assert [type(each) for each in sent(protocol)] == [control.Heartbeat] * 3 + [control.Goodbye]
    again = protocol_of()
    again.tick(2.5, 0)
    again.active_at = 2.6
    again.tick(3.0, 0)
    assert not again.suspected


def test_who_is_not_read_from_is_not_silent_as_long_as_it_reads() -> None:
    waiting = protocol_of()
    accept(waiting, 0, size=LIMITS.pending_bytes + 1)
    waiting.tick(100.0, 0)
    assert not waiting.ended
    deadlocked = protocol_of()
    deadlocked.flushed(3000)
    deadlocked.tick(1.0, 3000)
    deadlocked.tick(3.5, 2900)
    assert not deadlocked.ended, "its backlog shrinks"
    deadlocked.tick(7.0, 2900)
    assert deadlocked.ended


def test_no_heartbeat_before_hello() -> None:
    protocol = protocol_of(greeted=False)
    protocol.tick(0.5, 0)
    assert sent(protocol) == []


# Whatever comes

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
)
heads = st.one_of(st.lists(values, max_size=10), st.dictionaries(st.text(max_size=5), values, max_size=5), values)


@st.composite
def garbage(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([0, 1, 2, 3, 4, 255]))
    match draw(st.integers(0, 3)):
        case 0:
            return bytes([kind]) + draw(st.binary(max_size=60))
        case 1:
            head = msgspec.msgpack.encode(draw(heads))
            claimed = draw(st.sampled_from([len(head), len(head) + 1, 0, 0xFFFF]))
            return PREFIX.pack(Kind.PUBLISH, claimed) + head + draw(st.binary(max_size=60))
        case 2:
            fields = draw(st.dictionaries(st.sampled_from(["id", "type", "topic", "pattern", "batch"]), values))
            fields["type"] = draw(st.sampled_from(["STATS", "TOPIC", "HELLO", "WITHDRAW", "nonsense"]))
            return frames.control(msgspec.json.encode(fields))
        case _:
            depth = draw(st.sampled_from([10, 5000]))
            return frames.control(b'{"type":"STATS","id":1,"x":' + b"[" * depth + b"]" * depth + b"}")


@given(st.lists(garbage(), max_size=20), st.booleans())
def test_garbage_never_raises_and_is_answered_or_understood(given_frames: list[bytes], greeted: bool) -> None:
    protocol = protocol_of(greeted=greeted)
    for data in given_frames:
        before, ended = protocol.malformed, protocol.ended
        opened = protocol.receive(memoryview(data))
        if ended:
            assert opened is None
        elif opened is None:
            assert protocol.malformed == before + 1
        elif isinstance(opened, tuple):
            head = opened[0]
            assert greeted
            assert 0 <= head.priority <= 100
            assert 0 < head.count <= len(opened[1]) // 8
        else:
            assert greeted or isinstance(opened, control.Hello)
    answers = sent(protocol)
    errors = [each for each in answers if isinstance(each, control.Error)]
    assert len(errors) == protocol.malformed
    assert protocol.ended == (protocol.malformed > (LIMITS.max_malformed if greeted else 0))


@given(st.integers(0, 2**63), st.integers(-2, 2**62), st.integers(0, 200))
def test_counts_fit_their_bodies(number: int, count: int, size: int) -> None:
    protocol = protocol_of()
    frame = frames.publish(PublishHead(number, "t", count), bytes(size))
    assert (protocol.receive(memoryview(frame)) is not None) == (0 < count <= size // 8)


class Conversation(RuleBasedStateMachine):
    """Events in any order. `answered` and `accepted` are counted from the frames alone."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol = protocol_of()
        self.next_number = 0
        self.next_seq = 1
        self.accepted: dict[int, Batch] = {}
        self.answered: Counter[int] = Counter()
        self.now = 0.0
        self.over = False
        """Whether the frames of the end were flushed."""

    @property
    def outstanding(self) -> list[Batch]:
        return [each for each in self.accepted.values() if each.number in self.protocol.pending]

    @rule(step=st.integers(1, 3), size=st.integers(1, 600), count=st.integers(1, 20), urgent=st.booleans())
    def publishes(self, step: int, size: int, count: int, urgent: bool) -> None:
        self.next_number += step
        self.protocol.active_at = self.now
        opened = self.protocol.receive(published(self.next_number, count))
        assert (opened is None) == self.protocol.ended
        if opened is not None:
            batch = Batch(self.next_number, count, size, urgent=urgent)
            self.accepted[batch.number] = batch
            self.protocol.accept(batch)

    @rule(data=garbage())
    def sends_garbage(self, data: bytes) -> None:
        opened = self.protocol.receive(memoryview(data))
        if isinstance(opened, tuple):
            self.next_number = opened[0].number
            self.accepted[self.next_number] = Batch(self.next_number)
            self.protocol.accept(self.accepted[self.next_number])

    @rule(back=st.integers(0, 5))
    def goes_back(self, back: int) -> None:
        if self.next_number - back >= 0 and self.accepted:
            assert self.protocol.receive(published(min(self.next_number - back, max(self.accepted)))) is None

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), fails=st.booleans())
    def settles(self, data: st.DataObject, fails: bool) -> None:
        batch = data.draw(st.sampled_from(list(self.accepted.values())))
        if fails and batch.number in self.protocol.pending:
            batch.failures.append(control.Failure(batch=batch.number, index=0, code="c", text="t"))
        batch.first = self.next_seq
        self.next_seq += batch.count
        self.protocol.settle(batch)

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def fails_at(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.outstanding))
        self.protocol.fail(published(batch.number))

    @rule()
    def reports(self) -> None:
        self.protocol.report()

    @rule(size=st.integers(1, 700))
    def delivers(self, size: int) -> None:
        self.protocol.deliver((b"\3", bytes(size)))

    @rule(position=st.integers(0, 5))
    def drops(self, position: int) -> None:
        self.protocol.notify(dropped(position))

    @rule(backlog=st.sampled_from([0, 100, 500, 501, 2000, 2001, 4999, 5000]))
    def flushes(self, backlog: int) -> None:
        flushed = sent(self.protocol)
        assert not (flushed and self.over), "after the end nothing is sent"
        for each in flushed:
            if isinstance(each, control.Taken):
                for first, last, _ in each.runs:
                    self.answered.update(range(first, last + 1))
            elif isinstance(each, control.Error) and each.code == "internal" and each.batch >= 0:
                self.answered[each.batch] += 1
        if self.protocol.ended:
            self.over = True
            assert not any(isinstance(each, control.Goodbye) for each in flushed[:-1])
        self.protocol.flushed(backlog)

    @rule(backlog=st.integers(0, 3000))
    def drains(self, backlog: int) -> None:
        self.protocol.drained(backlog)

    @rule()
    def throttles(self) -> None:
        self.protocol.throttle()

    @rule()
    def unthrottles(self) -> None:
        self.protocol.unthrottle()

    @rule(pause_s=st.floats(0, 1.5), backlog=st.integers(0, 3000))
    def waits(self, pause_s: float, backlog: int) -> None:
        self.now += pause_s
        self.protocol.tick(self.now, backlog)

    @rule(how=st.sampled_from(["end", "close", "broken"]), sure=st.integers(0, 9))
    def ends(self, how: str, sure: int) -> None:
        if sure:
            return
        if how == "close":
            self.protocol.close("gone")
        else:
            if how == "broken":
                self.protocol.refuse(ProtocolError("too_large", "a frame"))
            self.protocol.end("over")

    @invariant()
    def never_reads_while_over_the_limits(self) -> None:
        protocol = self.protocol
        if protocol.reading:
            assert not protocol.ended
            assert not protocol.throttled
            assert protocol.pending_bytes <= LIMITS.pending_bytes

    @invariant()
    def pending_bytes_add_up(self) -> None:
        assert self.protocol.pending_bytes == sum(size for _, size in self.protocol.pending.values())

    @invariant()
    def every_batch_is_answered_at_most_once(self) -> None:
        assert all(count == 1 for count in self.answered.values())
        assert self.answered.keys() <= self.accepted.keys()
        assert not self.answered.keys() & self.protocol.pending.keys()

    def teardown(self) -> None:
        """Once the engine is done with all of them, every accepted batch has its answer."""
        if self.protocol.ended:
            return
        for batch in self.outstanding:
            self.protocol.settle(batch)
        self.protocol.report()
        self.protocol.report()
        self.flushes(0)
        assert self.answered.keys() == self.accepted.keys()
        assert self.protocol.pending_bytes == 0


TestConversation = Conversation.TestCase
TestConversation.settings = settings(stateful_step_count=40)
