from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import msgspec
import pytest
from buses import on_bus, until

import trunkline as tl
from trunkline.delivery.dead_letters import Cause

pytestmark = pytest.mark.usefixtures("both_ways")


class Order(msgspec.Struct):
    id: str
    total: float = 0.0


def test_handler_gets_what_it_is_annotated_with() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[Any] = []

        @bus.on("t")
        async def typed(order: Order) -> None:
            seen.append(order)

        @bus.on("t")
        async def whole(message: tl.Message) -> None:
            seen.append(message.topic)

        @bus.on("t")
        async def both(message: tl.Message, order: Order) -> None:
            seen.append((message.topic, order.id))

        @bus.on("t")
        async def plain(value):  # type: ignore[no-untyped-def]  # no annotation is the test
            seen.append(value)

        @bus.on("t")
        async def nothing() -> None:
            seen.append("called")

        class Method:
            async def __call__(self, order: Order) -> None:
                seen.append(("object", order.id))

            async def handle(self, order: Order) -> None:
                seen.append(("method", order.id))

        async def with_more(prefix: str, order: Order) -> None:
            seen.append((prefix, order.id))

        bus.handle("t", Method())
        bus.handle("t", Method().handle)
        bus.handle("t", functools.partial(with_more, "partial"))
        await bus.publish("t", Order("a"))
        await until(lambda: len(seen) == 8)
        wanted = [
            Order("a"),
            "t",
            ("t", "a"),
            {"id": "a", "total": 0.0},
            "called",
            ("object", "a"),
            ("method", "a"),
            ("partial", "a"),
        ]
        assert sorted(map(str, seen)) == sorted(map(str, wanted))

    on_bus(main)


def test_handlers_nobody_can_call_are_refused_at_registration() -> None:
    async def two(a: int, b: int) -> None: ...

    async def keyword_only(a: int, *, b: int) -> None: ...

    async def main(bus: tl.Bus) -> None:
        for function in (two, keyword_only):
            with pytest.raises(tl.UsageError):
                bus.handle("t", function)
        assert bus.subscribers("t") == []

    on_bus(main)


def test_blocking_handler_runs_in_a_thread() -> None:
    async def main(bus: tl.Bus) -> None:
        threads: list[threading.Thread] = []

        @bus.on("t")
        def work(value: int) -> int:
            threads.append(threading.current_thread())
            return value + 1

        assert await bus.request("t", 1) == 2
        assert threads[0] is not threading.main_thread()

    on_bus(main)


def test_failing_handler_is_retried_with_pauses_and_then_dead() -> None:
    async def main(bus: tl.Bus) -> None:
        times: list[float] = []
        retry = tl.Retry(attempts=4, delay_s=1, factor=2, jitter=0)

        @bus.on("t", retry=retry)
        async def fails(message: tl.Message) -> None:
            times.append(asyncio.get_running_loop().time())
            raise ValueError(f"attempt {message.attempts}")

        message_id = await bus.publish("t", {"n": 1})
        await until(lambda: bus.dead_letters)
        assert times == pytest.approx([0, 1, 3, 7])
        (letter,) = bus.dead_letters
        assert letter.cause is Cause.HANDLER_FAILED
        assert letter.reason == "ValueError: attempt 3"
        assert letter.subscriber == "fails"
        assert letter.message.id == message_id
        assert letter.message.attempts == 4
        assert [attempt.number for attempt in letter.attempts] == [1, 2, 3, 4]
        assert "raise ValueError" in letter.traceback
        (outcome,) = (await bus.explain(message_id)).outcomes
        assert outcome.fate is tl.Fate.DEAD
        assert "attempt 3" in outcome.reason

    on_bus(main)


def test_jitter_spreads_the_pauses() -> None:
    async def main(bus: tl.Bus) -> None:
        times: list[float] = []

        @bus.on("t", retry=tl.Retry(attempts=2, delay_s=1, jitter=0.5), concurrency=20)
        async def fails(message: tl.Message) -> None:
            if message.attempts:
                times.append(asyncio.get_running_loop().time())
            raise ValueError

        await bus.publish_many("t", range(20))
        await until(lambda: len(bus.dead_letters) == 20)
        assert len(set(times)) == 20
        assert all(0.5 <= at <= 1.5 for at in times)

    on_bus(main)


