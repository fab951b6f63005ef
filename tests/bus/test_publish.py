from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import msgspec
import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline.bus import threads
from trunkline.delivery.stream import Stream


class Order(msgspec.Struct):
    id: str
    total: float


@dataclasses.dataclass
class Point:
    x: int
    y: int


def take_all(stream: Stream) -> list[tl.Message]:
    found = []
    while True:
        try:
            found.append(stream.try_recv())
        except tl.StreamEmpty:
            return found


def test_awaited_publish_is_in_the_inboxes_of_all_who_match() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("orders.*") as one, bus.subscribe("orders.>") as rest, bus.subscribe("other") as other:
            message_id = await bus.publish("orders.placed", Order("a1", 9.5))
            assert [stream.depth for stream in (one, rest, other)] == [1, 1, 0]
            message = one.try_recv()
            assert message.id == message_id
            assert message.decode(Order) == Order("a1", 9.5)
            assert message.decode() == {"id": "a1", "total": 9.5}
            assert rest.try_recv() == message

    on_bus(main)


@pytest.mark.parametrize("payload", [b"raw", {"a": [1, None]}, "text", 7, None, [1.5], Point(1, 2), Order("x", 1.0)])
def test_any_value_travels_by_both_ways_out(payload: object) -> None:
    """The shortcut (a known topic, no fields) and the full path must give the same message."""

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t", payload)  # the topic is not known yet: the whole way
            await bus.publish("t", payload)  # the short cut
            await bus.publish("t", payload, correlation_id="c")  # a field: the whole way
            await bus.publish_many("t", [payload, payload])
            messages = take_all(stream)
            assert len(messages) == 5
            first = messages[0]
            for message in messages:
                assert message.decode(type(payload)) == payload
                same = ("topic", "payload", "content_type", "sender", "type", "priority", "attempts", "encoding")
                assert all(getattr(message, field) == getattr(first, field) for field in same)
            assert [message.seq for message in messages] == [1, 2, 3, 4, 5]
            assert sorted({message.id for message in messages}) == [message.id for message in messages]

    on_bus(main)


def test_every_field_arrives() -> None:
    fields: dict[str, Any] = {
        "type": tl.MessageType.CONTROL,
        "sender": "me",
        "recipient": "you",
        "priority": 99,
        "ttl_s": 300,
        "request_id": "r",
        "correlation_id": "c",
        "reply_to": "back",
        "requires_ack": True,
        "schema": "s",
        "trace": "00-1",
        "headers": {"k": "v"},
    }

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t", b"x", **fields)
            message = stream.try_recv()
            assert {name: getattr(message, name) for name in fields} == fields
            assert stream.ack(message)

    on_bus(main)


def test_what_is_changed_after_publishing_does_not_change_the_message() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            value = {"n": 1}
            await bus.publish("t", value)
            value["n"] = 2
            assert stream.try_recv().decode() == {"n": 1}

    on_bus(main)


def test_priority_orders_delivery_and_fifo_within() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            for n, priority in enumerate([50, 10, 100, 50, 75, 10, 100]):
                await bus.publish("t", n, priority=priority)
            assert [message.decode() for message in take_all(stream)] == [2, 6, 4, 0, 3, 1, 5]

    on_bus(main)


def test_urgent_message_overtakes_a_batch_being_iterated() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish_many("t", range(5))
            seen = []
            async for message in stream:
                seen.append(message.decode())
                if len(seen) == 2:
                    await bus.publish("t", "now", priority=tl.Priority.CRITICAL)
                if len(seen) == 6:
                    break
            assert seen == [0, 1, "now", 2, 3, 4]

    on_bus(main)


def test_ttl_is_checked_at_publish_and_at_delivery() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            stale = bus.message("t", b"", ttl_s=1)
            await asyncio.sleep(2)
            with pytest.raises(tl.MessageExpired, match="Message has expired"):
                await bus.post(stale)
            assert (await bus.explain(stale.id)).outcomes[0].fate is tl.Fate.REFUSED
            late = await bus.publish("t", b"", ttl_s=1)
            fresh = await bus.publish("t", b"", ttl_s=10)
            await asyncio.sleep(2)
            assert [message.id for message in take_all(stream)] == [fresh]
            (outcome,) = (await bus.explain(late)).outcomes
            assert outcome.fate is tl.Fate.EXPIRED
            assert stream.account().expired == 1

    on_bus(main)


def test_direct_and_broadcast_reach_endpoints() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(tl.endpoint("a")) as a, bus.subscribe(tl.endpoint("b")) as b:
            sent = await bus.send("a", {"action": "start"})
            everyone = await bus.broadcast("hello")
            first, second = take_all(a)
            assert (first.id, first.type, first.recipient) == (sent, tl.MessageType.DIRECT, "a")
            assert second.id == everyone
            assert [message.id for message in take_all(b)] == [everyone]
            assert [outcome.subscriber for outcome in (await bus.explain(everyone)).outcomes] == [a.name, b.name]
            assert [outcome.subscriber for outcome in (await bus.explain(sent)).outcomes] == [a.name]

    on_bus(main)


