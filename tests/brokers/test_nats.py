"""NATS as a fleet uses it: several processes, servers that are killed, limits, fates and dead letters across processes.

Two brokers with a client each stand for two processes: each has a connection, an origin and books of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import nats
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.ports import free_port
from trunkline import Fate, Retry
from trunkline.brokers.nats import owners
from trunkline.brokers.nats.store import STORED_TOPICS
from trunkline.bus.bus import Bus

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def space() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * DEADLINE_S):
            await test()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def buses(server: NatsServer, count: int = 2, **settings: object) -> AsyncIterator[list[Bus]]:
    """Buses on one server, with a connection each."""
    how: dict[str, object] = {"namespace": space(), "synced": True, "connect_s": 30.0, **settings}
    made: list[Bus] = []
    try:
        for number in range(count):
            # Another limit in each: the same settings would share a connection.
            engine = tl.EngineSettings(**{**how, "max_inbox_bytes": 1_000_000 + number})  # type: ignore[arg-type]
            bus = tl.connect(server.url, name=f"bus{number}", connection=engine)
            made.append(await bus.__aenter__())
        yield made
    finally:
        for bus in reversed(made):
            await bus.aclose()


# Between processes


def test_what_one_publishes_others_get_and_requests_are_answered(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server) as (one, other):

            @other.on("double")
            async def double(number: int) -> int:
                return 2 * number

            async with other.subscribe("orders.*") as orders:
                for number in range(1000):
                    await one.publish("orders.placed", number)
                got = [await orders.recv() for _ in range(1000)]
            assert [message.decode() for message in got if message is not None] == list(range(1000))
            assert await one.request("double", 21, reply=int, timeout_s=DEADLINE_S) == 42
            async with other.subscribe(tl.endpoint("other")) as mail:
                await one.send("other", "hello")
                letter = await mail.recv()
                assert letter is not None
                assert letter.decode() == "hello"

    run(test)


def test_batches_stay_below_what_the_server_takes(tmp_path: Path) -> None:
    """A default server accepts one mebibyte: a burst of any shape is split so that it fits."""

    async def test() -> None:
        with NatsServer(tmp_path, extra="max_payload: 64KB") as small:
            for durable in ((), (">",)):
                async with buses(small, durable=durable) as (one, other), other.subscribe("t") as stream:
                    for size, count in ((1, 5000), (1000, 500), (30_000, 20)):
                        await one.publish_many("t", [b"x" * size] * count)
                        taken = 0
                        async for batch in stream.batches():
                            assert {len(message.payload) for message in batch} == {size}
                            taken += len(batch)
                            if taken == count:
                                break
                    with pytest.raises(tl.MessageTooLarge):
                        await one.publish("t", b"x" * 65_000)

    run(test)


def test_fates_are_told_to_the_publisher_in_another_process(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server, 3) as (one, other, third):
            async with (
                other.subscribe("t", name="takes") as takes,
                other.subscribe("t", name="picky", where="sender == 'x'"),
                third.subscribe("t", name="waits"),
            ):
                sent = await one.publish("t", 1)
                await one.flush()
                assert await takes.recv() is not None
                found = await one.explain(sent)
                fates = {outcome.subscriber: outcome.fate for outcome in found.outcomes}
                assert fates == {"takes": Fate.DELIVERED, "picky": Fate.FILTERED, "waits": Fate.IN_FLIGHT}
            # By its id alone, in a process that has not published it.
            found = await third.explain(sent)
            fates = {outcome.subscriber: outcome.fate for outcome in found.outcomes}
            assert fates["takes"] is Fate.DELIVERED
            assert fates["waits"] is Fate.DROPPED

    run(test)


def test_a_durable_subscription_without_a_process_is_explained_by_the_engine(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server) as (one, other):
            async with other.subscribe("t", name="d", durable=True) as stream:
                sent = await one.publish("t", 1)
                message = await stream.recv()
                assert message is not None
                stream.ack(message)
                waiting = await one.publish("t", 2)
            await other.aclose()
            assert [(each.subscriber, each.fate) for each in (await one.explain(sent)).outcomes] == [
                ("d", Fate.DELIVERED)
            ]
            assert [(each.subscriber, each.fate) for each in (await one.explain(waiting)).outcomes] == [
                ("d", Fate.IN_FLIGHT)
            ]

    run(test)


def test_processes_that_change_the_stored_topics_at_the_same_time(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server, 1, durable=("a",)) as (bus,):
            await bus.publish("a", 1)
            store = bus.broker.adapter.driver.store_at  # type: ignore[attr-defined]
            stream, subjects = store._names.stream, store._subjects
            # Another process has created the stream meanwhile, for other topics.
            found = await store._create(stream, subjects=subjects(["b"]))
            assert found["config"]["subjects"] == subjects(["a"])
            # Another process has read the subjects before this one added its own, and replaces them.
            await store.js.ask(f"STREAM.UPDATE.{stream}", **{**found["config"], "subjects": subjects(["b"])})
            store._link.publish(f"{store._names.control}durable", b"")
            await until(lambda: {*store.durable} == {"a", "b"})
            await bus.publish("a", 2)
            last = await bus.last("a")
            assert last is not None
            assert last.decode() == 2

    run(test)


@pytest.mark.parametrize("opens", [False, True], ids=["own topics", "open topics"])
def test_what_one_process_has_stored_stays_stored_while_others_connect(server: NatsServer, opens: bool) -> None:
    """JetStream replaces the topics of a stream: each process must build on those of the one before."""

    async def connect(name: str, topic: str, connected: list[str], count: int) -> None:
        where = f"{server.url}?namespace={name}&synced=true&connect_s=30&durable={topic}"
        async with tl.connect(f"{where}&open={topic}" if opens else where) as bus:
            await bus.publish(topic, 1)
            connected.append(topic)
            store = bus.broker.adapter.driver.store_at  # type: ignore[attr-defined]
            stream, prefix = (store._names.open, "") if opens else (store._names.stream, store._names.prefix)
            while True:
                everybody = len(connected) == count
                assert prefix + topic in (await store.js.stream(stream))["config"]["subjects"]
                if everybody:
                    return

    async def test() -> None:
        for _ in range(5):
            name, connected = space(), []  # type: tuple[str, list[str]]
            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(connect(name, f"{name}.t{number}", connected, 6))

    run(test)


def test_a_process_that_ends_while_it_changes_the_stored_topics_holds_up_nobody(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server, 2, durable=("a",)) as (one, other):
            await one.publish("a", 1)
            await other.publish("a", 1)
            first, second = (bus.broker.adapter.driver.store_at for bus in (one, other))  # type: ignore[attr-defined]
            async with first.owners.alone(STORED_TOPICS):
                waiting = asyncio.ensure_future(second.add_durable("b"))
                held = await second.js.message(second._names.kept, last_by_subj=second.owners._subject(STORED_TOPICS))
                assert held.data.decode() == first.owners.me
                assert not waiting.done()
                first._link.connection._transport._io_writer.transport.abort()
                await waiting
            assert {*second.durable} == {"a", "b"}

    run(test)


def test_a_process_that_hangs_while_it_changes_the_stored_topics_is_not_waited_for(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owners, "ALIVE_S", 0.05)

    async def test() -> None:
        async with buses(server, 1, durable=("a",)) as (bus,), await nats.connect(server.url) as hangs:
            await bus.publish("a", 1)
            store = bus.broker.adapter.driver.store_at  # type: ignore[attr-defined]
            await hangs.subscribe(f"{store._names.control}alive.hangs")
            await hangs.flush()
            await store.put(store.owners._subject(STORED_TOPICS), b"hangs")
            await store.add_durable("b")
            assert {*store.durable} == {"a", "b"}

    run(test)
    assert "the process that holds stored-topics does not answer" in caplog.text


# Dead letters


def test_a_dead_letter_is_kept_and_replayed_to_the_one_that_failed(server: NatsServer) -> None:
    async def test() -> None:
        handled: list[int] = []
        fails = True
        async with buses(server) as (one, other):

            @other.on("t", group="billing", durable=True, retry=Retry(attempts=2, delay_s=0.01, jitter=0))
            async def bill(number: int) -> None:
                if fails and number == 2:
                    raise ValueError("no such account")
                handled.append(number)

            async with one.subscribe("t") as witness:
                await other.flush()
                for number in (1, 2, 3):
                    await one.publish("t", number)
                await until(lambda: len(other.dead_letters) == 1)
                await until(lambda: len(handled) == 2)
                (letter,) = other.dead_letters
                assert (letter.subscriber, letter.error_type, len(letter.attempts)) == ("billing", "ValueError", 2)
                assert "no such account" in letter.traceback
                fails = False
                # From another process: it is at the engine, once that has stored it.
                await other.broker.adapter.settled()  # type: ignore[attr-defined]
                replayed = await one.replay_dead(subscriber="billing")
                assert (replayed.ids, replayed.failed) == ((letter.message.id,), ())
                await until(lambda: sorted(handled) == [1, 2, 3])
                assert [await witness.recv() is not None for _ in range(3)] == [True] * 3
                assert witness.depth == 0
                assert (await one.replay_dead()).ids == ()

    run(test)


def test_a_dead_letter_outlives_all_processes(server: NatsServer) -> None:
    async def test() -> None:
        name = space()
        async with (
            buses(server, 1, namespace=name) as (bus,),
            bus.subscribe("t", name="d", durable=True, retry=Retry(attempts=1)) as stream,
        ):
            await bus.publish("t", "bad")
            message = await stream.recv()
            assert message is not None
            stream.reject(message, "never")
            await until(lambda: stream.account().dead == 1)
        async with buses(server, 1, namespace=name) as (bus,):
            assert len(bus.dead_letters) == 0
            assert len((await bus.replay_dead()).ids) == 1
            async with bus.subscribe("t", name="d", durable=True) as stream:
                message = await stream.recv()
                assert message is not None
                assert (message.decode(), message.attempts) == ("bad", 0)
                stream.ack(message)

    run(test)


# Servers and processes that die


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """The server is killed with -9 and restarted while messages are published, handled and requested."""

    async def test() -> None:
        with NatsServer(tmp_path) as dying:
            async with buses(dying, connect_s=60.0, durable=("orders.>",)) as (one, other):
                handled: set[int] = set()

                @other.on("orders.*", group="g", durable=True)
                async def take(number: int) -> None:
                    handled.add(number)

                @other.on("double")
                async def double(number: int) -> int:
                    return 2 * number

                async with other.subscribe("plain", name="plain") as plain:
                    await other.flush()
                    confirmed: set[int] = set()
                    stop = asyncio.Event()

                    async def publish() -> None:
                        number = 0
                        while not stop.is_set():
                            number += 1
                            try:
                                await one.publish("orders.placed", number)
                            except tl.Refused:
                                continue
                            confirmed.add(number)
                            try:
                                await one.publish("plain", number)
                            except tl.Refused:
                                continue

                    publishing = asyncio.create_task(publish())

                    async def go_on() -> None:
                        reached = len(confirmed)
                        await until(lambda: len(confirmed) > reached + 50)

                    for _ in range(2):
                        await go_on()
                        dying.process.kill()
                        dying.process.start()
                        await go_on()
                    stop.set()
                    await publishing
                    await until(lambda: confirmed <= handled)
                    assert await one.request("double", 21, reply=int, timeout_s=DEADLINE_S) == 42
                    # A plain topic may lose messages: each is counted where it is missing, or was refused.
                    await one.publish("plain", "the end")
                    got: list[object] = []
                    while "the end" not in got:
                        message = await plain.recv()
                        assert message is not None
                        got.append(message.decode())
                    numbers = [each for each in got if isinstance(each, int)]
                    assert numbers == sorted(set(numbers))
                    account = plain.account()
                    assert account.balanced
                    assert account.dropped == other.broker.shared.missed  # type: ignore[attr-defined]
                    assert one.broker.adapter.connects == 3  # type: ignore[attr-defined]

    run(test)


MEMBER = """
import asyncio, sys
import trunkline as tl

