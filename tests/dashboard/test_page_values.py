"""The values that the page shows: rates, history, causes of dead letters, lives, trees, topology. All pure."""

from __future__ import annotations

import msgspec
import pytest

from trunkline.brokers.store import KeptDeadLetter
from trunkline.dashboard.page.model.executions import executions_in, topics_of
from trunkline.dashboard.page.model.form import changed_by, form_of
from trunkline.dashboard.page.model.history import HOUR_S, TrafficHistory, percentiles
from trunkline.dashboard.page.model.letters import group_letters, key_of_letter
from trunkline.dashboard.page.model.life import make_life, tree_of
from trunkline.dashboard.page.model.requests import requests_in
from trunkline.dashboard.page.model.search import MessageQuery
from trunkline.dashboard.page.model.text import inert, one_line, payload_text
from trunkline.dashboard.page.model.topology import MAX_NODES, OTHERS, topology_of
from trunkline.delivery.dead_letters import Attempt, Cause, DeadLetter
from trunkline.delivery.fates import Fate, Outcome
from trunkline.errors import InvalidTopic, UsageError
from trunkline.message import Message, MessageType
from trunkline.topic import matches
from trunkline.wire.snapshot import HubSnapshot, SubscriberSnapshot, TopicSnapshot

SECOND = 1_000_000_000
SCRIPT = "<script>alert(1)</script>"


def snapshot(at_s: float, published: int, *, hub: str = "one", delivered: int = 0) -> HubSnapshot:
    return HubSnapshot(
        at_ns=int(at_s * SECOND),
        hub=hub,
        since_ns=0,
        listening=[],
        published=published,
        last=published,
        account={"delivered": delivered, "dropped": 0},
        topics=[TopicSnapshot(topic="orders.placed", published=published)],
        subscribers=[SubscriberSnapshot(name="audit", pattern="orders.>", delivered=delivered, waiting=3)],
    )


# History


def test_rates_are_those_of_the_last_two_seconds() -> None:
    history = TrafficHistory()
    for step in range(20):
        history.add(snapshot(100 + step * 0.5, step * 50, delivered=step * 25), 0.001)
    assert history.points[-1].published == pytest.approx(100)
    assert history.points[-1].delivered == pytest.approx(50)
    assert history.topic_rate("orders.placed") == pytest.approx(100)
    assert history.subscriber_rate(snapshot(0, 0).subscribers[0]) == pytest.approx(50)
    # Then it stops.
    for step in range(8):
        history.add(snapshot(110 + step * 0.5, 19 * 50, delivered=19 * 25), 0.001)
    assert history.points[-1].published == 0


def test_another_run_of_the_hub_starts_counting_anew_and_the_history_stays() -> None:
    history = TrafficHistory()
    history.add(snapshot(100, 1_000_000), 0.001)
    history.add(snapshot(101, 1_000_100), 0.001)
    history.add(snapshot(102, 5, hub="two"), 0.001)
    history.add(snapshot(103, 15, hub="two"), 0.001)
    assert [point.published for point in history.points] == [0, pytest.approx(100), 0, pytest.approx(10)]


def test_the_history_has_one_point_a_second_and_an_hour_of_them() -> None:
    history = TrafficHistory()
    for step in range(3 * HOUR_S):
        history.add(snapshot(step * 0.5, step), 0.002 if step % 2 else 0.001)
    assert len(history.points) == HOUR_S
    assert history.points[-1].at_s - history.points[0].at_s == HOUR_S - 1
    assert {point.answer_ms for point in history.points} == {2.0}  # the slowest answer of a second counts