def test_subscribe_messages_link_a_topic_to_an_endpoint() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(tl.endpoint("agent1")) as inbox:
            await bus.post(tl.Message(type=tl.MessageType.SUBSCRIBE, sender="agent1", topic="events"))
            assert bus.subscribers("events") == [inbox.name]
            await bus.publish("events", 42)
            assert inbox.try_recv().decode() == 42
            await bus.post(tl.Message(type=tl.MessageType.UNSUBSCRIBE, sender="agent1", topic="events"))
            await bus.publish("events", 43)
            assert take_all(inbox) == []
            assert bus.subscribers("events") == []
            assert bus.link("x.*", "agent1")
            assert not bus.link("x.*", "agent1")
            assert bus.unlink("x.*", "agent1")
            assert not bus.unlink("x.*", "agent1")

    on_bus(main)


def test_subscribe_messages_link_however_they_are_published() -> None:
    link, unlink = tl.MessageType.SUBSCRIBE, tl.MessageType.UNSUBSCRIBE

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(tl.endpoint("agent1")) as inbox, bus.subscribe("events") as events:
            both = [events.name, inbox.name]
            await bus.publish("events", type=link, sender="agent1")
            assert sorted(bus.subscribers("events")) == sorted(both)
            await bus.publish_many("events", [b""], type=unlink, sender="agent1")
            assert bus.subscribers("events") == [events.name]
            batch = [
                tl.Message(topic="events", payload=1),
                tl.Message(type=link, sender="agent1", topic="events"),
                tl.Message(topic="events", payload=2),
                tl.Message(type=unlink, sender="agent1", topic="events"),
                tl.Message(topic="events", payload=3),
            ]
            await bus.post_many(batch)
            assert [message.decode() for message in take_all(inbox)] == [2]
            assert [message.decode() for message in take_all(events)] == [1, 2, 3]
            assert bus.subscribers("events") == [events.name]
            assert bus.stats().total_messages == 7
        async with tl.Bus(bus.broker, name="other") as other:
            pass
        for publish in (
            lambda: other.publish("events", type=link, sender="agent1"),
            lambda: other.post(tl.Message(type=link, sender="agent1", topic="events")),
            lambda: other.post_many([tl.Message(type=unlink, sender="agent1", topic="events")]),
        ):
            with pytest.raises(tl.BusClosed):
                await publish()

    on_bus(main)


def test_message_built_by_hand_gets_what_it_lacks_and_keeps_what_it_has() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(">") as stream:
            mine = tl.Message(topic="t", payload={"a": 1}, id="my-own-id", sender="me")
            assert await bus.post(mine) == "my-own-id"
            await bus.post(tl.Message(topic="t"))
            await bus.post(tl.Message(type=tl.MessageType.DIRECT, recipient="x"))
            await bus.post(tl.Message(type=tl.MessageType.HEARTBEAT, sender="agent"))
            first, second, third, fourth = take_all(stream)
            assert (first.id, first.sender, mine.seq) == ("my-own-id", "me", 0)
            assert second.sender == bus.name
            assert second.id
            assert second.timestamp_ns
            assert third.topic == tl.endpoint("x")
            assert fourth.topic == "_heartbeat.agent"

    on_bus(main)


def test_too_large_is_refused_everywhere() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t", b"x" * 1000)
            for attempt in (
                bus.publish("t", b"x" * 1001),
                bus.publish("t", b"x" * 1001, priority=1),
                bus.publish("new", b"x" * 1001),
                bus.publish_many("t", [b"", b"x" * 1001]),
                bus.send("you", b"x" * 1001),
                bus.post(tl.Message(topic="t", payload=b"x" * 1001)),
                bus.request("t", b"x" * 1001),
            ):
                with pytest.raises(tl.MessageTooLarge, match="Message exceeds maximum size"):
                    await attempt
            assert len(take_all(stream)) == 1
            assert bus.stats().total_refused == 7
            assert bus.stats().open_requests == 0

    on_bus(main, settings=tl.Settings(max_message_bytes=1000))


def test_default_limit_is_ten_mebibytes() -> None:
    async def main(bus: tl.Bus) -> None:
        await bus.publish("t", bytes(10 * 1024 * 1024))
        with pytest.raises(tl.MessageTooLarge):
            await bus.publish("t", bytes(10 * 1024 * 1024 + 1))

    on_bus(main)


