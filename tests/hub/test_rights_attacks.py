"""One attack at a time, by an identity whose rules allow publish and subscribe on `data.>` only, over TLS."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.guests import RULES, Guest, hub_of, make_keys
from tests.hub.hubs import received, until
from trunkline import Cause, DeadLetter, Message
from trunkline.delivery.dead_letters import Attempt
from trunkline.hub.answers import EARLIER_BYTES
from trunkline.hub.hub import Hub
from trunkline.journal import JournalBroker
from trunkline.keys.store import KeyStore
from trunkline.wire import control

SERVICE = [
    {"who": "cert:owner", "may": ["publish", "subscribe"], "on": ["orders.>", "data.>"]},
    {"who": "cert:elsewhere", "may": ["subscribe"], "on": ["orders.>"]},
    {"who": "cert:admin", "may": ["subscribe"]},
    {"who": "cert:data", "may": ["publish", "subscribe"], "on": ["data.>"]},
]
"""Who asks, who answers and may not publish, who hears everything, and the attacker."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def play(keys: Path, tmp_path: Path) -> Callable[..., None]:
    def run(act: Callable[[Hub, Callable[..., Any]], Awaitable[None]], rules: list[Any] = RULES) -> None:
        async def main() -> None:
            async with hub_of(tmp_path, keys, rules) as hub:
                await act(hub, lambda name, **fields: Guest.come(hub, keys, name, **fields))

        asyncio.run(main())

    return run


def bus_of(hub: Hub, keys: Path, name: str) -> tl.Bus:
    connection = tl.ConnectionSettings(keys=str(KeyStore(keys).bundle(name)), connect_s=30.0)
    return tl.connect(hub.addresses[0], name=name, connection=connection)


def code(answer: control.Control) -> str:
    assert isinstance(answer, control.Error), answer
    return answer.code


def journal_of(hub: Hub) -> JournalBroker:
    assert isinstance(hub.broker, JournalBroker)
    return hub.broker


async def letters_in(hub: Hub) -> list[DeadLetter]:
    journal = journal_of(hub).journal
    await journal.flush()
    rows = await journal.in_thread(lambda reader: reader.query("SELECT letter FROM dead_letters ORDER BY seq"))
    return [DeadLetter.from_bytes(row[0]) for row in rows]


def packed(letter: DeadLetter) -> str:
    return base64.b64encode(letter.to_bytes()).decode()


def forged(message: Message, subscriber: str = "billing") -> DeadLetter:
    return DeadLetter(message, subscriber, Cause.HANDLER_FAILED, "made up", "E", "trace", (Attempt(1, 1, "e"),), 1)


# Answers


def test_answers_are_heard_by_who_asked_alone(keys: Path, play: Callable[..., None]) -> None:
    """Answering needs no rule. Even an identity that may subscribe to everything gets no answers of others."""

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        attacker = await come("data")
        for number, pattern in enumerate(("_reply.>", "_reply.*", ">", "*.>", "_reply"), 1):
            assert code(await attacker.subscribe(number, pattern)) == "forbidden"
        async with (
            bus_of(hub, keys, "owner") as asker,
            bus_of(hub, keys, "elsewhere") as answerer,
            bus_of(hub, keys, "admin") as monitor,
            monitor.subscribe(">", name="plain") as plain,
            monitor.subscribe(">", name="shared", group="g") as shared,
            monitor.subscribe(">", name="kept", durable=True) as kept,
        ):
            topics: list[str] = []

            @answerer.on("orders.price")
            async def price(number: int, message: Message) -> int:
                topics.append(message.reply_to or "")
                return number + 1

            await answerer.flush()
            assert await asker.request("orders.price", 1, timeout_s=30) == 2
            # A client that knows the topic, but not its secret, gets nothing.
            assert code(await attacker.subscribe(7, topics[0])) == "forbidden"
            assert code(await attacker.subscribe(8, topics[0], secret="guessed")) == "forbidden"
            for session in list(hub.sessions.values()):
                if session.name == "owner":
                    session.wire.abort()
            assert code(await attacker.subscribe(9, topics[0])) == "forbidden", "nor while its owner is away"
            await until(lambda: any(each.name == "owner" for each in hub.sessions.values()), "the owner is back")
            assert await asker.request("orders.price", 5, timeout_s=30) == 6
            assert topics[0] == topics[1]
            await asker.publish("orders.end", "end")
            for messages in (plain, shared, kept):
                seen = []
                while (message := await messages.recv()) is not None and message.topic != "orders.end":
                    seen.append(message.topic)
                assert set(seen) == {"orders.price"}

    play(act, SERVICE)


