"""Messages of a pipeline are stored from columns. They are the same messages, with the same fates, as built ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.journals import BadDisk, Place, journal_of, seqs, take, texts
from trunkline.errors import NotStored, PartlyRefused
from trunkline.journal.broker import SOON
from trunkline.journal.intake import MAX_ROW_BYTES, MAX_ROW_MESSAGES
from trunkline.testing import Simulation


async def warm(bus: tl.Bus, *topics: str) -> None:
    """The first message on a topic takes the full path."""
    for topic in topics:
        await bus.publish(topic, b"warm")


async def test_nobody_builds_what_nobody_reads(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await warm(bus, "a")
        built = []
        monkeypatch.setattr("trunkline.bus.pipeline.plain", lambda *fields: built.append(fields))
        monkeypatch.setattr("trunkline.delivery.plain_run.unchecked_many", lambda *columns: built.append(columns))
        async with bus.pipeline() as pipe:
            for number in range(3 * SOON):
                await pipe.publish("a", b"%d" % number)
        assert not built
        assert bus.stats().total_messages == bus.stats().unrouted == 1 + 3 * SOON
        assert not pipe._runs, "a stored run is not kept"
        monkeypatch.undo()
        kept = list(journal_of(bus).reader.messages("a"))
        assert bus.history() == kept
        assert seqs(kept) == list(range(1, 2 + 3 * SOON))


@pytest.mark.parametrize("seed", range(12))
async def test_any_mixture(simulation: Simulation, tmp_path: Path, seed: int) -> None:
    """Kinds of payloads, topics, other publishers, subscribers that come and go, and a disk that is full at times."""
    random = simulation.random
    random.seed(seed)
    place = Place(simulation, tmp_path, slow=bool(seed % 2), durable=("a", "b"), recorded=("c",))
    async with place.bus() as bus, AsyncExitStack() as stack:
        await warm(bus, "a", "b", "c")
        disk = BadDisk(journal_of(bus))
        sent: dict[str, tuple[str, object]] = {}
        refused: set[str] = set()
        heard: list[tl.Message] = []

        async def others() -> None:
            for number in range(30):
                topic = random.choice("ab")
                text = b"other %d" % number
                with suppress(NotStored):
                    sent[await bus.publish(topic, text)] = (topic, text)
                await asyncio.sleep(random.choice([0, 0, 0.001]))

        async def hear() -> None:
            async with bus.subscribe("a", name="x") as stream:
                async for message in stream:
                    heard.append(message)

        going = asyncio.create_task(others())
        hearing: asyncio.Task[None] | None = None
        pipe = await stack.enter_async_context(bus.pipeline(in_flight=random.choice([3, 20, 2000])))
        for number in range(300):
            topic = random.choice("aaaabbc")
            payload: object = random.choice([b"%d" % number, b"%d" % number, {"n": number}, "x" * random.randrange(99)])
            disk.full = random.random() < 0.05 and topic != "c"
            with suppress(NotStored):
                sent[await pipe.publish(topic, payload)] = (topic, payload)
            if number == 100:
                hearing = asyncio.create_task(hear())
            if random.random() < 0.1:
                await asyncio.sleep(0)
            if random.random() < 0.05:
                disk.full = False
                try:
                    await pipe.flush()
                except PartlyRefused as error:
                    refused |= {message.id for message, _ in error.refused}
        disk.full = False
        try:
            await pipe.flush()
        except PartlyRefused as error:
            refused |= {message.id for message, _ in error.refused}
        await going
        await journal_of(bus).flush()
        kept = [message for message in journal_of(bus).reader.messages() if message.payload != b"warm"]
        # Of the recorded topic, messages are delivered although they cannot be written.
        unwritten = {message_id for message_id, (topic, _) in sent.items() if topic == "c"}
        assert {message.id for message in kept} | unwritten == sent.keys() - refused
        assert journal_of(bus).intake.lost == len(sent.keys() - refused) - len(kept)
        for message in kept:
            topic, payload = sent[message.id]
            assert message.topic == topic
            assert (message.payload if isinstance(payload, bytes) else message.decode()) == payload
            assert message.sender == bus.name
        assert seqs(kept) == sorted(set(seqs(kept)))
        stats = bus.stats()
        assert stats.total_messages == len(sent.keys() - refused) + 3
        assert {message.id for message in bus.history()} >= {message.id for message in kept}
        for message_id in refused:
            assert [outcome.fate for outcome in (await bus.explain(message_id)).outcomes] == [tl.Fate.REFUSED]
        assert hearing is not None
        await asyncio.sleep(1)
        hearing.cancel()
        on_a = [message.id for message in kept if message.topic == "a"]
        assert [message.id for message in heard] == on_a[len(on_a) - len(heard) :]
        assert heard
        assert not pipe._runs


async def test_rows_are_bounded(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await warm(bus, "a", "b")
        async with bus.pipeline(in_flight=4 * MAX_ROW_MESSAGES) as pipe:
            for number in range(MAX_ROW_MESSAGES + 3):
                await pipe.publish("a", b"%d" % number)
            large = b"x" * (MAX_ROW_BYTES // 8)
            for _ in range(20):
                await pipe.publish("b", large)
        rows = journal_of(bus).reader.query("SELECT topic, last - first + 1, length(body) FROM batches")
        assert max(count for _, count, _ in rows) <= MAX_ROW_MESSAGES
        assert max(size for _, _, size in rows) <= MAX_ROW_BYTES + len(large)
        assert texts(journal_of(bus).reader.messages("a"))[1:] == [str(n) for n in range(MAX_ROW_MESSAGES + 3)]
        assert sum(1 for _ in journal_of(bus).reader.messages("b")) == 21


async def test_large_payloads_are_left_out_of_the_history(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await warm(bus, "a")
        large = b"x" * (bus.settings.history.max_payload_bytes + 1)
        async with bus.pipeline() as pipe:
            await pipe.publish("a", b"small")
            await pipe.publish("a", large)
        assert [message.encoding for message in bus.history()][-1] == "elided"
        assert [message.payload for message in bus.history()][1:] == [b"small", b""]
        assert [len(message.payload) for message in journal_of(bus).reader.messages("a")] == [4, 5, len(large)]


async def test_a_durable_subscription_reads_on(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await warm(bus, "a")
        async with bus.subscribe("a", durable=True, name="y") as durable:
            async with bus.pipeline() as pipe:
                ids = [await pipe.publish("a", b"%d" % number) for number in range(100)]
            assert [message.id for message in await take(durable, 100)] == ids