def test_what_a_journal_knows_comes_before_the_first_look() -> None:
    history = TrafficHistory()
    history.add(snapshot(10_000, 5), 0.001)
    history.recall({999: 50.0, 998: 20.0, 10: 1.0}, 10)
    assert len(history.points) == HOUR_S // 10 + 1
    young = TrafficHistory()
    young.add(snapshot(10_000, 5), 0.001)
    young.recall({997: 10.0}, 10)
    assert [(point.at_s, point.published) for point in young.points] == [(9970, 1), (9980, 0), (9990, 0), (10_000, 0)]
    assert [(point.at_s, point.published) for point in list(history.points)[-3:]] == [(9980, 2), (9990, 5), (10_000, 0)]
    assert history.points[0].delivered is None
    nothing = TrafficHistory()
    nothing.recall({}, 10)
    assert not nothing.points


def test_percentiles() -> None:
    assert percentiles([]) == (0.0, 0.0, 0.0)
    assert percentiles([3.0]) == (3.0, 3.0, 3.0)
    assert percentiles([float(n) for n in range(100)]) == (50.0, 95.0, 99.0)


# Dead letters


def letter(number: int, reason: str, *, subscriber: str = "billing") -> KeptDeadLetter:
    message = Message(id=f"m{number}", topic="orders.placed", payload={"n": number}, timestamp_ns=1, seq=number)
    trace = 'Traceback (most recent call last):\n  File "shop.py", line 10, in charge\n    raise …\n'
    died = DeadLetter(
        message=message,
        subscriber=subscriber,
        cause=Cause.HANDLER_FAILED,
        reason=reason,
        error_type="ValueError",
        traceback=trace,
        attempts=(Attempt(1, number * 10, "first"), Attempt(2, number * 10 + 5, "second")),
        at_ns=number * 10 + 6,
    )
    return KeptDeadLetter(died, True, number % 2 == 0)


def test_one_bug_is_one_row() -> None:
    letters = [letter(n, f"ValueError: card {n} of 'customer {n}' declined") for n in range(1, 8)]
    letters += [letter(9, "ValueError: card 9 of 'customer 9' declined", subscriber="till")]
    letters += [letter(10, "ValueError: card 9 of 'customer 9' declined", subscriber="audit")]
    groups = group_letters(letters)
    assert [(group.subscriber, group.count) for group in groups] == [("audit", 1), ("till", 1), ("billing", 7)]
    billing = groups[-1]
    assert billing.returns == 3
    assert [each.letter.message.id for each in billing.letters] == [f"m{n}" for n in range(7, 0, -1)]
    # Part of an address that people keep: it does not depend on which letters are there.
    assert key_of_letter(letters[0].letter) == billing.key == group_letters(letters[3:4])[0].key


# Forms


def test_a_form_has_a_field_for_each_plain_value() -> None:
    schema = {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Size": {"enum": ["small", "large"]},
            "Order": {
                "type": "object",
                "required": ["n"],
                "properties": {
                    "n": {"type": "integer"},
                    "price": {"type": "number"},
                    "size": {"$ref": "#/$defs/Size"},
                    "gift": {"type": "boolean", "default": False},
                    "note": {"type": "string"},
                    "lines": {"type": "array"},
                },
            },
        },
    }
    value = {"n": 3, "price": 5, "size": "small", "lines": []}
    fields = {each.name: each for each in form_of(schema, value)}
    assert {name: each.kind for name, each in fields.items()} == {
        "n": "whole number",
        "price": "number",
        "size": "choice",
        "gift": "yes or no",
        "note": "text",
    }
    assert (fields["n"].required, fields["gift"].value, fields["size"].choices) == (True, False, ["small", "large"])
    assert changed_by(value, fields["n"], "4")["n"] == 4
    assert changed_by(value, fields["price"], "6")["price"] == 6
    assert changed_by(value, fields["price"], "6.5")["price"] == 6.5
    assert changed_by(value, fields["note"], "x") == {**value, "note": "x"}
    with pytest.raises(ValueError, match="invalid literal"):
        changed_by(value, fields["n"], "four")
    assert form_of(schema, [1]) == form_of({"type": "string"}, {"n": 1}) == []


# Lives


