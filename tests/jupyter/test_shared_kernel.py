"""A kernel on the bus: its traffic on topics, other clients that use it, and a client that reconnects."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.jupyter.real import run
from tests.jupyter.scripted import kernel_of
from trunkline.jupyter import KernelSettings, attach, join, start_kernel, start_kernel_blocking
from trunkline.jupyter.blocking import join_blocking
from trunkline.jupyter.publisher import KernelPublisher
from trunkline.testing import Simulation, simulate, world


def test_its_traffic_is_on_topics_in_order() -> None:
    async def main() -> None:
        async with tl.connect(name="person") as bus, bus.subscribe("kernel.>") as everything:
            async with start_kernel(bus=bus) as kernel:
                await kernel.run("print('hello'); 1")
            messages = [everything.try_recv() for _ in range(everything.depth)]
            prefix = f"kernel.{kernel.id}."
            assert all(message.topic.startswith(prefix) for message in messages)
            (asked,) = [message for message in messages if message.topic.endswith("shell.execute_request")]
            assert asked.type is tl.MessageType.REQUEST
            assert asked.decode()["content"]["code"] == "print('hello'); 1"
            answers = [message for message in messages if message.request_id == asked.id and message is not asked]
            iopub = [message.topic.removeprefix(prefix) for message in answers if ".iopub." in message.topic]
            assert iopub == [
                "iopub.status",
                "iopub.execute_input",
                "iopub.stream",
                "iopub.execute_result",
                "iopub.status",
            ]
            (reply,) = [message for message in answers if message.type is tl.MessageType.RESPONSE]
            assert reply.topic == f"{prefix}shell.execute_reply"
            assert kernel.stats().unpublished == 0

    run(main())


def test_others_use_it_over_a_hub(tmp_path: Path) -> None:
    """A person's kernel, and an agent in another process: both execute, send requests, and give input."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        async with (
            tl.connect(place, name="person", embed=True) as bus,
            start_kernel(bus=bus, share=True) as kernel,
            tl.connect(place, name="agent") as theirs,
            join(theirs, kernel.id) as shared,
        ):
            await kernel.run("x = 20")
            result = await shared.run("print(x + 1); x + 2")
            assert (result.ok, result.stdout, result.text) == (True, "21\n", "22")
            assert (await shared.run("print(input('? '))", on_input=lambda prompt, _: prompt * 2)).stdout == "? ? \n"
            assert (await shared.complete("pri"))["matches"]
            both = await asyncio.gather(*(each.run(f"{n}") for n, each in enumerate([kernel, shared] * 10)))
            assert [each.text for each in both] == [str(n) for n in range(20)]
            seen = [other.code for other in kernel.others]
            assert "print(x + 1); x + 2" in seen
            failed = await shared.run("1/0")
            assert failed.error is not None
            sleeping = await shared.execute("print('begun', flush=True); import time; time.sleep(60)")
            assert await sleeping.stream.recv(timeout_s=10) is not None
            await shared.interrupt()
            interrupted = await sleeping.result(timeout_s=10)
            assert interrupted.error is not None
            assert interrupted.error.ename == "KeyboardInterrupt"
            with pytest.raises(tl.Unsupported):
                await shared.restart()

    run(main())


def test_nobody_shares_it() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation)) as bus:
            with pytest.raises(
                tl.KernelNotStarted, match=r"the kernel 'nobody' is not shared on this bus \(shared: none\)"
            ):
                await join(bus, "nobody")

    simulate(main)


def test_what_is_published_by_strangers_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tl.connect() as bus, start_kernel(bus=bus, share=True) as kernel, join(bus, kernel.id) as shared:
            await bus.publish(f"kernel.{kernel.id}.shell.execute_request", {"no": "message"})
            await bus.publish(f"kernel.{kernel.id}.iopub.stream", b"\xff")
            await bus.publish(f"kernel.{kernel.id}.whatever", b"")
            assert (await shared.run("1")).text == "1"
            assert shared.stats().faults == {"malformed": 2}

    run(main())
    assert "cannot be sent to the kernel" in caplog.text


def test_sharing_needs_a_bus() -> None:
    async def main() -> None:
        with pytest.raises(tl.UsageError, match="pass bus="):
            await start_kernel(share=True)

    run(main())