def test_explain_follows_a_message_through_its_retries() -> None:
    async def main(bus: tl.Bus) -> None:
        release = asyncio.Event()

        @bus.on("t", retry=tl.Retry(attempts=2, delay_s=10))
        async def slow(message: tl.Message) -> None:
            if message.attempts == 0:
                await release.wait()
                raise ConnectionError("gone")

        message_id = await bus.publish("t")
        await asyncio.sleep(0.1)
        assert "being handled, attempt 1" in str(await bus.explain(message_id))
        release.set()
        await asyncio.sleep(0.1)
        assert "failed 1 time (ConnectionError: gone), waits to retry" in str(await bus.explain(message_id))
        assert bus.pending() == 1
        await asyncio.sleep(20)
        assert (await bus.explain(message_id)).outcomes[0].fate is tl.Fate.DELIVERED
        assert bus.pending() == 0

    on_bus(main)


def test_invalid_payload_is_a_dead_letter_with_the_field_named() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[Order] = []

        @bus.on("t")
        async def handle(order: Order) -> None:
            seen.append(order)

        await bus.publish("t", {"id": 5})
        await bus.publish("t", b"\xc1 not msgpack", content_type="application/msgpack")
        await bus.publish("t", Order("fine"))
        await until(lambda: seen)
        wrong, garbage = bus.dead_letters
        assert wrong.cause is garbage.cause is Cause.INVALID_PAYLOAD
        assert "`$.id`" in wrong.reason
        assert wrong.message.attempts == 1
        assert seen == [Order("fine")]

    on_bus(main)


def test_reject_and_never_are_final() -> None:
    async def main(bus: tl.Bus) -> None:
        calls: list[str] = []

        @bus.on("reject")
        async def rejects() -> None:
            calls.append("reject")
            raise tl.Reject("not for us")

        @bus.on("never", retry=tl.Retry(attempts=5, never=(ZeroDivisionError,)))
        async def divides() -> float:
            calls.append("never")
            return 1 / 0

        await bus.publish("reject")
        await bus.publish("never")
        await until(lambda: len(bus.dead_letters) == 2)
        assert sorted(calls) == ["never", "reject"]
        assert {letter.cause for letter in bus.dead_letters} == {Cause.REJECTED, Cause.HANDLER_FAILED}

    on_bus(main)


def test_dead_letter_is_replayed_to_the_one_that_failed_as_it_was_or_edited() -> None:
    async def main(bus: tl.Bus) -> None:
        good: list[Order] = []
        other: list[Order] = []
        broken = True

        @bus.on("t", retry=tl.Retry(attempts=1))
        async def fragile(order: Order) -> None:
            if broken or order.total < 0:
                raise ValueError("no")
            good.append(order)

        @bus.on("t")
        async def healthy(order: Order) -> None:
            other.append(order)

        first = await bus.publish("t", Order("a", 1))
        second = await bus.publish("t", Order("b", -1))
        await until(lambda: len(bus.dead_letters) == 2)
        broken = False
        letters = list(bus.dead_letters)
        bus.dead_letters.replay(letters[0])
        bus.dead_letters.replay(letters[1], payload=Order("b", 1))
        await until(lambda: len(good) == 2)
        assert sorted(order.id for order in good) == ["a", "b"]
        assert len(other) == 2, "the healthy subscriber must not see it again"
        assert len(bus.dead_letters) == 0
        for message_id in (first, second):
            assert {outcome.fate for outcome in (await bus.explain(message_id)).outcomes} == {tl.Fate.DELIVERED}
        assert bus.stats().account.dead == 0
        with pytest.raises(tl.UsageError, match="replayed or removed"):
            bus.dead_letters.replay(letters[0])

    on_bus(main)


def test_replay_to_one_that_is_gone_keeps_the_letter() -> None:
    async def main(bus: tl.Bus) -> None:
        async def fails() -> None:
            raise tl.Reject("no")

        handler = bus.handle("t", fails)
        await bus.publish("t")
        await until(lambda: bus.dead_letters)
        await handler.aclose()
        (letter,) = bus.dead_letters
        with pytest.raises(tl.UnknownHandler):
            bus.dead_letters.replay(letter)
        assert len(bus.dead_letters) == 1

    on_bus(main)


def test_dead_letters_are_bounded_at_1000_first_in_first_out() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("t")
        async def rejects() -> None:
            raise tl.Reject("no")

        ids = await bus.publish_many("t", range(1003))
        await until(lambda: bus.dead_letters.total == 1003)
        assert [letter.message.id for letter in bus.dead_letters] == ids[3:]
        assert bus.dead_letters.evicted == 3

    on_bus(main)