def test_notices_of_death_count_as_their_topic(play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        attacker = await come("data")
        for number, pattern in enumerate(("_dead.>", "_dead.orders.placed", "_dead.orders.>", "_dead.*.x"), 1):
            assert code(await attacker.subscribe(number, pattern)) == "forbidden"
        assert isinstance(await attacker.subscribe(9, "_dead.data.>"), control.Subscribed)
        (failure,) = (await attacker.publish("_dead.orders.placed", 1, b"made up")).failures
        assert failure.code == "forbidden"
        assert not (await attacker.publish("_dead.data.x", 2, b"true")).failures

    play(act)


# Links


def test_a_link_is_no_way_around_a_rule(play: Callable[..., None]) -> None:
    """Neither to publish on another topic, nor to receive from it."""

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        owner, attacker = await come("owner"), await come("data")
        await owner.subscribe(1, "orders.placed")
        for pattern, topic in (("data.x", "orders.placed"), ("orders.placed", "data.x"), (">", "data.x")):
            assert code(await attacker.ask(control.Link, pattern=pattern, topic=topic)) == "forbidden"
        assert isinstance(await attacker.ask(control.Link, pattern="data.x", topic="data.y"), control.Done)
        await attacker.publish("data.x", 1, b"spam")
        await owner.publish("orders.placed", 1, b"true")
        await owner.take()
        assert owner.numbers.empty()

    play(act)


# Fates and dead letters


def test_a_letter_is_about_what_was_sent_and_as_it_was(play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        owner, attacker = await come("owner"), await come("data")
        await owner.subscribe(1, "orders.placed", name="billing", durable=True)
        await owner.publish("orders.placed", 1, b"true")
        secret = await owner.take()
        await attacker.subscribe(1, "data.x", name="mine")
        await attacker.subscribe(2, "data.x", name="billing")
        await attacker.publish("data.x", 1, b"as it was")
        seq = await attacker.take()
        row = control.FateRow(fate="delivered", first=secret, last=secret, count=1)
        wide = control.FateRow(fate="delivered", first=secret, last=seq, count=2)
        others = Message(id="orders.placed-1-0", topic="orders.placed", payload=b"lie", seq=secret)
        own = Message(id="data.x-1-0", topic="orders.placed", payload=b"lie", seq=seq, attempts=3)
        other_id = Message(id="another", topic="data.x", payload=b"lie", seq=seq)
        # About a message of another client, in rows and in letters.
        errors = await attacker.tell(control.Fates(subscription=1, rows=[row, wide], letters=[packed(forged(others))]))
        assert [(error.code, error.text[:1]) for error in errors] == [("unknown", "3")]
        # Under the name of a durable subscription that is here: it has another one at the hub.
        assert await attacker.tell(control.Fates(subscription=2, letters=[packed(forged(own))])) == []
        # Of its own, it is the message as it was; of what became of it, its word counts.
        await attacker.tell(control.Fates(subscription=1, letters=[packed(forged(own)), packed(forged(other_id))]))
        answer = await attacker.ask(control.Letters)
        assert isinstance(answer, control.LettersAnswer)
        kept, renamed = sorted(await letters_in(hub), key=lambda letter: letter.subscriber, reverse=True)
        assert renamed.subscriber == "billing#2"
        assert (kept.subscriber, kept.message.topic, kept.message.payload) == ("mine", "data.x", b"as it was")
        assert (kept.message.attempts, kept.reason, kept.traceback) == (3, "made up", "trace")
        # Nothing of it can be given to the durable subscription.
        again = control.LetterAgain(subscriber="billing", seq=seq)
        done = await attacker.ask(control.LetterReplay, letters=[again])
        assert isinstance(done, control.LettersDone)
        assert (done.done, [each.code for each in done.failures]) == (0, ["unknown"])
        await journal_of(hub).journal.flush()
        fates = journal_of(hub).journal.reader.query("SELECT DISTINCT subscriber FROM fates")
        assert ("mine",) not in fates

    play(act)


def test_a_client_that_comes_again_reports_on_what_it_was_sent_before(play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        first = await come("data", origin=77)
        await first.subscribe(1, "data.x", name="mine")
        await first.publish("data.x", 1, b"one")
        seq = await first.take()
        row = control.FateRow(fate="delivered", first=seq, last=seq, count=1)
        stranger = await come("data", origin=78)
        await stranger.subscribe(1, "data.x", name="mine")
        assert [each.code for each in await stranger.tell(control.Fates(subscription=1, rows=[row]))] == ["unknown"]
        again = await come("data", origin=77)
        await first.ended.wait()
        await again.subscribe(1, "data.x", name="mine")
        assert await again.tell(control.Fates(subscription=1, rows=[row])) == []

    play(act)


def test_letters_of_a_subscription_it_could_not_join_are_not_its_to_handle(play: Callable[..., None]) -> None:
    """It sees them, because it may subscribe to their topic; but the subscription covers more than that."""
    rules = [*RULES, {"who": "cert:nobody", "may": ["publish", "subscribe"]}]

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        wide, attacker = await come("nobody"), await come("data")
        await wide.subscribe(1, ">", name="archive", durable=True)
        await attacker.publish("data.x", 1, b"one")
        seq = await wide.take()
        letter = packed(forged(Message(id="data.x-1-0", topic="data.x", seq=seq)))
        await wide.tell(control.Nack(subscription=1, seq=seq, fate="dead", letter=letter))
        seen = await attacker.ask(control.Letters)
        assert isinstance(seen, control.LettersAnswer)
        assert len(seen.letters) == 1
        again = control.LetterAgain(subscriber="archive", seq=seq)
        answer = await attacker.ask(control.LetterReplay, letters=[again])
        assert isinstance(answer, control.LettersDone)
        assert [each.code for each in answer.failures] == ["forbidden"]
        answer = await attacker.ask(control.LetterRemove, letters=[("archive", seq)])
        assert isinstance(answer, control.LettersDone)
        assert answer.done == 0
        answer = await wide.ask(control.LetterReplay, letters=[again])
        assert isinstance(answer, control.LettersDone)
        assert (answer.done, answer.failures) == (1, [])
        assert await wide.take() == seq

    play(act, rules)


# Names


def test_a_name_under_which_something_waits_is_not_for_strangers(play: Callable[..., None]) -> None:
    """Earlier failures wait for a subscriber of that name, whatever it subscribes to."""

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        owner, attacker = await come("owner"), await come("data")
        await owner.subscribe(1, "orders.placed", name="billing", durable=True)
        answer = await attacker.subscribe(1, "data.x", name="billing", durable=True)
        assert code(answer) == "exists"
        assert isinstance(answer, control.Error)
        assert "orders" not in answer.text
        assert code(await attacker.subscribe(2, "data.x", name="m", group="billing", durable=True)) == "exists"
        secret = Message(topic="orders.placed", payload=b"secret", seq=1)
        journal_of(hub).journal.ledger.keep_for("worker", secret, [], 0)
        await journal_of(hub).journal.flush()
        assert code(await attacker.subscribe(3, "data.x", name="worker", group="g")) == "exists"
        assert code(await attacker.subscribe(4, "data.x", name="worker", durable=True)) == "exists"
        assert isinstance(await attacker.subscribe(5, "data.x", name="free", group="g"), control.Subscribed)
        assert isinstance(await owner.subscribe(6, "orders.placed", name="worker", group="g"), control.Subscribed)
        assert await owner.take() == 1

    play(act)


def test_what_is_there_is_not_told_apart_from_what_is_not(play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        owner, attacker = await come("owner"), await come("data")
        await owner.ask(control.ChannelCreate, channel="orders")
        await owner.ask(control.SchemaPut, name="orders", schema={"type": "object"})
        for kind in (control.DiscoveryRequest, control.ChannelDescribe, control.ChannelDestroy):
            there = await attacker.ask(kind, channel="orders")
            missing = await attacker.ask(kind, channel="orders.no")
            assert code(there) == code(missing) == "forbidden"
        for name in ("orders", "orders.no"):
            assert code(await attacker.ask(control.SchemaGet, name=name)) == "forbidden"

    play(act)


# Origins


def test_nobody_takes_the_origin_of_another_identity(keys: Path, play: Callable[..., None]) -> None:
    """Missed messages are counted by origin and position: a false position affects only its sender."""
    rules = [*RULES, {"who": "cert:nobody", "may": ["publish", "subscribe"], "on": ["data.>"]}]

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        async with bus_of(hub, keys, "data") as bus, bus.subscribe("data.x", name="third") as messages:
            victim = await come("nobody", origin=77)
            for position in range(10):
                await victim.publish("data.x", position + 1, b"v", position=position)
            attacker = await come("data", origin=77)
            await attacker.publish("data.x", 1, b"a", position=999_999)
            await victim.publish("data.x", 11, b"v", position=10)
            for _ in range(12):
                await messages.recv()
            assert messages.account().dropped == 0
            assert not victim.ended.is_set()
            origins = [each.origin for each in hub.sessions.values() if each.name in ("nobody", "data")]
            assert len(set(origins)) == len(origins)
            assert 77 not in origins

    play(act, rules)


def test_the_same_client_is_known_again(play: Callable[..., None]) -> None:
    """By its identity and its token: only its own old connection ends."""

    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        first, other = await come("data", origin=77), await come("owner", origin=77)
        (origin,) = (each.origin for each in hub.sessions.values() if each.name == "data")
        await come("data", origin=77)
        await first.ended.wait()
        assert not other.ended.is_set()
        assert [each.origin for each in hub.sessions.values() if each.name == "data"] == [origin]

    play(act)


def test_a_request_crosses_without_rules(keys: Path, play: Callable[..., None]) -> None:
    async def act(hub: Hub, come: Callable[..., Any]) -> None:
        async with bus_of(hub, keys, "data") as bus, bus.subscribe(">") as everything:

            @bus.on("a")
            async def answer(number: int) -> int:
                return number + 1

            await bus.flush()
            assert await bus.request("a", 1, timeout_s=30) == 2
            assert await received(everything) == 1
            assert await received(everything) == 2

    play(act, [])


@pytest.mark.parametrize("sealed", [False, True], ids=["unsealed", "sealed"])
def test_after_a_restart_fates_are_about_topics_of_the_subscription(keys: Path, tmp_path: Path, sealed: bool) -> None:
    """The hub no longer knows what it had sent. A number alone is no proof that the client had the message."""

    async def outcomes(guest: Guest, message_id: str) -> list[tuple[str, str]]:
        answer = await guest.ask(control.Explain, message_id=message_id)
        assert isinstance(answer, control.ExplainAnswer)
        return [(each.subscriber, each.fate) for each in answer.outcomes]

    async def main() -> None:
        rules = SERVICE
        async with hub_of(tmp_path, keys, rules) as hub:
            owner = await Guest.come(hub, keys, "owner")
            for number, topic in enumerate(("orders.placed", "data.x", "orders.placed", "data.x"), 1):
                await owner.publish(topic, number, b"x")
            if sealed:
                assert journal_of(hub).journal.tender.seal(everything=True) == 4
        async with hub_of(tmp_path, keys, rules) as hub:
            owner, attacker = [await Guest.come(hub, keys, name) for name in ("owner", "data")]
            await attacker.subscribe(1, "data.>", name="billing")
            rows = [control.FateRow(fate="dropped", first=1, last=1, count=1), delivered(2, 4), delivered(3, 3)]
            await attacker.tell(control.Fates(subscription=1, rows=rows))
            await hub.answers.settled(10.0)
            assert await outcomes(owner, "orders.placed-1-0") == []
            assert await outcomes(owner, "orders.placed-3-0") == []
            assert await outcomes(owner, "data.x-2-0") == [("billing", "delivered")]
            assert await outcomes(owner, "data.x-4-0") == [("billing", "delivered")]

    asyncio.run(main())


def test_reports_that_the_journal_must_be_asked_about_are_bounded(keys: Path, tmp_path: Path) -> None:
    """While more than the limit wait, nothing is read from their client. None of them is lost."""

    async def main() -> None:
        async with hub_of(tmp_path, keys, SERVICE) as hub:
            owner = await Guest.come(hub, keys, "owner")
            await owner.publish("data.x", 1, b"x")
        async with hub_of(tmp_path, keys, SERVICE) as hub:
            attacker = await Guest.come(hub, keys, "data")
            await attacker.subscribe(1, "data.>", name="mine")
            (session,) = hub.sessions.values()
            report = control.Fates(subscription=1, rows=[delivered(1, 1)])
            for _ in range(hub.settings.limits.pending_bytes // EARLIER_BYTES + 1):
                hub.answers.take(session, report)
            await asyncio.sleep(0)
            assert not session.protocol.reading
            assert await attacker.tell(report) == []
            # The report that was read may again be one too many, until it is looked up.
            await hub.answers.settled(10.0)
            assert session.protocol.reading

    asyncio.run(main())


def delivered(first: int, last: int) -> control.FateRow:
    return control.FateRow(fate="delivered", first=first, last=last, count=last - first + 1)