def test_a_life_is_told_in_order() -> None:
    kept = letter(3, "ValueError: no")
    message = kept.letter.message.replace(headers={"bridges-passed": "north south"})
    outcomes = [
        Outcome("late", Fate.IN_FLIGHT, "waits in the journal"),
        Outcome("billing", Fate.DEAD, "ValueError: no", 36),
        Outcome("audit", Fate.DELIVERED, "", 20),
    ]
    life = make_life("m3", message, outcomes, [kept.letter])
    assert [(event.kind, event.who) for event in life.events] == [
        ("published", ""),
        ("passed", "north"),
        ("passed", "south"),
        ("delivered", "audit"),
        ("attempt", "billing"),
        ("attempt", "billing"),
        ("dead", "billing"),
        ("in flight", "late"),
    ]
    assert life.conversation == []


def test_a_conversation_is_a_tree() -> None:
    def said(seq: int, **fields: object) -> Message:
        return Message(id=f"m{seq}", topic=f"t.{seq}", payload=b"", timestamp_ns=seq * 1000, seq=seq, **fields)  # type: ignore[arg-type]

    messages = [
        said(1),
        said(2, correlation_id="m1", type=MessageType.REQUEST, request_id="r", reply_to="_reply.x"),
        said(3, type=MessageType.RESPONSE, request_id="r", correlation_id="m1"),
        said(4, correlation_id="m1"),
        said(5, correlation_id="m4"),
        said(6, correlation_id="elsewhere"),
        said(7, correlation_id="elsewhere"),
    ]
    assert [(node.message.id, node.depth, node.after_ns) for node in tree_of(messages)] == [
        ("m1", 0, 0),
        ("m2", 1, 1000),
        ("m3", 2, 2000),
        ("m4", 1, 3000),
        ("m5", 2, 4000),
        ("m6", 0, 5000),
        ("m7", 1, 6000),
    ]
    (row,) = requests_in(messages)
    assert (row.request.id, row.state, row.took_ns) == ("m2", "answered", 1000)
    assert requests_in(messages[:2])[0].state == "open"


# Kernels


def test_executions_are_told_from_the_traffic_of_a_kernel() -> None:
    def said(seq: int, topic: str, content: dict[str, object], request: str = "r1") -> Message:
        payload = msgspec.json.encode({"header": {}, "content": content})
        return Message(
            id=f"m{seq}",
            topic=f"kernel.k1.{topic}",
            payload=payload,
            content_type="application/json",
            request_id=request,
            timestamp_ns=seq,
            seq=seq,
        )

    messages = [
        said(1, "shell.execute_request", {"code": "print(1)"}),
        said(2, "iopub.stream", {"name": "stdout", "text": "1\n"}),
        said(3, "iopub.execute_result", {"data": {"text/plain": "<b>2</b>"}}),
        said(4, "shell.execute_reply", {"status": "ok"}),
        said(5, "shell.execute_request", {"code": "1/0"}, "r2"),
        said(6, "iopub.error", {"ename": "ZeroDivisionError", "evalue": "division by zero"}, "r2"),
        said(7, "shell.execute_request", {"code": "while True: pass"}, "r3"),
        said(8, "iopub.stream", {"text": "of another client"}, "unknown"),
        Message(
            topic="kernel.k1.iopub.stream", payload=b"\xff", request_id="r3", seq=9, content_type="application/json"
        ),
    ]
    assert matches(topics_of("k1"), messages[0].topic)
    assert [(each.state, each.code, each.output) for each in executions_in(messages)] == [
        ("running", "while True: pass", ""),
        ("error", "1/0", "ZeroDivisionError: division by zero\n"),
        ("ok", "print(1)", "1\n<b>2</b>\n"),
    ]


# Search