def test_dead_letters_are_announced_to_subscribers() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("orders.placed")
        async def rejects() -> None:
            raise tl.Reject("no")

        @bus.on("_dead.>", name="undertaker")
        async def fails_too() -> None:
            raise tl.Reject("not again")

        async with bus.subscribe("_dead.orders.>") as dead:
            message_id = await bus.publish("orders.placed", {"n": 1})
            notice = await dead.recv()
            assert notice is not None
            assert notice.correlation_id == message_id
            assert notice.headers == {
                "subscriber": "test_dead_letters_are_announced_to_subscribers.main.rejects".rpartition(".")[2],
                "cause": "rejected by the handler",
                "reason": "Reject: no",
            }
            assert notice.decode() == {"n": 1}
            await until(lambda: len(bus.dead_letters) == 2)
            await asyncio.sleep(10)
            assert len(bus.dead_letters) == 2, "the death of a notice must not be announced"

    on_bus(main)


def test_one_failing_handler_does_not_touch_the_others() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[int] = []

        @bus.on("t")
        async def fails() -> None:
            raise RuntimeError

        @bus.on("t")
        async def works(n: int) -> None:
            seen.append(n)

        await bus.publish_many("t", range(50))
        await until(lambda: len(seen) == 50)
        assert seen == list(range(50))

    on_bus(main)


def test_handler_at_work_keeps_its_lease_and_a_slow_one_times_out() -> None:
    async def main(bus: tl.Bus) -> None:
        runs: list[str] = []

        @bus.on("long", lease_s=1)
        async def patient() -> None:
            runs.append("long")
            await asyncio.sleep(100)

        @bus.on("stuck", timeout_s=2, retry=tl.Retry(attempts=2, delay_s=0.1))
        async def stuck() -> None:
            runs.append("stuck")
            await asyncio.Event().wait()

        @bus.on("own", timeout_s=50, retry=tl.Retry(attempts=1))
        async def own_timeout() -> None:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()

        for topic in ("long", "stuck", "own"):
            await bus.publish(topic)
        await asyncio.sleep(150)
        assert sorted(runs) == ["long", "stuck", "stuck"]
        assert {letter.cause for letter in bus.dead_letters} == {Cause.HANDLER_TIMEOUT, Cause.HANDLER_FAILED}

    on_bus(main)


def test_message_that_expires_between_attempts_is_expired_not_dead() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("t", retry=tl.Retry(attempts=3, delay_s=10))
        async def fails() -> None:
            raise RuntimeError

        message_id = await bus.publish("t", ttl_s=5)
        await asyncio.sleep(30)
        assert [outcome.fate for outcome in (await bus.explain(message_id)).outcomes] == [tl.Fate.EXPIRED]

    on_bus(main)


def test_requires_ack_is_answered_with_an_ack_message() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("t")
        async def works() -> None: ...

        async with bus.subscribe("acks") as acks:
            message_id = await bus.publish("t", requires_ack=True, reply_to="acks")
            ack = await acks.recv()
            assert ack is not None
            assert (ack.type, ack.request_id) == (tl.MessageType.ACK, message_id)

    on_bus(main)


def test_an_ack_of_a_stream_is_published_and_a_dead_letter_is_an_error() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("fails", retry=tl.Retry(attempts=2))
        async def fails() -> None:
            raise ValueError("broken")

        async with bus.subscribe("acks") as acks, bus.subscribe("t") as messages, bus.subscribe("other") as others:

            async def told() -> tuple[tl.MessageType, str | None, object]:
                answer = await acks.recv(timeout_s=60)
                assert answer is not None
                return answer.type, answer.request_id, answer.decode() if answer.type is tl.MessageType.ERROR else None

            ids = [await bus.publish("t", n, requires_ack=True, reply_to="acks") for n in range(2)]
            taken = [await messages.recv() for _ in ids]
            assert acks.depth == 0
            assert taken[0] is not None
            assert taken[1] is not None
            assert messages.ack(taken[0])
            assert await told() == (tl.MessageType.ACK, ids[0], None)
            messages.reject(taken[1], "no such order")
            error = {"error_type": "Reject", "detail": "no such order"}
            assert await told() == (tl.MessageType.ERROR, ids[1], error)
            failed = await bus.publish("fails", requires_ack=True, reply_to="acks", request_id="r1")
            assert failed
            assert await told() == (tl.MessageType.ERROR, "r1", {"error_type": "ValueError", "detail": "broken"})
            # Without a request for acknowledgement, or a topic for it, no notice is sent.
            await bus.publish("fails", reply_to="acks")
            await bus.publish("other", requires_ack=True)
            assert (other := await others.recv()) is not None
            assert others.ack(other)
            # A lease that ended is no acknowledgement.
            assert not messages.ack(taken[0])
            await asyncio.sleep(60)
            assert acks.depth == 0

    on_bus(main)