@pytest.mark.parametrize(
    ("topic", "payload", "fields", "error"),
    [
        ("a..b", b"", {}, tl.InvalidTopic),
        ("a.*", b"", {}, tl.InvalidTopic),
        ("", b"", {}, tl.InvalidTopic),
        ("a b", b"", {}, tl.InvalidTopic),
        ("t", b"", {"priority": 101}, tl.InvalidPriority),
        ("t", b"", {"priority": -1}, tl.InvalidPriority),
        ("t", b"", {"ttl_s": 0}, tl.InvalidTtl),
        ("t", object(), {}, tl.EncodeError),
        ("t", {"x": object()}, {"priority": 1}, tl.EncodeError),
    ],
)
def test_bad_input_is_a_typed_error_and_nothing_is_published(
    topic: str, payload: object, fields: dict[str, Any], error: type[Exception]
) -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe(">") as stream:
            await bus.publish("t")
            for _ in range(2):
                with pytest.raises(error):
                    await bus.publish(topic, payload, **fields)
                with pytest.raises(error):
                    await bus.publish_many(topic, [payload], **fields)
            assert len(take_all(stream)) == 1

    on_bus(main)


def test_publish_many_keeps_order_across_a_full_inbox() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t", capacity=100) as stream:
            publishing = asyncio.create_task(bus.publish_many("t", range(1000)))
            seen: list[int] = []
            async for batch in stream.batches(37):
                seen.extend(message.decode() for message in batch)
                await asyncio.sleep(0)
                if len(seen) == 1000:
                    break
            assert seen == list(range(1000))
            assert len(await publishing) == 1000

    on_bus(main)


def test_publish_many_of_nothing_and_of_mixed_values() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            assert await bus.publish_many("t", []) == []
            await bus.publish("t")
            assert await bus.publish_many("t", iter([])) == []
            await bus.publish_many("t", [b"raw", {"a": 1}], priority=50)
            await bus.publish_many("t", (b"raw", {"a": 1}))
            values = [message.decode() for message in take_all(stream)]
            assert values == [b"", b"raw", {"a": 1}, b"raw", {"a": 1}]

    on_bus(main)


