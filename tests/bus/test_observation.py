from __future__ import annotations

import asyncio
import os
import random

import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline.bus.observe import MessageHistory
from trunkline.delivery.plain_run import PlainRun


def test_a_bus_without_a_name_is_called_after_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, called in {
        "/srv/agent.py": "agent.py",
        "/lib/shop/__main__.py": "shop",
        "-c": "python",
        "": "python",
    }.items():
        monkeypatch.setattr("sys.argv", [program])
        assert tl.World().program() == f"{called}-{os.getpid()}"

    async def main(bus: tl.Bus) -> None:
        assert bus.name == "bus"

    on_bus(main)


def test_stats_count_by_topic_and_sender() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("a") as stream:
            for _ in range(3):
                await bus.publish("a")
            await bus.publish("b", sender="other")
            await bus.publish_many("b", range(2))
            stats = bus.stats()
            assert stats.total_messages == 6
            assert stats.per_topic == {"a": 3, "b": 3}
            assert stats.per_sender == {"bus": 5, "other": 1}
            assert stats.unrouted == 3
            assert stats.pending == bus.pending() == 3
            assert stats.subscribers == 1
            assert stats.account == tl.Account(accepted=3, in_flight=3)
            stream.try_recv()
            assert bus.stats().account == tl.Account(accepted=3, delivered=1, in_flight=2)

    on_bus(main)


def test_failures_are_counted() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("t", retry=tl.Retry(attempts=1))
        async def fails() -> None:
            raise RuntimeError

        await bus.publish("t")
        await until(lambda: bus.dead_letters)
        stale = bus.message("t", ttl_s=1)
        await asyncio.sleep(2)
        with pytest.raises(tl.MessageExpired):
            await bus.post(stale)
        stats = bus.stats()
        assert (stats.total_failed, stats.total_refused, stats.dead_letters) == (2, 1, 1)

    on_bus(main)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_publisher_that_found_no_room_is_counted(hooked: bool) -> None:
    metrics = tl.hooks.Metrics()

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("full", overflow="reject", capacity=1), bus.subscribe("slow", capacity=1):
            for topic, error in (("full", tl.InboxFull), ("slow", tl.BackpressureTimeout)):
                await bus.publish(topic)
                with pytest.raises(error):
                    await bus.publish(topic)
                with pytest.raises(error):
                    await bus.publish(topic, priority=60)
                with pytest.raises(tl.PartlyRefused):
                    await bus.publish_many(topic, range(2))
            stats = bus.stats()
            assert (stats.total_failed, stats.total_refused) == (8, 8)
            # After a timeout the rest of the batch is not offered to subscribers.
            assert (stats.total_messages, stats.account.dropped) == (9, 7)
            if hooked:
                assert metrics.refused == {"InboxFull": 4, "BackpressureTimeout": 4}
                assert metrics.messages_published == 2

    limits = tl.Settings(backpressure=tl.Backpressure(timeout_s=1))
    on_bus(main, settings=limits, hooks=[metrics] if hooked else [])


def test_history_is_ordered_bounded_and_searchable() -> None:
    async def main(bus: tl.Bus) -> None:
        for n in range(15):
            await bus.publish("even" if n % 2 == 0 else "odd", n)
        assert [message.decode() for message in bus.history()] == list(range(5, 15))
        assert [message.decode() for message in bus.history(3)] == [12, 13, 14]
        assert [message.decode() for message in bus.history(pattern="even")] == [6, 8, 10, 12, 14]
        assert bus.history(0) == []
        await bus.publish("large", b"x" * 5000)
        assert (bus.history(1)[0].payload, bus.history(1)[0].encoding) == (b"", "elided")

    on_bus(main, settings=tl.Settings(history=tl.History(max_messages=10)))

    async def without(bus: tl.Bus) -> None:
        await bus.publish("t")
        await bus.publish("t")
        assert bus.history() == []

    on_bus(without, settings=tl.Settings(history=tl.History(enabled=False)))


def test_explain_tells_each_subscribers_story() -> None:
    async def main(bus: tl.Bus) -> None:
        async with (
            bus.subscribe("t", name="reads") as reads,
            bus.subscribe("t", name="waits"),
            bus.subscribe("t", name="filters", where="priority > 60"),
            bus.subscribe("other", name="elsewhere"),
        ):
            message_id = await bus.publish("t")
            reads.try_recv()
            explanation = await bus.explain(message_id)
            assert str(explanation) == (
                f"message {message_id} on t\n"
                "  reads: delivered\n"
                "  waits: in flight (waits in the inbox)\n"
                "  filters: filtered (does not match 'priority > 60')"
            )
        after = {outcome.subscriber: outcome for outcome in (await bus.explain(message_id)).outcomes}
        assert after["waits"].fate is tl.Fate.DROPPED
        assert after["waits"].reason == "its subscriber left before taking it"
        assert after["reads"].fate is tl.Fate.DELIVERED
        unheard = await bus.publish("nobody")
        assert "had no subscribers" in str(await bus.explain(unheard))
        assert "not known here" in str(await bus.explain("nonsense"))

    on_bus(main)


def test_explain_in_the_middle_of_iteration() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            ids = await bus.publish_many("t", range(3))
            async for _ in stream:
                fates = [(await bus.explain(message_id)).outcomes[0].fate for message_id in ids]
                assert fates == [tl.Fate.DELIVERED, tl.Fate.IN_FLIGHT, tl.Fate.IN_FLIGHT]
                break

    on_bus(main)


def test_a_latecomer_is_not_said_to_have_had_what_came_before() -> None:
    async def main(bus: tl.Bus) -> None:
        before = await bus.publish("t")
        async with bus.subscribe("t") as stream:
            await bus.publish("t")
            await stream.recv()
            assert (await bus.explain(before)).outcomes == ()

    on_bus(main)


class Lane:
    """The part of a lane that a run needs."""

    topic = "a"
    has_subscribers = True

    def count_run(self, run: PlainRun) -> None:
        """Not used here."""


@pytest.mark.parametrize("seed", range(20))
def test_history_has_the_last_messages_however_they_left(seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.choice([1, 10, 40])
    history = MessageHistory(tl.History(max_messages=limit))
    sent: list[str] = []
    for _ in range(200):
        if chance.random() < 0.5:
            run = PlainRun(Lane(), "me", "text/plain", 100)
            # A bus appends to a run that is in its history already.
            history.add_run(run)
            count = chance.randrange(1, 15)
            ids = [f"{len(sent) + number}" for number in range(count)]
            run.ids += ids
            run.payloads += [b""] * count
            run.times += [0] * count
            sent += ids
        else:
            for _ in range(chance.choice([1, 3, 60])):
                history.add(tl.Message(id=str(len(sent)), topic="a"))
                sent.append(str(len(sent)))
        if chance.random() < 0.3:
            assert [message.id for message in history.last()] == sent[-limit:]
            assert len(history) == min(limit, len(sent))
        # Runs are kept whole: the oldest, and the one that is appended to.
        assert sum(map(_size, history._entries)) <= 2 * limit + 30


def _size(entry: tl.Message | PlainRun) -> int:
    return len(entry) if isinstance(entry, PlainRun) else 1
