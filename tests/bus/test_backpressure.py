from __future__ import annotations

import asyncio

import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline.message import Fields


def test_publisher_waits_for_room_and_is_woken_when_there_is() -> None:
    async def main(bus: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        async with bus.subscribe("t", capacity=2) as stream:
            for n in range(2):
                await bus.publish("t", n)
            assert loop.time() == 0
            waiting = asyncio.create_task(bus.publish("t", 2))
            await asyncio.sleep(5)
            assert not waiting.done()
            assert bus.pending() == 3
            freed_at = loop.time()
            assert stream.try_recv().decode() == 0
            await waiting
            assert loop.time() - freed_at < 0.1, "a publisher must not find out by polling"
            assert [stream.try_recv().decode() for _ in range(2)] == [1, 2]

    on_bus(main)


def test_slow_consumer_lets_a_blocked_publisher_go_on_within_100_ms_of_room() -> None:
    async def main(bus: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        freed: list[float] = []
        entered: list[float] = []

        async with bus.subscribe("t", capacity=1000) as stream:
            await bus.publish_many("t", range(1000))

            async def consume() -> None:
                for _ in range(40):
                    stream.try_recv()
                    freed.append(loop.time())
                    await asyncio.sleep(0.03)

            consumer = asyncio.create_task(consume())
            for _ in range(20):
                await bus.publish("t")
                entered.append(loop.time())
            await consumer
            # The first place is free at once; the waiting publisher must get it soon.
            assert entered[0] - freed[0] < 0.1
            assert all(entered[n] - freed[n] < 0.1 for n in range(20))

    on_bus(main)


def test_backpressure_timeout_after_30_seconds_with_growing_stretches(caplog: pytest.LogCaptureFixture) -> None:
    async def main(bus: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        async with bus.subscribe("t", capacity=1, name="stuck") as stream:
            await bus.publish("t", 0)
            start = loop.time()
            message = bus.message("t", 1)
            with (
                caplog.at_level("DEBUG", logger="trunkline.delivery"),
                pytest.raises(
                    tl.BackpressureTimeout, match=r"Backpressure timeout: stuck made no room within 30 s"
                ) as caught,
            ):
                await bus.post(message)
            assert loop.time() - start == pytest.approx(30.0)
            assert caught.value.subscriber == "stuck"
            assert caught.value.retryable
            (outcome,) = (await bus.explain(message.id)).outcomes
            assert outcome.fate is tl.Fate.DROPPED
            assert "backpressure timeout" in outcome.reason
            assert stream.depth == 1

    on_bus(main)
    # 0.1 + 0.2 + 0.4 + … + 12.8 = 25.5, then the rest: eight reports, not three hundred.
    assert len([record for record in caplog.records if "congested" in record.getMessage()]) == 8


def test_settings_of_waiting_are_kept() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t") as stream:
            assert stream._inbox.capacity == 3
            for _ in range(3):
                await bus.publish("t")
            waiters = [asyncio.create_task(bus.publish("t")) for _ in range(3)]
            await asyncio.sleep(0.1)
            with pytest.raises(tl.Congested):
                await bus.publish("t")
            results = await asyncio.gather(*waiters, return_exceptions=True)
            assert all(isinstance(result, tl.BackpressureTimeout) for result in results)
            assert asyncio.get_running_loop().time() == pytest.approx(2.0)

    on_bus(main, settings=tl.Settings(backpressure=tl.Backpressure(max_pending=3, timeout_s=2)))


def test_cancelled_publisher_leaves_the_line_and_a_fate() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t", capacity=1, name="full") as full, bus.subscribe("t", name="free") as free:
            await bus.publish("t", 0)
            message = bus.message("t", 1)
            waiting = asyncio.create_task(bus.post(message))
            await until(lambda: full.account().in_flight == 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            fates = {outcome.subscriber: outcome.fate for outcome in (await bus.explain(message.id)).outcomes}
            assert fates == {"full": tl.Fate.DROPPED, "free": tl.Fate.IN_FLIGHT}
            assert (full.depth, free.depth) == (1, 2)

    on_bus(main)


@pytest.mark.parametrize(
    ("overflow", "kept", "dropped"), [("drop_oldest", [2, 3, 4], [0, 1]), ("drop_newest", [0, 1, 2], [3, 4])]
)
def test_dropping_is_named_counted_and_explained(overflow: str, kept: list[int], dropped: list[int]) -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t", capacity=3, overflow=overflow) as stream:
            ids = [await bus.publish("t", n) for n in range(5)]
            assert [stream.try_recv().decode() for _ in range(3)] == kept
            assert stream.account().dropped == 2
            for n in dropped:
                (outcome,) = (await bus.explain(ids[n])).outcomes
                assert outcome.fate is tl.Fate.DROPPED
                assert overflow in outcome.reason

    on_bus(main)


def test_reject_tells_the_publisher_and_spares_the_others() -> None:
    async def main(bus: tl.Bus) -> None:
        async with (
            bus.subscribe("t", capacity=1, overflow="reject", name="picky") as picky,
            bus.subscribe("t") as other,
        ):
            await bus.publish("t", 0)
            priorities: list[Fields] = [{}, {"priority": 90}]
            for fields in priorities:
                with pytest.raises(tl.InboxFull, match="picky"):
                    await bus.publish("t", 1, **fields)
            with pytest.raises(tl.PartlyRefused) as caught:
                await bus.publish_many("t", [2, 3])
            assert len(caught.value.refused) == 2
            assert (picky.depth, other.depth) == (1, 5)
            assert picky.account().dropped == 4

    on_bus(main)


def test_slow_subscriber_that_drops_slows_nobody() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t", capacity=10, overflow="drop_oldest"), bus.subscribe("t") as quick:
            for n in range(1000):
                await bus.publish("t", n)
            assert asyncio.get_running_loop().time() == 0
            assert quick.depth == 1000

    on_bus(main)


def test_batch_of_a_hopeless_publisher_gives_up_once() -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t", capacity=2) as stream:
            with pytest.raises(tl.PartlyRefused) as caught:
                await bus.publish_many("t", range(5))
            assert [message.decode() for message, _ in caught.value.refused] == [2, 3, 4]
            assert asyncio.get_running_loop().time() == pytest.approx(30.0)
            assert [stream.try_recv().decode() for _ in range(2)] == [0, 1]
            for message, _ in caught.value.refused:
                assert (await bus.explain(message.id)).outcomes

    on_bus(main)


def test_failing_handler_does_not_grow_without_bound() -> None:
    """Messages that wait for their next attempt keep their place in the capacity."""

    async def main(bus: tl.Bus) -> None:
        @bus.on("t", capacity=10, overflow="drop_newest", retry=tl.Retry(attempts=2, delay_s=100, jitter=0))
        async def fails() -> None:
            raise RuntimeError

        for _ in range(100):
            await bus.publish("t")
            await asyncio.sleep(0.01)
        assert bus.pending() == 10

    on_bus(main, settings=tl.Settings(drain_s=0.1))


def test_a_publisher_that_has_waited_for_a_second_is_told_once_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("orders.*", capacity=2, name="billing") as stream, bus.subscribe(">") as others:
            await bus.publish_many("orders.placed", range(2))
            waiting = asyncio.create_task(bus.publish("orders.placed", 2))
            await asyncio.sleep(0.99)
            assert told() == []
            await asyncio.sleep(0.02)
            (text,) = told()
            assert all(word in text for word in ("orders.placed", "billing", "capacity"))
            # It stays full: one message in, one out. That is not logged again for any publisher.
            for n in range(3, 10):
                stream.try_recv()
                await waiting
                waiting = asyncio.create_task(bus.publish("orders.placed", n))
                await asyncio.sleep(2)
            assert len(told()) == 1
            # It has had room for as much as it holds: if it is full again, that is news.
            while stream.depth or not waiting.done():
                stream.try_recv()
                await asyncio.sleep(0)
            await bus.publish_many("orders.placed", range(2))
            waiting = asyncio.create_task(bus.publish("orders.placed", 2))
            await asyncio.sleep(2)
            assert len(told()) == 2
            stream.try_recv()
            await waiting
            assert others.depth

    on_bus(main)


def test_a_publisher_that_waits_for_less_than_a_second_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(bus: tl.Bus) -> None:
        async with bus.subscribe("t", capacity=1) as stream:
            await bus.publish("t", 0)
            waiting = asyncio.create_task(bus.publish("t", 1))
            await asyncio.sleep(0.9)
            stream.try_recv()
            await waiting
            await asyncio.sleep(5)
            assert not caplog.records

    on_bus(main)
