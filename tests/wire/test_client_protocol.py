"""The client's protocol without sockets: its reaction to each event, and that no frame breaks its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import HubRefused, HubUnavailable, ProtocolError
from trunkline.wire import control, frames
from trunkline.wire.client import (
    Abort,
    Action,
    Answered,
    Blocked,
    ClientProtocol,
    Disconnected,
    Malformed,
    Notified,
    Phase,
    Reconnect,
    Rejected,
    SendFrame,
    Welcomed,
)
from trunkline.wire.frames import DeliverHead

BEAT_S = 2.0


def protocol() -> ClientProtocol:
    return ClientProtocol("unix://hub", backoff_s=0.1, max_backoff_s=0.5)


def hello(number: int) -> control.Hello:
    return control.Hello(id=number, versions=[1], name="client")


def view(said: control.Control) -> memoryview:
    return memoryview(frames.control(control.write(said)))


def sent(actions: Iterable[Action]) -> list[control.Control]:
    """The decoded frames to be sent."""
    found = [action.frame for action in actions if isinstance(action, SendFrame)]
    return [control.read_from_client(memoryview(frame)[1:]) for frame in found]


def welcome(number: int) -> control.Welcome:
    return control.Welcome(
        re=number,
        version=1,
        hub="run",
        session="s",
        identity="uid:1",
        heartbeat_s=BEAT_S,
        window=100,
        max_frame_bytes=1 << 20,
    )


def live(now: float = 0.0) -> ClientProtocol:
    client = protocol()
    (asked,) = sent(client.connected(hello, now))
    assert isinstance(asked, control.Hello)
    assert list(client.received([view(welcome(asked.id))], now)) == [Welcomed(welcome(asked.id))]
    client.sent_at = now
    return client


def test_hello_comes_first_and_welcome_makes_it_live() -> None:
    client = live()
    assert client.phase is Phase.LIVE
    assert client.connects == 1
    assert client.welcome == welcome(1)


def test_a_hub_that_refuses_hello() -> None:
    client = protocol()
    list(client.connected(hello, 0.0))
    refusal = control.Error(re=1, code="too_many", text="full")
    (rejected,) = client.received([view(refusal)], 0.0)
    assert isinstance(rejected, Rejected)
    assert isinstance(rejected.error, HubRefused)
    assert client.phase is Phase.GREETING
    assert list(client.lost("closed", 1.0)) == [Reconnect(0.1, "the hub refused: full")]


def test_hello_answered_with_something_else() -> None:
    client = protocol()
    list(client.connected(hello, 0.0))
    (rejected,) = client.received([view(control.Done(re=1))], 0.0)
    assert isinstance(rejected, Rejected)
    assert isinstance(rejected.error, ProtocolError)


def test_why_the_hub_said_goodbye_is_why_the_connection_ended() -> None:
    client = protocol()
    list(client.connected(hello, 0.0))
    list(client.received([view(control.Goodbye(reason="4 clients are there already"))], 0.0))
    list(client.lost("the connection was closed", 0.0))
    assert client.last_failure == "4 clients are there already"


@given(st.permutations(range(2, 8)))
def test_answers_come_in_any_order(order: list[int]) -> None:
    client = live()
    numbers = [client.ask(lambda number: control.Topic(id=number, topic="t"))[0] for _ in range(6)]
    assert numbers == list(range(2, 8))
    answers = [view(control.Done(re=number)) for number in order]
    assert list(client.received(answers, 0.0)) == [Answered(number, control.Done(re=number)) for number in order]
    assert list(client.received(answers, 0.0)) == [Notified(control.Done(re=number)) for number in order], "once"


def test_an_error_answers_with_what_is_wrong() -> None:
    client = live()
    number, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    (answered,) = client.received([view(control.Error(re=number, code="forbidden", text="no"))], 0.0)
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, HubRefused)
    assert answered.answer.code == "forbidden"


def test_what_a_topic_is_answers_and_is_announced() -> None:
    client = live()
    number, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    info = control.TopicInfo(topic="t", re=number, heard=True)
    assert list(client.received([view(info)], 0.0)) == [Answered(number, info), Notified(info)]


def test_nobody_waits_for_an_answer_that_was_given_up() -> None:
    client = live()
    number, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    client.forget(number)
    assert list(client.lost("gone", 0.0)) == [Disconnected("gone"), Reconnect(0.05, "gone")]


def test_all_that_was_asked_fails_with_the_connection() -> None:
    client = live()
    number, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    failed, ended, again = client.lost("reset by peer", 1.0)
    assert isinstance(failed, Answered)
    assert failed.number == number
    assert isinstance(failed.answer, HubUnavailable)
    assert failed.answer.why == "reset by peer"
    assert (ended, again) == (Disconnected("reset by peer"), Reconnect(0.1, "reset by peer"))
    assert client.phase is Phase.DISCONNECTED


def test_pauses_grow_up_to_a_limit_and_begin_again_after_a_welcome() -> None:
    client = protocol()
    assert pauses(action for _ in range(4) for action in client.unreachable("refused", 1.0)) == [0.1, 0.2, 0.4, 0.5]
    (asked,) = sent(client.connected(hello, 0.0))
    assert isinstance(asked, control.Hello)
    list(client.received([view(welcome(asked.id))], 0.0))
    assert pauses(client.lost("gone", 1.0)) == [0.1]


def test_the_first_pause_has_the_limit_of_all_pauses() -> None:
    client = ClientProtocol("unix://hub", backoff_s=3.0, max_backoff_s=0.5)
    assert pauses(action for _ in range(2) for action in client.unreachable("refused", 1.0)) == [0.5, 0.5]


def pauses(actions: Iterable[Action]) -> list[float]:
    return [action.after_s for action in actions if isinstance(action, Reconnect)]


@given(st.floats(0, 1))
def test_chance_shortens_a_pause_by_no_more_than_half(chance: float) -> None:
    (again,) = protocol().unreachable("refused", chance)
    assert isinstance(again, Reconnect)
    assert 0.05 <= again.after_s <= 0.1


def test_a_heartbeat_is_sent_when_nothing_else_was() -> None:
    client = live()
    assert list(client.tick(BEAT_S / 2)) == []
    assert sent(client.tick(BEAT_S / 2 + 0.1)) == [control.Heartbeat()]
    client.sent_at = BEAT_S
    assert list(client.tick(BEAT_S + 0.1)) == []


def test_a_hub_that_is_silent_for_three_heartbeats_is_left() -> None:
    client = live()
    client.sent_at = 3 * BEAT_S
    for half in range(1, 7):
        assert list(client.tick(half * BEAT_S / 2)) == []
    assert list(client.tick(3 * BEAT_S + 0.1)) == [Abort()]
    ended, again = client.lost("aborted", 0.0)
    assert isinstance(ended, Disconnected)
    assert "silent for 6 s" in ended.why
    assert isinstance(again, Reconnect)


def test_anything_from_the_hub_ends_its_silence() -> None:
    client = live()
    client.sent_at = 100.0
    for half in range(1, 101):
        if half % 3 == 0:
            list(client.received([memoryview(b"\x09junk")], half * BEAT_S / 2))
        assert list(client.tick(half * BEAT_S / 2)) == []


def test_a_hub_is_not_left_because_this_program_did_not_run() -> None:
    client = live()
    client.sent_at = 100.0
    list(client.tick(BEAT_S / 2))
    (blocked,) = client.tick(BEAT_S + 30.0)
    assert blocked == Blocked(30.0)
    # From here on it counts.
    for half in range(3, 8):
        assert list(client.tick(half * BEAT_S / 2 + 30.0)) == []
    assert list(client.tick(8 * BEAT_S / 2 + 30.0)) == [Abort()]


def test_a_goodbye_to_a_program_that_did_not_run_names_the_cause() -> None:
    client = live()
    goodbye = view(control.Goodbye(reason="silent for 30 s"))
    blocked, _ = client.received([goodbye], BEAT_S / 2 + 30.0)
    assert blocked == Blocked(30.0)
    assert [type(action) for action in live().received([goodbye], BEAT_S / 2 + 0.5)] == [Notified]


def test_closing_says_goodbye_and_is_the_end() -> None:
    client = live()
    number, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    goodbye, failed = client.close()
    assert sent([goodbye]) == [control.Goodbye()]
    assert isinstance(failed, Answered)
    assert failed.number == number
    assert list(client.lost("closed", 0.0)) == [], "no reconnection"
    assert list(client.unreachable("refused", 0.0)) == []
    assert client.phase is Phase.CLOSED


def test_closing_what_was_never_connected_sends_nothing() -> None:
    assert list(protocol().close()) == []


def test_a_stream_that_cannot_be_cut_into_frames_is_left() -> None:
    client = live()
    assert list(client.broken(ProtocolError("too_large", "a frame of 9 GB"))) == [Abort()]
    list(client.lost("aborted", 0.0))
    assert "a frame of 9 GB" in client.last_failure
    assert client.malformed == 1


def test_what_came_before_a_batch_is_acted_on_before_it() -> None:
    """A notice of a drop explains the gap before the next batch in the same read."""
    client = live()
    happened: list[str] = []
    client.deliver = lambda head, body: happened.append(f"batch {head.first}")
    body = bytes(8)
    dropped = control.Dropped(subscription=1, ranges=[(1, 1)], reason="full", topic="t", count=1)
    arrived = [b"".join(frames.deliver(DeliverHead(1, first, "t", 1), body)) for first in (2, 3)]
    for action in client.received([view(dropped), *(memoryview(frame) for frame in arrived)], 0.0):
        assert action == Notified(dropped)
        happened.append("dropped")
    assert happened == ["dropped", "batch 2", "batch 3"]
    assert client.delivered == 2


def mutated(frame: bytes) -> st.SearchStrategy[bytes]:
    return st.tuples(st.integers(0, len(frame) - 1), st.integers(0, 255)).map(
        lambda at: frame[: at[0]] + bytes([at[1]]) + frame[at[0] + 1 :]
    )


FRAMES = [
    bytes(view(control.Done(re=2))),
    bytes(view(control.Taken(runs=[(1, 2, 3)]))),
    bytes(view(control.Error(code="malformed", text="x", re=2))),
    bytes(view(welcome(1))),
    b"".join(frames.deliver(DeliverHead(1, 5, "t", 1), bytes(8))),
]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=64),
            st.binary(max_size=64).map(lambda data: b"\x01" + data),
            st.binary(max_size=64).map(lambda data: b"\x03" + data),
            st.sampled_from(FRAMES),
            *(mutated(frame) for frame in FRAMES),
        ),
        max_size=10,
    )
)
def test_no_frame_gets_it_out_of_step(arrived: list[bytes]) -> None:
    """All input is delivered, acted on, or counted as malformed. Later requests are answered."""
    client = live()
    number, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    batches = 0

    def deliver(head: DeliverHead, body: memoryview) -> None:
        nonlocal batches
        batches += 1

    client.deliver = deliver
    actions = list(client.received([memoryview(frame) for frame in arrived], 0.0))
    bad = [action for action in actions if isinstance(action, Malformed)]
    assert len(bad) == client.malformed
    assert not [action for action in actions if isinstance(action, Welcomed | Rejected | Reconnect | SendFrame)]
    assert len(arrived) <= len(actions) + batches <= 2 * len(arrived)
    answered = [action.number for action in actions if isinstance(action, Answered)]
    assert set(answered) <= {number}
    assert len(answered) <= 1
    assert client.phase is Phase.LIVE
    again, _ = client.ask(lambda number: control.Topic(id=number, topic="t"))
    assert list(client.received([view(control.Done(re=again))], 0.0)) == [Answered(again, control.Done(re=again))]


Event = Callable[[ClientProtocol], object]
EVENTS: dict[str, Event] = {
    "connected": lambda client: list(client.connected(hello, 0.0)),
    "welcome": lambda client: list(client.received([view(welcome(client._hello))], 0.0)),
    "ask": lambda client: client.ask(lambda number: control.Topic(id=number, topic="t")),
    "tick": lambda client: list(client.tick(1000.0)),
    "lost": lambda client: list(client.lost("lost", 0.5)),
    "unreachable": lambda client: list(client.unreachable("refused", 0.5)),
    "goodbye": lambda client: list(client.received([view(control.Goodbye(reason="bye"))], 0.0)),
    "give up": lambda client: list(client.give_up("it does not answer")),
}


@given(st.lists(st.sampled_from(sorted(EVENTS))))
def test_in_whatever_order_things_happen_it_can_connect_again(order: list[str]) -> None:
    client = protocol()
    for name in order:
        EVENTS[name](client)
    list(client.lost("lost", 0.5))
    assert client.phase is Phase.DISCONNECTED
    connects = client.connects
    (asked,) = sent(client.connected(hello, 0.0))
    assert isinstance(asked, control.Hello)
    assert list(client.received([view(welcome(asked.id))], 0.0)) == [Welcomed(welcome(asked.id))]
    assert client.connects == connects + 1
    assert not list(client.close())[1:], "nothing that was asked is left without an answer"