def test_concurrency_runs_so_many_at_once_and_one_keeps_order() -> None:
    async def main(bus: tl.Bus) -> None:
        running = peak = 0

        @bus.on("many", concurrency=4)
        async def many() -> None:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(1)
            running -= 1

        order: list[int] = []

        @bus.on("one")
        async def one(n: int) -> None:
            await asyncio.sleep(1 / (n + 1))
            order.append(n)

        await bus.publish_many("many", range(10))
        await bus.publish_many("one", range(10))
        await asyncio.sleep(20)
        assert peak == 4
        assert order == list(range(10))

    on_bus(main)


def test_group_shares_and_a_dead_members_work_goes_on() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[tuple[str, int]] = []

        def member(name: str) -> Any:
            async def work(n: int) -> None:
                await asyncio.sleep(1)
                seen.append((name, n))

            return bus.handle("jobs", work, group="workers", name=name)

        handlers = {name: member(name) for name in ("a", "b", "c")}
        await bus.publish_many("jobs", range(30))
        await asyncio.sleep(2.5)
        await handlers["a"].aclose()
        await asyncio.sleep(60)
        assert sorted(n for _, n in seen) == list(range(30))
        assert len({name for name, _ in seen}) == 3

    on_bus(main)


def test_names_are_told_apart() -> None:
    async def main(bus: tl.Bus) -> None:
        async def work() -> None: ...

        assert bus.handle("t", work).name == "work"
        assert bus.handle("t", work).name == "work#2"
        with pytest.raises(tl.DuplicateName):
            bus.handle("t", work, name="work")
        assert bus.subscribers("t") == ["work", "work#2"]

    on_bus(main)


def test_what_is_cancelled_inside_a_handler_is_its_failure_not_the_end_of_it() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[int] = []

        @bus.on("t", retry=tl.Retry(attempts=1))
        async def work(n: int) -> None:
            if n == 0:
                inner = asyncio.create_task(asyncio.sleep(100))
                inner.cancel()
                await inner
            seen.append(n)

        await bus.publish_many("t", [0, 1])
        await until(lambda: seen == [1])
        (letter,) = bus.dead_letters
        assert letter.error_type == "CancelledError"

    on_bus(main)


def test_answer_that_is_refused_does_not_repeat_the_work_nor_end_the_handler() -> None:
    async def no_answers(batch: tl.hooks.Batch, forward: tl.hooks.Forward) -> None:
        if batch[0].type in (tl.MessageType.RESPONSE, tl.MessageType.ERROR, tl.MessageType.ACK):
            raise tl.RateLimited("answers", 1)
        await forward(batch)

    async def main(bus: tl.Bus) -> None:
        calls: list[str] = []

        @bus.on("well")
        async def well() -> str:
            calls.append("well")
            return "done"

        @bus.on("ill", retry=tl.Retry(attempts=1))
        async def ill() -> None:
            calls.append("ill")
            raise ValueError

        for _ in range(2):
            assert await bus.try_request("well", timeout_s=1) is None
            assert await bus.try_request("ill", timeout_s=1) is None
            await bus.publish("well", requires_ack=True, reply_to="acks")
        await bus.quiet()
        assert sorted(calls) == ["ill"] * 2 + ["well"] * 4
        assert bus.accounts()["well"].delivered == 4

    on_bus(main, hooks=[no_answers])


def test_trouble_around_the_function_does_not_end_the_handler() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[int] = []

        @bus.on("t", retry=tl.Retry(attempts=1))
        async def work(n: int) -> None:
            seen.append(n)

        def listener(message: tl.Message, well: bool) -> None:
            if message.decode() == 0:
                raise RuntimeError("a listener that fails")

        bus.on_handled(listener)
        await bus.publish_many("t", [0, 1])
        await until(lambda: seen == [0, 1])
        await bus.quiet()

    on_bus(main)


def test_error_that_cannot_speak_is_answered_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def main(bus: tl.Bus) -> None:
        @bus.on("t", retry=tl.Retry(attempts=1))
        async def work() -> None:
            raise Mute

        with pytest.raises(tl.RequestFailed, match="Mute"):
            await bus.request("t")

    on_bus(main)


def test_registering_without_an_event_loop_says_what_to_do() -> None:
    async def work() -> None: ...

    bus = tl.connect()
    with pytest.raises(tl.UsageError, match="inside `async with"):
        bus.handle("t", work)
    assert bus.subscribers("t") == []


def test_dead_letter_whose_notice_would_be_malformed_is_kept_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def main(bus: tl.Bus) -> None:
        topic = "x" * 255

        @bus.on(topic)
        async def rejects() -> None:
            raise tl.Reject("no")

        async with bus.subscribe("_dead.>"):
            await bus.publish(topic)
            await until(lambda: bus.dead_letters)
            await asyncio.sleep(1)

    on_bus(main)
    assert any("the notice about" in message for message in caplog.messages)
