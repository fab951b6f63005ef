"""A subscriber that is too slow for NATS: messages that the server or nats-py drops are counted and logged."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.hub.hubs import until
from tests.stopped import stop
from trunkline.brokers.engine.broker import EngineBroker
from trunkline.brokers.nats import straight
from trunkline.brokers.nats.driver import NatsDriver
from trunkline.plural import counted

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[2]
PART_BYTES = 256 * 1024


@pytest.mark.slow
def test_a_subscriber_that_the_server_cuts_off(tmp_path: Path) -> None:
    """Its process is stopped, as if it were suspended, until the server closes its connection."""

    async def test() -> None:
        with NatsServer(tmp_path, jetstream=False, extra="max_pending: 9MB") as server:
            where = f"{server.url}?connect_s=60"
            listener = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.brokers.engine_listener", where, "t"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            try:
                assert listener.stdout is not None
                assert await listener.stdout.readline() == b"ready\n"
                ended = asyncio.ensure_future(listener.communicate())
                async with tl.connect(where, name="publisher") as bus:
                    await bus.publish("t", b"x")
                    await bus.flush()
                    stop(listener.pid)
                    log, sent = tmp_path / "nats.log", 1
                    while "Slow Consumer" not in log.read_text():
                        await bus.publish("t", b"x" * PART_BYTES)
                        await bus.flush()
                        sent += 1
                    os.kill(listener.pid, signal.SIGCONT)
                    while not ended.done():
                        # Until it listens again, and is at the end.
                        await bus.publish("t", b"end")
                        sent += 1
                        await asyncio.wait([ended], timeout=0.05)
                output, errors = (each.decode() for each in await ended)
            finally:
                if listener.returncode is None:
                    listener.kill()
        got, missed, connects = map(int, output.split())
        assert connects == 2
        assert missed > 0
        # Of the last ones, some were published before it was back, and some after it had ended.
        assert got + missed <= sent
        assert f"misses {counted(missed, 'message')} on t" in errors
        assert "reads too slowly for the max_pending of the server" in errors

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def test_messages_that_nats_py_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-py has bounded queues, unless messages are handled in the iteration in which they arrive."""
    monkeypatch.setattr(straight, "_has_queue", lambda subscription: False)

    async def test() -> None:
        with NatsServer(tmp_path, jetstream=False) as server:
            async with (
                tl.connect(f"{server.url}?connect_s=60", name="a") as publisher,
                tl.connect(f"{server.url}?connect_s=60&max_inbox_bytes=9000000", name="b") as bus,
                bus.subscribe("t.*") as stream,
            ):
                await bus.flush()
                assert isinstance(bus.broker, EngineBroker)
                adapter = bus.broker.adapter
                assert isinstance(adapter.driver, NatsDriver)
                made = [each for several in adapter.driver._subscriptions.values() for each in several]
                (queued,) = [each for each in made if each.subject == "tl.t.*"]
                topics = [f"t.{number}" for number in range(200)]
                ids: list[str] = []

                async def publish_all(limit: int) -> None:
                    queued._pending_queue._maxsize = limit  # type: ignore[attr-defined]
                    ids.extend([await publisher.publish(topic, 1) for topic in topics])
                    await publisher.flush()
                    await bus.flush()

                for limit in (0, 2, 0):
                    # The first of each topic, what is dropped, and what comes after it.
                    await publish_all(limit)
                account = stream.account
                await until(lambda: account().accepted == 600, "each came, or is counted")
                assert account().dropped == adapter.dropped_messages > 0
                # Each of those has its fate, whoever asks.
                got = {message.id for message in stream.inbox.messages()}
                assert len(got) == 600 - account().dropped
                dropped = [each for each in ids[200:400] if each not in got]
                for asked in (publisher, bus):
                    for message_id in dropped[:5]:
                        (outcome,) = (await asked.explain(message_id)).outcomes
                        assert (outcome.subscriber, outcome.fate) == (stream.name, tl.Fate.DROPPED)
                        assert "its subscriber is too slow: more messages wait for it than" in outcome.reason
                    (outcome,) = (await asked.explain(ids[0])).outcomes
                    assert outcome.fate is tl.Fate.IN_FLIGHT
                # Without a later message on its topic, the subscriber cannot know. Nobody claims that it was delivered.
                await publish_all(2)
                await until(queued._pending_queue.empty, "those that nats-py has kept are here")
                got = {message.id for message in stream.inbox.messages()}
                lost = next(each for each in ids[600:] if each not in got)
                (outcome,) = (await publisher.explain(lost)).outcomes
                assert outcome.fate is tl.Fate.UNKNOWN
                assert "it is on its way, was lost, or arrived longer ago than is remembered" in outcome.reason
        assert (
            "a subscription to t.* is too slow and has lost messages, which are counted: more messages wait"
            in caplog.text
        )
        assert "misses 1 message on t." in caplog.text

    with caplog.at_level(logging.WARNING, "trunkline"):
        asyncio.run(asyncio.wait_for(test(), DEADLINE_S))