def test_json_payloads_by_setting_and_by_field() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t", {"a": 1}, content_type="application/json")
            await bus.publish("t", b'{"a":1}', content_type="application/json")
            for message in take_all(stream):
                assert message.payload == b'{"a":1}'
                assert message.decode() == {"a": 1}

    on_bus(main)

    async def json_bus(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            await bus.publish("t", {"a": 1})
            await bus.publish("t", {"a": 1})
            assert [message.payload for message in take_all(stream)] == [b'{"a":1}'] * 2

    on_bus(json_bus, settings=tl.Settings(content_type="application/json"))


def test_filter_and_dedupe_on_a_subscription() -> None:
    async def main(bus: tl.Bus) -> None:
        async with (
            bus.subscribe("t", where="payload.total > 100 and priority >= 75") as big,
            bus.subscribe("t", dedupe_s=10) as once,
        ):
            hit = await bus.publish("t", {"total": 200}, priority=80)
            miss = await bus.publish("t", {"total": 20}, priority=80)
            same = tl.Message(topic="t", id="same", payload=1)
            await bus.post(same)
            await bus.post(same)
            assert [message.id for message in take_all(big)] == [hit]
            assert [outcome.fate for outcome in (await bus.explain(miss)).outcomes] == [
                tl.Fate.FILTERED,
                tl.Fate.IN_FLIGHT,
            ]
            assert len(take_all(once)) == 3
            await asyncio.sleep(11)
            await bus.post(same)
            assert len(take_all(once)) == 1
            assert once.account().filtered == 1

    on_bus(main)


def test_bad_options_are_named() -> None:
    async def main(bus: tl.Bus) -> None:
        with pytest.raises(tl.InvalidSettings, match="did you mean 'capacity'"):
            bus.subscribe("t", capacty=5)  # type: ignore[call-arg]  # the mistake is the test
        with pytest.raises(tl.InvalidSettings):
            bus.subscribe("t", capacity=0)
        with pytest.raises(tl.InvalidSettings):
            bus.subscribe("t", overflow="explode")
        with pytest.raises(tl.InvalidExpression, match="did you mean 'priority'"):
            await bus.subscribe("t", where="prioritty > 5").open()
        with pytest.raises(tl.InvalidTopic):
            await bus.subscribe("a.>.b").open()

    on_bus(main)


def test_several_buses_on_one_broker_hear_each_other_and_close_alone() -> None:
    async def main(bus: tl.Bus) -> None:
        other = await tl.connect(bus.broker, name="other").__aenter__()
        async with bus.subscribe("t") as stream:
            await other.publish("t", 1)
            assert stream.try_recv().sender == "other"
            await other.aclose()
            await bus.publish("t", 2)
            assert stream.try_recv().decode() == 2

    on_bus(main)


def test_unknown_scheme_says_what_is_known() -> None:
    for url in ("carrier-pigeon://x", "memory"):
        with pytest.raises(tl.UnknownScheme, match="memory:"):
            tl.connect(url)


def test_publishing_from_threads_keeps_each_threads_order() -> None:
    async def main() -> None:
        async with tl.connect() as bus, bus.subscribe("t") as stream:
            door = bus.from_thread()

            def work(name: str) -> str:
                futures = [door.publish("t", [name, n]) for n in range(200)]
                return futures[-1].result(timeout=10)

            ids = await asyncio.gather(*(asyncio.to_thread(work, name) for name in "abc"))
            assert len(set(ids)) == 3
            values = [message.decode() for message in take_all(stream)]
            for name in "abc":
                assert [n for who, n in values if who == name] == list(range(200))
            with pytest.raises(tl.InvalidTopic):
                await asyncio.wrap_future(door.publish("not a topic"))

    asyncio.run(main())


def test_the_queue_of_the_door_is_bounded_in_messages_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own thread cannot wait. Another thread waits for room, with a limit."""
    monkeypatch.setattr(threads, "MAX_BYTES", 1000)
    limits = tl.Backpressure(max_pending=5, wait_s=0.01, timeout_s=0.05)

    async def main() -> None:
        async with tl.connect(settings=tl.Settings(backpressure=limits)) as bus:
            door = bus.from_thread()
            found: list[Exception] = []

            def work() -> None:
                try:
                    door.publish("t", b"")
                except tl.TrunklineError as error:
                    found.append(error)

            for payload, count in ((b"", 5), (bytes(500), 2)):
                futures = [door.publish("t", payload) for _ in range(count)]
                with pytest.raises(tl.Congested, match=f"{count} publishes already wait"):
                    door.publish("t", b"")
                thread = threading.Thread(target=work)
                thread.start()
                # The loop does not get to the queue meanwhile.
                thread.join()
                assert isinstance(found.pop(), tl.BackpressureTimeout)
                await asyncio.gather(*map(asyncio.wrap_future, futures))

    asyncio.run(main())


def test_a_thread_waits_for_room_in_the_queue_of_the_door() -> None:
    limits = tl.Backpressure(max_pending=5)

    async def main() -> None:
        async with (
            tl.connect(settings=tl.Settings(backpressure=limits)) as bus,
            bus.subscribe("t", capacity=1000) as stream,
        ):
            door = bus.from_thread()

            def work() -> int:
                most = 0
                for number in range(500):
                    door.publish("t", number)
                    most = max(most, len(door._queue))
                return most

            assert await asyncio.to_thread(work) <= 5
            assert [(await stream.recv()).decode() for _ in range(500)] == list(range(500))  # type: ignore[union-attr]

    asyncio.run(main())


def test_what_the_loop_took_and_did_not_publish_yet_still_counts() -> None:
    """One is being published, and five more may wait behind it. Closing ends all waits with an error."""
    limits = tl.Backpressure(max_pending=5, wait_s=0.01, timeout_s=0.05)
    begun: list[object] = []

    async def publish(topic: str, payload: object) -> str:
        begun.append(payload)
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        door = tl.ThreadDoor("door", publish, limits)
        futures = [door.publish("t", number) for number in range(5)]
        await until(lambda: begun)

        def fill() -> None:
            while True:
                futures.append(door.publish("t", b""))

        with pytest.raises(tl.BackpressureTimeout):
            await asyncio.to_thread(fill)
        assert (len(futures), begun) == (6, [0])
        assert not any(future.done() for future in futures)
        await door.aclose(0.0)
        for future in futures:
            with pytest.raises(tl.BusClosed):
                future.result(0)

    asyncio.run(main())


def test_door_of_a_loop_that_ended_says_so() -> None:
    async def main() -> tl.ThreadDoor:
        async with tl.connect(settings=tl.Settings(backpressure=tl.Backpressure(max_pending=1))) as bus:
            return bus.from_thread()

    door = asyncio.run(main())
    for _ in range(2):
        with pytest.raises(tl.BusClosed):
            door.publish("t")


def test_closed_bus_says_so_for_every_call() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t"):
            await bus.publish("t")
        await bus.aclose()
        await bus.aclose()
        for attempt in (
            bus.publish("t"),
            bus.publish("new"),
            bus.publish_many("t", [b""]),
            bus.publish("t", priority=1),
            bus.send("x"),
            bus.broadcast(),
            bus.request("t"),
            bus.post(tl.Message(topic="t")),
            bus.subscribe("t").open(),
        ):
            with pytest.raises(tl.BusClosed, match=r"trunkline\.connect"):
                await attempt
        assert await bus.try_request("t") is None
        with pytest.raises(tl.BusClosed):
            bus.handle("t", until)

    on_bus(main)
