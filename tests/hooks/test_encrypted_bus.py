"""End-to-end encryption on a bus, a journal and a hub: nothing can be read without the key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from trunkline import hooks
from trunkline.hooks import Encrypt
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker, Reader
from trunkline.testing import Simulation, world

KEY, OTHER = bytes(range(32)), bytes(reversed(range(32)))
SECRET = b"the price is 4711 and nobody else's business"


def encrypt(**options: Any) -> Encrypt:
    return Encrypt({"k1": KEY}, current="k1", **options)


async def until(stream: tl.Stream) -> tl.Message:
    received = await stream.recv()
    assert received is not None
    return received


@asynccontextmanager
async def buses(broker: tl.Broker) -> AsyncIterator[tuple[tl.Bus, tl.Bus, tl.Bus]]:
    """One that encrypts, one that can decrypt, and one without a key."""
    async with (
        broker_closed(broker),
        tl.Bus(broker, name="giver", hooks=[encrypt()]) as giver,
        tl.Bus(broker, name="taker", hooks=[encrypt()]) as taker,
        tl.Bus(broker, name="stranger") as stranger,
    ):
        yield giver, taker, stranger


@asynccontextmanager
async def broker_closed(broker: tl.Broker) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await broker.aclose()


async def test_streams_with_the_key_read_and_those_without_say_why(simulation: Simulation) -> None:
    async with (
        buses(tl.MemoryBroker(world(simulation))) as (giver, taker, stranger),
        taker.subscribe("t") as open_stream,
        stranger.subscribe("t") as closed_stream,
    ):
        await giver.publish_many("t", [{"n": number} for number in range(3)])
        assert [(await until(open_stream)).decode() for _ in range(3)] == [{"n": number} for number in range(3)]
        batch = await anext(closed_stream.batches())
        for sealed in batch:
            assert sealed.encoding == "aes-256-gcm:k1"
            with pytest.raises(tl.InvalidPayload, match=r"is encrypted \(aes-256-gcm:k1\): give the bus hooks.Encrypt"):
                sealed.decode()
        assert all(b"n" not in kept.payload or kept.encoding for kept in giver.history())
        assert [taker.opened(kept).decode() for kept in giver.history()] == [{"n": number} for number in range(3)]


async def test_every_way_of_taking_opens(simulation: Simulation) -> None:
    async with (
        buses(tl.MemoryBroker(world(simulation))) as (giver, taker, _),
        taker.subscribe("t", ack=True) as messages,
        taker.subscribe("t") as others,
    ):
        for number in range(4):
            await giver.publish("t", number, priority=60 if number == 3 else 50)
        taken = messages.try_recv()
        assert taken.decode() == 3
        assert messages.ack(taken)
        assert [each.decode() for each in await anext(messages.batches(2))] == [0, 1]
        assert [each.decode() for each in await anext(others.batches())] == [3, 0, 1, 2]
        async for each in messages:
            assert each.decode() == 2
            break


async def test_handlers_get_it_opened_and_answers_are_sealed(simulation: Simulation) -> None:
    async with buses(tl.MemoryBroker(world(simulation))) as (giver, taker, stranger):

        @taker.on("double")
        async def double(number: int, whole: tl.Message) -> int:
            assert whole.decode() == number
            return 2 * number

        @taker.on("fail")
        async def fail(number: int) -> None:
            raise ValueError(f"not {number}")

        async with stranger.subscribe(">") as everything:
            assert await giver.request("double", 21) == 42
            answer = await giver.request("double", 4, reply=tl.Message)
            assert answer.decode() == 8
            with pytest.raises(tl.RequestFailed, match="not 5"):
                await giver.request("fail", 5, timeout_s=60)
            with pytest.raises(tl.RequestTimeout):
                await giver.request("nobody", 1, timeout_s=1)
            everything.stop()
            async for sealed in everything:
                assert sealed.encoding == "aes-256-gcm:k1"


async def test_without_the_key_it_is_a_dead_letter(simulation: Simulation) -> None:
    async with buses(tl.MemoryBroker(world(simulation))) as (giver, taker, stranger):
        seen: list[object] = []
        late = tl.Bus(taker.broker, name="late", hooks=[Encrypt({"k2": OTHER}, current="k2")])
        for bus in (stranger, late):
            bus.handle("t", seen.append, name=f"at {bus.name}")
        async with late:
            await giver.publish("t", "secret")
            await stranger.quiet()
            await late.quiet()
        letters = {letter.subscriber: letter for letter in giver.dead_letters}
        assert {letter.cause for letter in letters.values()} == {tl.Cause.INVALID_PAYLOAD}
        assert "is encrypted (aes-256-gcm:k1)" in letters["at stranger"].reason
        assert "the key 'k1', which is not known here; known: k2" in letters["at late"].reason
        assert not seen


async def test_a_changed_message_is_a_dead_letter(simulation: Simulation) -> None:
    async with buses(tl.MemoryBroker(world(simulation))) as (_, taker, stranger):
        seen: list[object] = []
        taker.handle("t", seen.append, name="reader")
        sealed = encrypt().seal(tl.Message(id="original", topic="t", payload=SECRET, sender="me"))
        async with taker.subscribe("t") as messages:
            await stranger.post(sealed.replace(id="copy"))
            await stranger.post(sealed)
            await taker.quiet()
            changed = await until(messages)
            with pytest.raises(tl.InvalidPayload, match="was changed after the encryption"):
                changed.decode()
            assert (await until(messages)).decode() == SECRET
        (letter,) = taker.dead_letters
        assert letter.message.id == "copy"
        assert "was changed after the encryption" in letter.reason
        assert seen == [SECRET]


async def test_where_only_sealed_ones_are_believed(simulation: Simulation) -> None:
    """A carrier of the messages may add its own: without a key it cannot encrypt them."""
    broker = tl.MemoryBroker(world(simulation))
    async with (
        broker_closed(broker),
        tl.Bus(broker, name="strict", hooks=[encrypt(sealed_only=True)]) as strict,
        tl.Bus(broker, name="stranger", hooks=[hooks.Compress(min_bytes=1)]) as stranger,
        strict.subscribe("t") as messages,
    ):
        seen: list[object] = []
        strict.handle("t", seen.append)
        await stranger.publish("t", "forged")
        await stranger.publish("t", "forged " * 100)
        await strict.publish("t", "true")
        await strict.quiet()
        for _ in range(2):
            with pytest.raises(tl.InvalidPayload, match="not encrypted"):
                (await until(messages)).decode()
        assert (await until(messages)).decode() == "true"
        assert seen == ["true"]
        assert len(strict.dead_letters) == 2


async def test_what_dies_stays_sealed_and_can_be_replayed(simulation: Simulation) -> None:
    """Neither the dead letter nor its notice shows the payload, also if a stream rejects the message."""
    async with (
        buses(tl.MemoryBroker(world(simulation))) as (giver, taker, stranger),
        taker.subscribe("t", ack=True, name="stream", retry=tl.Retry(attempts=1)) as messages,
        taker.subscribe("_dead.>") as notices,
        stranger.subscribe("_dead.>") as outside,
    ):
        await giver.publish("t", SECRET)
        await giver.publish("t", SECRET)
        messages.reject(await until(messages), "no")
        assert messages.nack(await until(messages)) is None
        for _ in range(2):
            assert (await until(notices)).decode() == SECRET
            assert SECRET not in (await until(outside)).payload
        letters = list(taker.dead_letters)
        assert len(letters) == 2
        for letter in letters:
            assert SECRET not in letter.to_bytes()
            assert taker.opened(letter.message).decode() == SECRET
            taker.dead_letters.replay(letter)
        for _ in range(2):
            again = await until(messages)
            assert again.decode() == SECRET
            assert messages.ack(again)


async def test_compressed_before_it_is_encrypted(simulation: Simulation) -> None:
    """In this order, however they are passed: encrypted data cannot be compressed."""
    broker = tl.MemoryBroker(world(simulation))
    text = "again and " * 1000
    async with (
        broker_closed(broker),
        tl.Bus(broker, hooks=[encrypt(), hooks.Compress()]) as giver,
        tl.Bus(broker, name="taker", hooks=[encrypt()]) as taker,
        taker.subscribe("t") as messages,
    ):
        await giver.publish("t", text)
        (kept,) = giver.history()
        assert kept.encoding == "zlib+aes-256-gcm:k1"
        assert len(kept.payload) < len(text) / 10
        received = await until(messages)
        assert received.encoding == "zlib"
        assert received.decode() == text
        taker.handle("t", lambda whole: answers.append(whole), name="h")
        answers: list[object] = []
        await giver.publish("t", text)
        await taker.quiet()
        assert answers == [text]


async def test_own_hooks_see_it_plain_and_filters_see_the_header(simulation: Simulation) -> None:
    broker = tl.MemoryBroker(world(simulation))
    seen: list[object] = []

    @hooks.each
    def look(message: tl.Message) -> tl.Message:
        seen.append(message.decode())
        return message

    async with (
        broker_closed(broker),
        tl.Bus(broker, hooks=[encrypt(), look]) as bus,
        bus.subscribe("t", where="priority > 60") as urgent,
        bus.subscribe("t", where="payload.n == 1") as blind,
    ):
        await bus.publish("t", {"n": 1}, priority=70)
        await bus.publish("t", {"n": 2})
        assert seen == [{"n": 1}, {"n": 2}]
        assert urgent.try_recv().decode() == {"n": 1}
        assert urgent.depth == blind.depth == 0


# With a journal


async def test_the_journal_stores_what_it_cannot_read(simulation: Simulation, tmp_path: Path) -> None:
    folder = tmp_path / str(simulation.seed)
    broker = JournalBroker(Journal(folder, world=world(simulation), threaded=False), owns_journal=True)
    async with buses(broker) as (giver, taker, _):
        await giver.publish("t", SECRET)
        async with taker.subscribe("t", durable=True, name="d", start="beginning") as messages:
            received = await until(messages)
            assert received.decode() == SECRET
            messages.ack(received)
    assert not found(SECRET, folder)
    with Reader(folder) as reader:
        (stored,) = reader.messages()
    assert encrypt().open(stored).decode() == SECRET


async def test_what_is_replayed_from_a_journal_is_sealed_anew(simulation: Simulation, tmp_path: Path) -> None:
    folder = tmp_path / str(simulation.seed)
    broker = JournalBroker(Journal(folder, world=world(simulation), threaded=False), owns_journal=True)
    async with buses(broker) as (giver, taker, stranger):
        await giver.publish("t", SECRET)
        async with taker.subscribe("again.>") as messages, stranger.subscribe("again.>") as outside:
            await giver.replay(folder, "t", to="again")
            received = await until(messages)
            assert received.decode() == SECRET
            assert SECRET not in (await until(outside)).payload
    assert not found(SECRET, folder)


def found(needle: bytes, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if needle in path.read_bytes()]


# Through a hub


class Tap:
    """A proxy between clients and a hub: it records every byte in both directions."""

    def __init__(self, hub: Path) -> None:
        self._hub = hub
        self.heard = bytearray()
        self._carrying: set[asyncio.Future[Any]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hub_reader, hub_writer = await asyncio.open_unix_connection(self._hub)
        both = asyncio.gather(self._carry(reader, hub_writer), self._carry(hub_reader, writer))
        self._carrying.add(both)
        await both

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The side that closes first leaves the other with a broken pipe.
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                self.heard += data
                writer.write(data)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def ended(self) -> None:
        """Return when all connections have."""
        await asyncio.gather(*self._carrying)


@pytest.mark.parametrize("sealing", [True, False])
def test_a_hub_never_sees_the_plain_text(tmp_path: Path, sealing: bool) -> None:
    """Neither on its connections nor in its journal. Without the hook the test finds the payload there."""
    given_hooks: list[hooks.Hook] = [encrypt(), hooks.Compress()] if sealing else []

    async def run() -> None:
        broker = JournalBroker(Journal(tmp_path / "journal"), owns_journal=True)
        async with Hub(broker) as hub:
            await hub.listen(f"unix://{tmp_path / 'hub.sock'}")
            tap = Tap(tmp_path / "hub.sock")
            server = await asyncio.start_unix_server(tap.accept, tmp_path / "tap.sock")
            async with asyncio.timeout(60), server:
                await converse(f"unix://{tmp_path / 'tap.sock'}")
                await tap.ended()
            assert (SECRET in tap.heard) is not sealing
            assert len(tap.heard) > 1000
        assert bool(found(SECRET, tmp_path / "journal")) is not sealing

    async def converse(address: str) -> None:
        async with (
            tl.connect(address, name="a", hooks=given_hooks, connection=tl.ConnectionSettings(connect_s=30.0)) as one,
            tl.connect(address, name="b", hooks=given_hooks, connection=tl.ConnectionSettings(connect_s=30.1)) as two,
        ):

            @two.on("ask", group="answerers")
            async def answer(payload: bytes) -> bytes:
                return payload + SECRET

            @two.on("fail", retry=tl.Retry(attempts=1))
            async def fail(payload: bytes) -> None:
                raise ValueError("never")

            async with two.subscribe("t") as messages, two.subscribe("_dead.>") as dead:
                await one.publish("t", SECRET)
                assert (await until(messages)).decode() == SECRET
                assert await one.request("ask", SECRET) == 2 * SECRET
                await one.publish("fail", SECRET)
                assert (await until(dead)).decode() == SECRET

    asyncio.run(run())