def test_a_query_fits_by_topic_text_correlation_and_time() -> None:
    message = Message(
        id="abc",
        topic="orders.eu.placed",
        payload={"name": "Käthe"},
        sender="shop",
        correlation_id="c1",
        timestamp_ns=1_700_000_000 * SECOND,
    )
    for query in (
        MessageQuery(),
        MessageQuery(text="KÄTHE"),
        MessageQuery(text="shop", topic="orders.>"),
        MessageQuery(correlation="c1"),
        MessageQuery(since="2023-11-14", until="2023-11-15"),
    ):
        assert query.fits(message), query
    for query in (
        MessageQuery(text="Karl"),
        MessageQuery(topic="orders.us.>"),
        MessageQuery(correlation="c2"),
        MessageQuery(since="2023-11-15"),
        MessageQuery(until="2023-11-14"),
    ):
        assert not query.fits(message), query
    with pytest.raises(UsageError, match="since"):
        MessageQuery(since="yesterdayish").check()
    with pytest.raises(InvalidTopic):
        MessageQuery(topic="a..b").check()


# Text


def test_text_of_messages_does_nothing() -> None:
    assert inert("a\x1b[31mred\nb\u202eevil\x00") == "a\\x1b[31mred\nb\\u202eevil\\x00"
    message = Message(topic="t", payload={"html": SCRIPT, "bytes": "\x1b]0;x\x07"})
    assert SCRIPT in payload_text(message)  # as text, in JSON
    assert "\x1b" not in payload_text(message)
    assert "\n" not in one_line(message)
    assert payload_text(Message(topic="t", payload=b"\xff\x00")).startswith("00000000  ff 00")
    long = payload_text(Message(topic="t", payload="x" * 5000), most=100)
    assert long.endswith("4,900 characters more")
    assert len(one_line(Message(topic="t", payload="x" * 5000), 50)) == 51


# Topology


def test_the_topology_has_three_layers_and_joins_the_quiet_ones() -> None:
    found = HubSnapshot(
        at_ns=0,
        hub="h",
        since_ns=0,
        listening=[],
        published=0,
        last=0,
        topics=[TopicSnapshot(topic=f"t.{n}", published=n) for n in range(MAX_NODES + 5)]
        + [TopicSnapshot(topic="_reply.abc", published=9)],
        subscribers=[
            SubscriberSnapshot(name="all", pattern=">"),
            SubscriberSnapshot(name="first", pattern="t.0"),
            SubscriberSnapshot(name="asks", pattern="_reply.abc"),
            SubscriberSnapshot(name="an actor", pattern="_to.lab.>"),
        ],
    )
    graph = topology_of(found, {"shop": {"t.0", "t.1"}, "till": {"t.1"}}, lambda topic: float(topic == "t.1"))
    senders, topics, subscribers = graph.layers
    assert senders == ["shop", "till"]
    assert set(subscribers) == {"all", "first"}
    assert len(topics) == MAX_NODES + 1
    assert OTHERS in topics
    assert graph.hidden == 5
    rates = {(edge.left, edge.right): edge.rate for edge in graph.edges}
    assert rates["shop", "t.1"] == rates["till", "t.1"] == 0.5
    assert rates["t.1", "all"] == 1.0
    assert ("t.0", "first") in rates
    assert ("t.1", "first") not in rates


def test_a_message_with_several_subscribers_flows_once() -> None:
    found = HubSnapshot(
        at_ns=0,
        hub="h",
        since_ns=0,
        listening=[],
        published=0,
        last=0,
        topics=[TopicSnapshot(topic="t", published=9)],
        subscribers=[SubscriberSnapshot(name=name, pattern="t") for name in ("one", "two")],
    )
    for senders in ({"shop": {"t"}}, {}):
        graph = topology_of(found, senders, lambda topic: 5.0)
        assert (graph.flow(1, "t"), graph.flow(2, "one"), graph.flow(2, "two")) == (5.0, 5.0, 5.0)
    assert topology_of(found, {"shop": {"t"}}, lambda topic: 5.0).flow(0, "shop") == 5.0