async def main():
    how = tl.EngineSettings(namespace=sys.argv[2], lease_s=1.0, synced=True, connect_s=30.0)
    async with tl.connect(sys.argv[1], connection=how) as bus:
        async with bus.subscribe("jobs", group="workers", durable=True) as stream:
            first = await stream.recv()
            print("has", first.decode(), flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


def test_what_a_killed_member_held_goes_to_another(server: NatsServer) -> None:
    async def test() -> None:
        name = space()
        async with buses(server, 1, namespace=name, lease_s=1.0, durable=("jobs",)) as (bus,):
            command = [sys.executable, "-c", MEMBER, server.url, name]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as member:  # noqa: ASYNC220  # it is to be killed
                assert member.stdout is not None
                try:
                    await asyncio.sleep(0)
                    opened = asyncio.create_task(asyncio.to_thread(member.stdout.readline))
                    while not opened.done():
                        # It is there when it has one.
                        await bus.publish_many("jobs", range(10))
                        await asyncio.wait([opened], timeout=0.5)
                    assert opened.result().startswith(b"has ")
                finally:
                    os.kill(member.pid, signal.SIGKILL)
            got: set[object] = set()
            async with bus.subscribe("jobs", group="workers", durable=True) as stream:
                while got != set(range(10)):
                    message = await stream.recv(timeout_s=DEADLINE_S)
                    assert message is not None
                    got.add(message.decode())
                    stream.ack(message)

    run(test)


def test_connecting_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    async def test() -> None:
        late = NatsServer(tmp_path)
        bus = tl.connect(late.url, connection=tl.EngineSettings(connect_s=60.0, synced=True))
        async with bus:
            publishing = asyncio.create_task(bus.publish("t", 1))
            await asyncio.sleep(0.2)
            assert not publishing.done()
            late.process.start()
            try:
                await publishing
            finally:
                await bus.aclose()
                late.process.kill()

    run(test)


def test_no_server_is_said_with_its_address_and_what_to_do() -> None:
    async def test() -> None:
        port = free_port()
        how = tl.EngineSettings(connect_s=0.3)
        async with tl.connect(f"nats://me:secret@127.0.0.1:{port}", connection=how) as bus:
            with pytest.raises(tl.EngineUnavailable) as failed:
                await bus.publish("t", 1)
            text = str(failed.value)
            assert f"nats://127.0.0.1:{port}" in text
            assert "start one there" in text
            assert "secret" not in text

    run(test)


# Silent losses of an engine are logged


def test_what_nobody_listens_to_is_counted(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with buses(server, 1) as (bus,):
            with caplog.at_level(logging.INFO, "trunkline.connection"):
                await bus.publish("void", 1)
                await bus.flush()
                await until(lambda: bus.broker.adapter.unheard_messages == 1)  # type: ignore[attr-defined]
            assert "void has no subscriber" in caplog.text
            assert bus.subscribers("void") == []
            async with bus.subscribe("void") as stream:
                await bus.publish("void", 2)
                assert await stream.recv() is not None
                await bus.flush()
                await bus.publish("void", 3)
                await bus.flush()
                assert bus.broker.adapter.unheard_messages == 1  # type: ignore[attr-defined]

    run(test)


def test_a_request_that_nobody_serves_fails_at_once(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server) as (one, other):

            @other.on("price.eu")
            async def price(order: str) -> int:
                return len(order)

            await other.flush()
            assert await one.request("price.eu", "abc", timeout_s=60) == 3
            with pytest.raises(tl.NoResponders) as caught:
                await one.request("prize.eu", "abc", timeout_s=600)
            assert (caught.value.topic, one.stats().open_requests) == ("prize.eu", 0)
            assert await one.request("price.eu", "abcd", timeout_s=60) == 4

    run(test)


def test_a_bus_that_is_closed_while_it_connects_ends(server: NatsServer) -> None:
    """nats-py swallows a cancellation at certain moments of its handshake."""

    async def test() -> None:
        for step in range(80):
            async with tl.connect(server.url) as bus:
                bus.handle("t", print)
                for _ in range(step % 40):
                    await asyncio.sleep(0)

    run(test)


def test_a_slow_subscriber_is_told_what_it_lost(server: NatsServer) -> None:
    async def test() -> None:
        async with (
            buses(server) as (one, other),
            other.subscribe("t", name="slow", capacity=100, overflow=tl.Overflow.DROP_NEWEST) as slow,
            other.subscribe("t", name="full") as full,
        ):
            # The bus `other` takes a megabyte into one inbox.
            for _ in range(30):
                await one.publish_many("t", [b"x" * 1000] * 100)
                await one.flush()
            await until(lambda: slow.account().accepted == full.account().accepted == 3000)
            assert (slow.account().dropped, slow.account().in_flight) == (2900, 100)
            account = full.account()
            assert account.balanced
            assert 500 < account.in_flight < 1200
            assert account.dropped == 3000 - account.in_flight

    run(test)


def test_without_jetstream_what_needs_a_store_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, jetstream=False) as bare:
            async with buses(bare, 1) as (bus,):
                await bus.flush()
                for options in ({"group": "g"}, {"name": "d", "durable": True}, {"start": "beginning"}):
                    with pytest.raises(tl.Unsupported):
                        async with bus.subscribe("t", **options):
                            pass

    run(test)


def test_durable_topics_without_jetstream_are_refused_when_connecting(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, jetstream=False) as bare:
            how = tl.EngineSettings(durable=("t",), connect_s=60.0)
            async with tl.connect(bare.url, connection=how) as bus:
                with pytest.raises(tl.Unsupported, match="JetStream is not enabled"):
                    await bus.publish("t", 1)

    run(test)


def test_a_server_that_may_not_sync_is_named(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with buses(server, 1, synced=False, durable=("t",)) as (bus,):
            await bus.publish("t", 1)
        assert "sync_interval: always" in caplog.text

    run(test)


# Who may come in


@pytest.mark.parametrize(
    ("extra", "login", "query"),
    [
        ('authorization { user: "me", password: "p%s" }', "me:p%25s@", ""),
        ('authorization { token: "secret" }', "secret@", ""),
        ('authorization { token: "secret" }', "", "?token=secret"),
    ],
    ids=["password", "token as user", "token"],
)
def test_who_has_no_password_is_refused_at_once(extra: str, login: str, query: str, tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, extra=extra) as closed:
            how = tl.EngineSettings(namespace=space(), synced=True, connect_s=60.0)
            host = closed.url.removeprefix("nats://")
            url = f"nats://{login}{host}{query}"
            async with tl.connect(url, connection=how) as bus, bus.subscribe("t") as stream:
                await bus.publish("t", 1)
                assert await stream.recv() is not None
            async with tl.connect(closed.url, connection=how) as bus:
                with pytest.raises(tl.NotAllowed, match="refuses this client"):
                    await bus.publish("t", 1)

    run(test)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for this host, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, secret


def test_tls_is_checked(tmp_path: Path) -> None:
    async def test() -> None:
        cert, key = certificate(tmp_path)
        with NatsServer(tmp_path / "nats", extra=f'tls {{ cert_file: "{cert}", key_file: "{key}" }}') as secure:
            url = secure.url.replace("nats://", "tls://")
            options = f"namespace={space()}&synced=true&connect_s=60"
            async with tl.connect(f"{url}?tls_ca={cert}&{options}") as bus, bus.subscribe("t") as stream:
                await bus.publish("t", 1)
                assert await stream.recv() is not None
            # Not signed by an authority that this machine trusts.
            async with tl.connect(f"{url}?connect_s=1") as bus:
                with pytest.raises(tl.EngineUnavailable, match="certificate"):
                    await bus.publish("t", 1)

    run(test)


def test_one_of_several_addresses_is_enough(server: NatsServer) -> None:
    async def test() -> None:
        url = f"nats://127.0.0.1:{free_port()},127.0.0.1:{server.port}?namespace={space()}&synced=true&connect_s=60"
        async with tl.connect(url) as bus, bus.subscribe("t") as stream:
            await bus.publish("t", 1)
            assert await stream.recv() is not None

    run(test)


def test_an_unknown_option_in_the_url_is_refused() -> None:
    with pytest.raises(tl.InvalidSettings, match="did you mean 'namespace'"):
        tl.connect("nats://localhost?namespac=x")