def test_a_client_that_comes_again_has_missed_nothing(tmp_path: Path) -> None:
    """It leaves during an execution, reconnects with its name, and gets everything once."""

    async def main() -> None:
        async with (
            tl.connect("memory:", journal=tmp_path / "journal") as bus,
            start_kernel(bus=bus, share=True) as kernel,
        ):
            code = "import time\nfor n in range(20): print(n, flush=True); time.sleep(0.03)"
            seen: list[str] = []
            async with join(bus, kernel.id, name="notebook", start="beginning") as first:
                execution = await first.execute(code)
                for _ in range(3):
                    message = await execution.stream.recv(timeout_s=10)
                    assert message is not None
                    seen.append(message.content["text"])
            await asyncio.sleep(0.2)
            async with join(bus, kernel.id, name="notebook") as second:
                again = second.resume(execution.id)
                result = await again.result(timeout_s=20)
                assert result.complete
                lines = [line for text in seen for line in text.split()]
                rest = result.stdout.split()
                # What the first had taken from the bus, it may not have read; nothing is there twice.
                assert rest == [str(n) for n in range(20)][-len(rest) :]
                assert lines == [str(n) for n in range(len(lines))]
            async with join(bus, kernel.id, start="beginning") as third:
                whole = await third.resume(execution.id).result(timeout_s=20)
                assert whole.stdout.split() == [str(n) for n in range(20)]
                assert whole.complete

    run(main())


def test_the_record_outlives_the_kernel(tmp_path: Path) -> None:
    """The kernel's messages are in the journal: a reader finds them there after the kernel has ended."""
    journal = tmp_path / "journal"
    wanted = {"status", "execute_input", "stream", "execute_result", "execute_reply"}

    async def live() -> str:
        async with tl.connect("memory:", journal=journal) as bus, start_kernel(bus=bus) as kernel:
            execution = await kernel.execute("print('kept'); 7")
            await execution.result()
            return execution.id

    asked = run(live())

    async def read() -> list[tl.Message]:
        async with (
            tl.connect("memory:", journal=journal) as bus,
            bus.subscribe("kernel.>", name="reader", durable=True, start="beginning") as messages,
        ):
            found = []
            while (message := await messages.recv(timeout_s=5)) is not None:
                messages.ack(message)
                if message.request_id == asked:
                    found.append(message)
                # The reply and the output come over two sockets, in any order.
                if wanted <= {message.topic.split(".")[-1] for message in found}:
                    break
            return found

    kinds = [message.topic.split(".")[-1] for message in run(read())]
    assert kinds[0] == "execute_request"
    assert wanted <= set(kinds)


def test_a_bus_that_refuses_costs_the_record_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def main(simulation: Simulation) -> None:
        settings = tl.Settings(max_message_bytes=500)
        async with tl.connect(world=world(simulation), settings=settings) as bus:
            kernel, _ = kernel_of(simulation)
            kernel.client.publisher = KernelPublisher(bus, kernel.session, 100)
            await kernel.open()
            execution = await kernel.execute("print('hello')")
            assert (await execution.result()).ok
            await kernel.aclose()
            assert kernel.stats().unpublished > 0
            assert kernel.stats().published > 0

    simulate(main)
    assert "no longer reach the bus" in caplog.text


def test_the_blocking_face_on_a_bus() -> None:
    with (
        tl.connect_blocking() as bus,
        start_kernel_blocking(bus=bus, share=True) as kernel,
        join_blocking(bus, kernel.id) as shared,
    ):
        assert shared.run("1 + 1").text == "2"
        assert kernel.run("2 + 1").text == "3"


def test_attached_and_shared() -> None:
    async def main() -> None:
        async with (
            tl.connect() as bus,
            start_kernel() as kernel,
            attach(kernel.connection_file, bus=bus, share=True, settings=KernelSettings(heartbeat_s=0.1)),
        ):
            kernel_id = Path(str(kernel.connection_file)).stem.removeprefix("kernel-")
            async with join(bus, kernel_id) as shared:
                assert (await shared.run("'over the bus'")).text == "'over the bus'"

    run(main())
