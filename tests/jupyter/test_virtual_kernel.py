"""The client of a kernel in virtual time, on frames of a real one: no early message is lost, nothing is mixed up."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.jupyter.scripted import Faults, ScriptedLink, kernel_of, world_of
from trunkline.delivery.requests import Why
from trunkline.jupyter.errors import KernelClosed, KernelDied, KernelNotStarted
from trunkline.jupyter.kernel import Kernel
from trunkline.settings import Orphans
from trunkline.testing import Simulation, simulate

STARTS = 1000


def expected(result: Any, mark: str = "") -> None:
    assert result.ok
    assert result.text == "2"
    assert result.stdout == (f"{mark}\n" if mark else "hello\n")
    assert [output["output_type"] for output in result.outputs] == [
        "stream",
        "stream",
        "display_data",
        "execute_result",
    ]


def test_a_thousand_starts_lose_nothing() -> None:
    """The subscription becomes live, and the kernel starts, at any time; with a welcome, or without one."""

    async def start(simulation: Simulation, seed: int) -> None:
        chance = simulation.random
        link = ScriptedLink(
            world_of(simulation),
            chance,
            Faults(delay_s=lambda: chance.choice([0.0, 0.001, 0.05])),
            live_after_s=chance.choice([0.0, 0.01, 0.3, 2.0]) * chance.random(),
            up_after_s=chance.choice([0.0, 0.5, 3.0]) * chance.random(),
            welcomes=seed % 3 == 0,
        )
        kernel, _ = kernel_of(simulation, link)
        await kernel.open()
        execution = await kernel.execute("print('hello')")
        expected(await execution.result())
        assert [message.content["execution_state"] async for message in execution.status] == ["busy", "idle"]
        await kernel.aclose()

    async def starts(simulation: Simulation) -> None:
        for number in range(STARTS):
            await start(simulation, number)

    simulate(starts, seed=7)


def test_a_client_without_the_handshake_would_lose_beginnings() -> None:
    """The scripted kernel loses early messages like a real one: a client that does not wait misses them."""

    async def main(simulation: Simulation) -> None:
        link = ScriptedLink(world_of(simulation), simulation.random, live_after_s=0.2, welcomes=False)
        kernel, _ = kernel_of(simulation, link)
        kernel.client.ready.set()
        await link.open(kernel.client)
        execution = await kernel.execute("print('hello')")
        result = await execution.result(timeout_s=5)
        assert not result.complete
        assert result.missing == ("the idle status",)
        assert result.outputs == ()
        await kernel.aclose()

    simulate(main)


@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_executions_at_once_each_get_their_own(seed: int) -> None:
    async def main(simulation: Simulation) -> None:
        chance = simulation.random
        link = ScriptedLink(
            world_of(simulation),
            chance,
            Faults(twice=lambda: chance.random() < 0.2, delay_s=lambda: chance.random() * 0.1),
        )
        kernel, _ = kernel_of(simulation, link)
        await kernel.open()

        async def one(number: int) -> None:
            await asyncio.sleep(chance.random())
            async with kernel.execute("…", metadata={"mark": f"mark {number}"}) as execution:
                expected(await execution.result(), f"mark {number}")

        await asyncio.gather(*(one(number) for number in range(100)))
        stats = kernel.stats()
        assert stats.active_requests == 0
        assert [orphan.message.topic for orphan in kernel.orphans] == ["kernel.k1.iopub.iopub_welcome"]
        assert stats.faults["duplicate"] > 0
        await kernel.aclose()

    simulate(main, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_dropped_is_missing_and_said_so(seed: int) -> None:
    """Whatever is lost: a result is complete and has all messages, or names what is missing."""

    async def main(simulation: Simulation) -> None:
        chance = simulation.random
        link = ScriptedLink(world_of(simulation), chance)
        kernel, _ = kernel_of(simulation, link)
        await kernel.open()
        link.faults = Faults(drop=lambda: chance.random() < 0.2)
        for _ in range(20):
            execution = await kernel.execute("…")
            result = await execution.result(timeout_s=1)
            assert result.complete == (not result.missing)
            assert ("the idle status" in result.missing) == (result.timings.idle_s is None)
            assert ("the execute_reply" in result.missing) == (result.timings.replied_s is None)
            execution.close()
        # What the kernel was asked about the last one is let go of, too.
        await asyncio.sleep(1)
        assert kernel.stats().active_requests == 0
        await kernel.aclose()

    simulate(main, seed=seed)


def test_a_kernel_that_never_answers_is_not_started() -> None:
    async def main(simulation: Simulation) -> None:
        link = ScriptedLink(world_of(simulation), simulation.random, up_after_s=1000)
        kernel, _ = kernel_of(simulation, link)
        with pytest.raises(KernelNotStarted, match=r"has not answered for 60 s: it sent nothing on iopub"):
            await kernel.open()
        await kernel.aclose()

    simulate(main)


def test_a_kernel_that_dies_ends_everything_at_once() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        await kernel.open()
        link.faults = Faults(delay_s=lambda: 10.0)
        executions = [await kernel.execute("…") for _ in range(3)]
        asking = asyncio.ensure_future(kernel.complete("pri"))
        await asyncio.sleep(0.1)
        before = simulation.now()
        kernel.lost("its process was ended by SIGKILL")
        for execution in executions:
            with pytest.raises(KernelDied, match="SIGKILL") as caught:
                await execution.result()
            assert caught.value.result is not None
            assert not caught.value.result.complete
        with pytest.raises(KernelDied):
            await asking
        assert simulation.now() == before
        with pytest.raises(KernelDied):
            await kernel.execute("more")
        await kernel.aclose()
        with pytest.raises(KernelClosed):
            await kernel.execute("more")

    simulate(main)


def test_requests_and_orphans_are_cleaned_on_their_schedule(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(5, "trunkline.jupyter")

    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation, ScriptedLink(world_of(simulation), simulation.random, welcomes=False))
        await kernel.open()
        link.deaf = True
        execution = await kernel.execute("…")
        link.say("iopub", "status", {"execution_state": "starting"}, {})
        link.say("iopub", "stream", {"name": "stdout", "text": "?"}, {"msg_id": "x"})
        assert [orphan.why for orphan in kernel.orphans] == [Why.NO_REQUEST_ID, Why.EARLY]
        assert kernel.stats().active_requests == 1
        await asyncio.sleep(89)
        assert kernel.stats().orphan_messages == 2
        await asyncio.sleep(2)
        assert kernel.stats().orphan_messages == 0
        await asyncio.sleep(300)
        assert kernel.stats().active_requests == 0
        assert kernel.stats().stale_requests == 1
        result = await execution.result()
        assert result.missing == ("the idle status", "the execute_reply")
        link.say("iopub", "status", {"execution_state": "idle"}, {"msg_id": execution.id, "session": kernel.session})
        assert [orphan.why for orphan in kernel.orphans] == [Why.STALE]
        await kernel.aclose()

    simulate(main)
    levels = {record.levelno: record.getMessage() for record in caplog.records}
    assert "reached its time limit of 300 s" in levels[logging.WARNING]
    assert any("2 orphans" in record.getMessage() for record in caplog.records if record.levelno == 5)
    assert any(
        "1 active requests, 2 orphan messages, 0 global subscribers" in record.getMessage()
        for record in caplog.records
        if record.levelno == logging.DEBUG
    )


def test_other_numbers_are_taken_as_they_are_given() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(
            simulation,
            request_timeout_s=120.0,
            cleanup_interval_s=15.0,
            orphans=Orphans(max_messages=500, max_age_s=30.0),
        )
        await kernel.open()
        link.deaf = True
        execution = await kernel.execute("…")
        for number in range(600):
            link.say("iopub", "stream", {"name": "stdout", "text": str(number)}, {})
        assert kernel.stats().orphan_messages == 500
        await asyncio.sleep(46)
        assert kernel.stats().orphan_messages == 0
        assert kernel.stats().active_requests == 1
        await asyncio.sleep(90)
        assert kernel.stats().active_requests == 0
        assert not (await execution.result()).complete
        await kernel.aclose()

    simulate(main)


def test_a_client_that_comes_again_takes_up_what_it_asked(caplog: pytest.LogCaptureFixture) -> None:
    """The request came from another client, or an earlier run of this one: no message is lost, in any order."""

    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        await kernel.open()
        parent = {"msg_id": "r1", "session": "earlier", "username": "ada", "msg_type": "execute_request"}
        link.say("iopub", "status", {"execution_state": "busy"}, parent)
        link.say("iopub", "stream", {"name": "stdout", "text": "one "}, parent)
        (other,) = kernel.others
        assert other.who == "ada"
        execution = kernel.resume("r1")
        link.say("iopub", "stream", {"name": "stdout", "text": "two"}, parent)
        link.say("iopub", "status", {"execution_state": "idle"}, parent)
        result = await execution.result()
        assert result.stdout == "one two"
        assert [message.content["text"] async for message in execution.stream] == ["one ", "two"]
        assert kernel.others == []
        await kernel.aclose()

    simulate(main)


def test_early_messages_of_our_own_are_claimed_in_order() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation, ScriptedLink(world_of(simulation), simulation.random, welcomes=False))
        await kernel.open()
        request = kernel.client.compose("shell", "execute_request", {"code": "…"})
        parent = {"msg_id": request.id, "session": kernel.session}
        for number in range(5):
            link.say("iopub", "stream", {"name": "stdout", "text": f"{number} "}, parent)
        link.say("iopub", "execute_input", {"code": "…", "execution_count": 3}, parent)
        assert {orphan.why for orphan in kernel.orphans} == {Why.EARLY}
        assert len(kernel.orphans.find(request_id=request.id)) == 6
        execution = kernel.resume(request.id)
        link.say("iopub", "stream", {"name": "stdout", "text": "last"}, parent)
        assert execution.partial().stdout == "0 1 2 3 4 last"
        assert execution.partial().execution_count == 3
        assert len(kernel.orphans) == 0
        assert kernel.stats().orphans_claimed == 6
        await kernel.aclose()

    simulate(main)


def test_closing_ends_whoever_waits() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        await kernel.open()
        link.deaf = True
        execution = await kernel.execute("…")

        async def read() -> list[Any]:
            return [message async for message in execution.stream]

        reading = asyncio.ensure_future(read())
        async with kernel.subscribe() as everything:
            await asyncio.sleep(1)
            await kernel.aclose()
            assert await reading == []
            assert await everything.recv() is None

    simulate(main)


def test_cancelled_the_request_is_gone() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        await kernel.open()
        link.deaf = True

        async def work() -> None:
            async with kernel.execute("…") as execution:
                await execution.result()

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        assert kernel.stats().active_requests == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert kernel.stats().active_requests == 0
        await kernel.aclose()

    simulate(main)


def test_a_kernel_is_a_block() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        async with kernel:
            assert isinstance(kernel, Kernel)
        assert link.muted

    simulate(main)
