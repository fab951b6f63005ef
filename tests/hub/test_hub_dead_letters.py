"""Dead letters in a hub's journal: clients find them, also after a restart of either side, and replay them."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place, connection_of, until
from trunkline.brokers.hub.dead_letters import HubDeadLetters
from trunkline.errors import ProtocolError
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.hub.snapshot import snapshot_of
from trunkline.journal import Journal, JournalBroker, JournalSettings, Reader
from trunkline.testing import simulate, world
from trunkline.transports.pair import PairTransport
from trunkline.transports.transport import Wire
from trunkline.wire import control, frames
from trunkline.wire.control import Qos

Play = Callable[[Place], Awaitable[None]]
ONCE = tl.Retry(attempts=1)


def play(act: Play, folder: Path | None) -> None:
    """Run it with a hub, in virtual time."""

    async def all_of_it(simulation: Any) -> None:
        place = Place(world(simulation), folder)
        await place.start()
        try:
            await act(place)
        finally:
            await place.stop()

    simulate(all_of_it)


def run_hub(act: Callable[[Hub], Awaitable[None]], folder: Path, access: Access | None = None) -> None:
    """Run it with a hub, in real time and on real sockets."""

    async def all_of_it() -> None:
        async with Hub(JournalBroker(Journal(folder), owns_journal=True), access=access) as hub:
            await act(hub)

    asyncio.run(all_of_it())


def letters_of(bus: tl.Bus) -> HubDeadLetters:
    assert isinstance(bus.broker, tl.HubBroker)
    return bus.broker.dead_letters


def fails(bus: tl.Bus, **options: Any) -> None:
    @bus.on("orders.*", **{"name": "billing", "retry": ONCE, **options})
    async def billing(number: int) -> None:
        raise ValueError(f"no {number}")


def works(bus: tl.Bus, **options: Any) -> list[int]:
    handled: list[int] = []

    @bus.on("orders.*", **{"name": "billing", "retry": ONCE, **options})
    async def billing(number: int) -> None:
        handled.append(number)

    return handled


async def let_die(place: Place, count: int = 1, **options: Any) -> list[str]:
    """A process connects, fails on all messages, and ends. Returns the ids of the messages."""
    async with place.bus("it fails") as bus:
        fails(bus, **options)
        await bus.flush()
        ids = [await bus.publish("orders.placed", number) for number in range(count)]
        await until(lambda: bus.dead_letters.total == count, "all are dead")
        return ids


def kept(folder: Path) -> list[tuple[Any, ...]]:
    with Reader(folder) as journal:
        return journal.query("SELECT subscriber, seq FROM dead_letters ORDER BY seq")


def fates(folder: Path, message_id: str) -> dict[str, tl.Fate]:
    with Reader(folder) as journal:
        message = journal.find(message_id)
        assert message is not None
        return {each.subscriber: each.fate for each in journal.outcomes(message)}


def test_a_new_process_lists_and_replays_what_died_at_the_old_one(tmp_path: Path) -> None:
    ids: list[str] = []

    async def act(place: Place) -> None:
        ids.extend(await let_die(place, 3, durable=True))
        async with place.bus("second") as bus:
            found = await letters_of(bus).find()
            assert [each.letter.message.id for each in found] == ids
            assert "no 0" in found[0].letter.traceback
            assert (await bus.replay_dead(dry_run=True)).ids == tuple(ids)
            handled = works(bus, durable=True)
            await bus.flush()
            assert (await bus.replay_dead()).count == 3
            await until(lambda: len(handled) == 3, "they are handled")
            assert handled == [0, 1, 2]
            assert bus.accounts()["billing"] == tl.Account(accepted=3, delivered=3)
            assert await letters_of(bus).find() == []
            assert (await bus.replay_dead()).ids == ()

    play(act, tmp_path)
    assert kept(tmp_path) == []
    assert [fates(tmp_path, each) for each in ids] == 3 * [{"billing": tl.Fate.DELIVERED}]
    with Reader(tmp_path) as journal:
        assert journal.query("SELECT * FROM retries") == []


def test_a_letter_is_repaired_and_replayed_from_another_process(tmp_path: Path) -> None:
    ids: list[str] = []

    async def act(place: Place) -> None:
        ids.extend(await let_die(place, durable=True))
        async with place.bus("second") as bus, place.bus("operator") as operator:
            handled = works(bus, durable=True)
            await bus.flush()
            (found,) = await letters_of(operator).find()
            assert await letters_of(operator).replay([found.letter], payload=70) == []
            await until(lambda: handled == [70], "it is handled as it was repaired")
            assert await letters_of(operator).find() == []

    play(act, tmp_path)
    assert kept(tmp_path) == []
    assert fates(tmp_path, ids[0]) == {"billing": tl.Fate.DELIVERED}


@pytest.mark.parametrize("journal", [True, False])
def test_a_death_is_announced_to_other_processes(tmp_path: Path, journal: bool) -> None:
    async def act(place: Place) -> None:
        async with place.bus("watchman") as watchman, watchman.subscribe("_dead.>") as deaths:
            (first,) = await let_die(place)
            notice = await deaths.recv(timeout_s=5)
            assert notice is not None
            assert (notice.topic, notice.correlation_id) == ("_dead.orders.placed", first)

    play(act, tmp_path if journal else None)


def test_what_died_on_a_topic_that_is_not_stored_is_no_fault_of_its_client(tmp_path: Path) -> None:
    """The subscription gets stored topics, too. The letter stays with the client, and the hub knows the fate."""

    async def main() -> None:
        journal = Journal(tmp_path, JournalSettings(durable=("orders.>",)))
        async with Hub(JournalBroker(journal, owns_journal=True)) as hub:
            await hub.listen("pair:letters-of-plain-topics")
            async with tl.connect(hub.addresses[0], name="bus") as bus:

                async def refuse(message: tl.Message) -> None:
                    raise tl.Reject("no")

                bus.handle("*.placed", refuse, name="billing")
                ids = [await bus.publish(topic, 1) for topic in ("orders.placed", "ticks.placed")]
                await until(lambda: all(bus.dead_letters.find(message_id=each) for each in ids), "they are dead")
                for message_id in ids:
                    (outcome,) = (await bus.explain(message_id)).outcomes
                    assert outcome.fate is tl.Fate.DEAD
                await hub.answers.settled(10.0)
                assert hub.counts["refused"] == 0

    asyncio.run(main())


def test_they_outlive_the_hub(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        (first,) = await let_die(place, durable=True)
        await place.stop()
        await place.start()
        async with place.bus("second") as bus:
            handled = works(bus, durable=True)
            await bus.flush()
            assert (await bus.replay_dead()).ids == (first,)
            await until(lambda: handled == [0], "it is handled")

    play(act, tmp_path)
    assert kept(tmp_path) == []


def test_what_is_replayed_waits_for_a_durable_subscriber_that_is_away(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        (first,) = await let_die(place, durable=True)
        await place.stop()
        await place.start()
        # There were no subscribers since the hub started, and the client that replays does not subscribe.
        async with place.bus("operator") as operator:
            assert (await operator.replay_dead()).ids == (first,)
            assert await letters_of(operator).find() == []
        await place.stop()
        assert kept(tmp_path) == []
        assert fates(tmp_path, first) == {"billing": tl.Fate.IN_FLIGHT}
        await place.start()
        async with place.bus("second") as bus:
            handled = works(bus, durable=True)
            await until(lambda: handled == [0], "it is handled")

    play(act, tmp_path)


def test_in_the_same_process_it_is_handled_once_and_explained(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            tries: list[int] = []

            @bus.on("orders.*", name="member", group="billing", durable=True, retry=ONCE)
            async def billing(number: int) -> None:
                tries.append(number)
                if len(tries) == 1:
                    raise ValueError("the first time")

            await bus.flush()
            first = await bus.publish("orders.placed", 7)
            await until(lambda: len(bus.dead_letters) == 1, "it is dead")
            assert {each.fate for each in (await bus.explain(first)).outcomes} == {tl.Fate.DEAD}
            assert (await bus.replay_dead(subscriber="billing")).ids == (first,)
            await until(lambda: len(tries) == 2, "it is handled")
            await bus.quiet()
            assert {each.fate for each in (await bus.explain(first)).outcomes} == {tl.Fate.DELIVERED}
            assert (await bus.replay_dead()).ids == ()
            await asyncio.sleep(1)
            assert tries == [7, 7]
            assert bus.accounts()["member"].balanced

    play(act, tmp_path)
    assert kept(tmp_path) == []


def test_what_fails_again_is_a_dead_letter_again(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        (first,) = await let_die(place, durable=True)
        async with place.bus("second") as bus:
            fails(bus, durable=True, retry=tl.Retry(attempts=2))
            await bus.flush()
            assert (await bus.replay_dead()).ids == (first,)
            await until(lambda: len(bus.dead_letters) == 1, "it is dead again")
            (found,) = await letters_of(bus).find()
            assert found.letter.message.attempts == 2

    play(act, tmp_path)
    assert kept(tmp_path) == [("billing", 1)]


def test_a_replay_is_no_duplicate_of_what_failed(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            tries: list[int] = []

            @bus.on("orders.*", name="billing", durable=True, retry=ONCE, dedupe_s=3600)
            async def billing(number: int) -> None:
                tries.append(number)
                if len(tries) == 1:
                    raise ValueError("the first time")

            await bus.flush()
            await bus.publish("orders.placed", 7)
            await until(lambda: len(bus.dead_letters) == 1, "it is dead")
            await bus.replay_dead()
            await until(lambda: len(tries) == 2, "it is handled")

    play(act, tmp_path)


def test_a_letter_is_replayed_with_another_payload(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        await let_die(place, durable=True)
        async with place.bus("second") as bus:
            handled = works(bus, durable=True)
            await bus.flush()
            (found,), _ = await bus.broker.require_store().recall_dead_letters()
            bus.dead_letters.restore(found)
            bus.dead_letters.replay(found, payload=42)
            await until(lambda: handled == [42], "it is handled")
            assert await letters_of(bus).find() == []

    play(act, tmp_path)
    assert kept(tmp_path) == []


@dataclass
class Order:
    number: int


def test_another_payload_must_fit_the_channel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            assert isinstance(bus.broker, tl.HubBroker)
            await bus.broker.require_directory().register_producer("orders", schema=Order)

            @bus.on("orders", name="billing", durable=True, retry=ONCE)
            async def billing(order: Order) -> None:
                raise ValueError("no")

            await bus.flush()
            await bus.publish("orders", Order(1))
            await until(lambda: len(bus.dead_letters) == 1, "it is dead")
            (letter,) = bus.dead_letters
            bus.dead_letters.replay(letter, payload={"number": "one"})
            (found,) = await letters_of(bus).find()
            assert found.letter.message.decode() == {"number": 1}
            assert "$.number" in caplog.text

    play(act, tmp_path)


def test_members_of_one_name_in_two_processes_are_told_apart(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        async with place.bus("one") as one, place.bus("another") as another:
            tries: list[int] = []
            for bus in (one, another):

                @bus.on("orders.*", name="billing", group="billing", retry=ONCE)
                async def billing(number: int) -> None:
                    tries.append(number)
                    if len(tries) <= 4:
                        raise ValueError("not yet")

                await bus.flush()
            for number in range(4):
                await one.publish("orders.placed", number)
            await until(lambda: len(one.dead_letters) + len(another.dead_letters) == 4, "all are dead")
            assert len(another.dead_letters) > 0
            assert {each.letter.subscriber for each in await letters_of(one).find()} == {"billing", "billing#2"}
            # Those of the other process are replayed, too: the hub knows where it is.
            assert (await another.replay_dead()).count == 4
            await until(lambda: len(tries) == 8, "all are handled")
            await asyncio.sleep(1)
            assert len(tries) == 8
            assert await letters_of(one).find() == []

    play(act, tmp_path)
    assert kept(tmp_path) == []


def test_who_has_left_for_good_gets_nothing(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        (first,) = await let_die(place, group="billing")
        async with place.bus("second") as bus:
            done = await bus.replay_dead()
            assert (done.ids, done.count) == ((first,), 0)
            assert "billing" in done.failed[0].reason

    play(act, tmp_path)
    assert kept(tmp_path) == [("billing", 1)]


# Plain subscriptions: their own process gives them back


def test_a_plain_subscriber_gets_its_letters_back_and_they_go_when_they_are_handled(tmp_path: Path) -> None:
    ids: list[str] = []

    async def act(place: Place) -> None:
        ids.extend(await let_die(place, 2))
        async with place.bus("second") as bus:
            handled: list[int] = []
            go_on = asyncio.Event()

            @bus.on("orders.*", name="billing")
            async def billing(number: int) -> None:
                await go_on.wait()
                handled.append(number)

            await bus.flush()
            assert (await bus.replay_dead()).count == 2
            # In flight: they are still at the hub, and not replayed twice.
            assert len(await letters_of(bus).find()) == 2
            assert (await bus.replay_dead()).ids == ()
            go_on.set()
            await until(lambda: len(handled) == 2, "they are handled")
            await bus.quiet()
            assert await letters_of(bus).find() == []

    play(act, tmp_path)
    assert kept(tmp_path) == []
    assert [fates(tmp_path, each) for each in ids] == 2 * [{"billing": tl.Fate.DELIVERED}]


def test_a_plain_replay_that_nobody_handles_stays_a_letter(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        (first,) = await let_die(place)
        async with place.bus("second") as bus:

            @bus.on("orders.*", name="billing")
            async def billing(number: int) -> None:
                await asyncio.Event().wait()

            await bus.flush()
            assert (await bus.replay_dead()).ids == (first,)
            await bus.aclose(drain_s=0)

    play(act, tmp_path)
    assert kept(tmp_path) == [("billing", 1)]


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"group": "billing"}])
def test_what_is_removed_here_is_removed_at_the_hub(tmp_path: Path, options: dict[str, Any]) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            fails(bus, **options)
            await bus.flush()
            await bus.publish("orders.placed", 1)
            await until(lambda: len(bus.dead_letters) == 1, "it is dead")
            assert len(await letters_of(bus).find()) == 1
            assert bus.dead_letters.clear() == 1
            assert await letters_of(bus).find() == []

    play(act, tmp_path)
    assert kept(tmp_path) == []


# Many, and large ones


def test_many_come_in_pages_and_each_once(tmp_path: Path) -> None:
    count = 2300

    async def act(place: Place) -> None:
        ids = await let_die(place, count, durable=True)
        async with place.bus("second") as bus:
            connection = connection_of(bus)
            first = await connection.ask(lambda asked: control.Letters(id=asked))
            assert isinstance(first, control.LettersAnswer)
            assert 0 < len(first.letters) <= 1000
            assert first.more
            before = connection.protocol.bytes_in
            assert [each.letter.message.id for each in await letters_of(bus).find()] == ids
            once = connection.protocol.bytes_in - before
            assert (await bus.replay_dead(dry_run=True)).ids == tuple(ids)
            # Each page travels once, however many there are.
            assert connection.protocol.bytes_in - before < 2.1 * once
            assert len(await letters_of(bus).find(limit=7)) == 7
            handled = works(bus, durable=True)
            await bus.flush()
            assert (await bus.replay_dead()).count == count
            await until(lambda: len(handled) == count, "all are handled")

    play(act, tmp_path)
    assert kept(tmp_path) == []


def test_an_answer_is_no_larger_than_the_client_takes(tmp_path: Path) -> None:
    """A message that does not fit is listed without its payload, and can still be replayed: the hub has it."""

    async def act(hub: Hub) -> None:
        address = await hub.listen(f"unix://{tmp_path}/hub.sock")
        sizes: list[int] = []
        async with tl.connect(address) as bus:

            @bus.on("files", name="archive", durable=True, retry=ONCE)
            async def archive(data: bytes) -> None:
                sizes.append(len(data))
                if len(sizes) <= 5:
                    raise ValueError("no")

            await bus.flush()
            for size in (100, 60_000, 60_000, 60_000, 200_000):
                await bus.publish("files", bytes(size))
            await until(lambda: len(bus.dead_letters) == 5, "all are dead")
            async with tl.connect(
                address, name="narrow", connection=tl.ConnectionSettings(max_frame_bytes=100_000)
            ) as narrow:
                found = await letters_of(narrow).find()
                assert [each.whole for each in found] == [True, True, True, True, False]
                assert (await narrow.replay_dead()).count == 5
                assert connection_of(narrow).connects == 1
            await until(lambda: len(sizes) == 10, "all are handled")
            assert sizes[5:] == sizes[:5]

    run_hub(act, tmp_path / "journal")
    assert kept(tmp_path / "journal") == []


def test_they_are_chosen_by_subscriber_topic_cause_and_id(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:

            @bus.on("a.*", name="first", durable=True, retry=ONCE)
            async def first(number: int) -> None:
                raise ValueError("no")

            @bus.on("*.b", name="second", durable=True, retry=ONCE)
            async def second(number: int) -> None:
                raise tl.Reject("never")

            await bus.flush()
            one, two = await bus.publish("a.b", 1), await bus.publish("a.c", 2)
            await until(lambda: len(bus.dead_letters) == 3, "all are dead")
            find = letters_of(bus).find

            async def who(**choice: Any) -> list[tuple[str, str]]:
                found = await find(**choice)
                return sorted((each.letter.subscriber, each.letter.message.id) for each in found)

            assert await who(subscriber="first") == [("first", one), ("first", two)]
            assert await who(topic="*.b") == [("first", one), ("second", one)]
            assert await who(cause=tl.Cause.REJECTED) == [("second", one)]
            assert await who(message_id=two) == [("first", two)]
            assert await who(subscriber="nobody") == []
            (brief, *_) = await find(brief=True)
            assert (brief.whole, brief.letter.traceback, brief.letter.message.payload) == (False, "", b"")

    play(act, tmp_path)


# What is not for everybody, and what cannot be


def test_only_who_may_subscribe_to_the_topic_sees_them(tmp_path: Path) -> None:
    rules = (
        {"who": "uid:*", "may": ["publish", "subscribe"]},
        {"who": "anonymous", "may": ["subscribe"], "on": ["public.>"]},
    )

    async def act(hub: Hub) -> None:
        address = await hub.listen(f"unix://{tmp_path}/hub.sock")
        open_address = await hub.listen("tcp://127.0.0.1:0")
        async with tl.connect(address, name="owner") as owner, tl.connect(open_address, name="guest") as guest:
            for topic in ("public.notes", "secret.notes"):

                @owner.on(topic, name=f"reads {topic}", durable=True, retry=ONCE)
                async def read(number: int) -> None:
                    raise ValueError("no")

            await owner.flush()
            for topic in ("public.notes", "secret.notes"):
                await owner.publish(topic, 1)
            await until(lambda: len(owner.dead_letters) == 2, "both are dead")
            topics = [each.letter.message.topic for each in await letters_of(owner).find()]
            assert sorted(topics) == ["public.notes", "secret.notes"]
            assert [each.letter.message.topic for each in await letters_of(guest).find()] == ["public.notes"]
            assert await letters_of(guest).find(subscriber="reads secret.notes") == []
            secret = (await letters_of(owner).find(topic="secret.*"))[0].letter
            public = (await letters_of(owner).find(topic="public.*"))[0].letter
            (failure,) = await letters_of(guest).replay([secret])
            assert failure.code == "unknown"
            asked_for = f"dead letter {secret.message.seq} of reads secret.notes"
            assert "secret.notes" not in failure.text.removeprefix(f"there is no {asked_for}")
            answer = await connection_of(guest).ask(
                lambda asked: control.LetterRemove(id=asked, letters=[(secret.subscriber, secret.message.seq)])
            )
            assert isinstance(answer, control.LettersDone)
            assert answer.done == 0
            # It may see it, and give it back; but what it says itself is not to be published.
            changed = tl.Message(topic="public.notes", payload=2)
            again = control.LetterAgain(subscriber=public.subscriber, seq=public.message.seq, message=_packed(changed))
            answer = await connection_of(guest).ask(lambda asked: control.LetterReplay(id=asked, letters=[again]))
            assert isinstance(answer, control.LettersDone)
            assert [each.code for each in answer.failures] == ["forbidden"]
            assert len(await letters_of(owner).find()) == 2

    run_hub(act, tmp_path / "journal", Access.load(rules))


def _packed(message: tl.Message) -> str:
    return base64.b64encode(message.to_bytes()).decode()


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda asked: control.Letters(id=asked, limit=0), "malformed"),
        (lambda asked: control.Letters(id=asked, cause="bad luck"), "malformed"),
        (lambda asked: control.Letters(id=asked, topic="a..b"), "invalid_topic"),
        (lambda asked: control.Letters(id=asked, after="the end"), "malformed"),
        (lambda asked: control.Letters(id=asked, after=f"{2**80}:1:x"), "malformed"),
        (lambda asked: control.LetterRemove(id=asked, letters=[("x", 2**80)]), "malformed"),
        (lambda asked: control.LetterRemove(id=asked, letters=[("x", n) for n in range(1, 1002)]), "too_many"),
        (
            lambda asked: control.LetterReplay(id=asked, letters=[control.LetterAgain(subscriber="x", seq=-1)]),
            "malformed",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, ask: Callable[[int], control.Ask], code: str) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            with pytest.raises(tl.HubRefused) as refused:
                await connection_of(bus).ask(ask)
            assert refused.value.code == code

    play(act, tmp_path)


def test_a_changed_message_that_is_none_leaves_the_letter(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        await let_die(place, durable=True)
        async with place.bus("second") as bus:
            for bad in ("?", base64.b64encode(b"\xc1").decode(), _packed(tl.Message(topic="elsewhere"))):
                again = control.LetterAgain(subscriber="billing", seq=1, message=bad)
                answer = await connection_of(bus).ask(
                    lambda asked, again=again: control.LetterReplay(id=asked, letters=[again])  # type: ignore[misc]
                )
                assert isinstance(answer, control.LettersDone)
                assert [each.code for each in answer.failures] == ["malformed"]

    play(act, tmp_path)
    assert kept(tmp_path) == [("billing", 1)]


def test_what_broke_a_schema_is_listed_and_not_replayed(tmp_path: Path) -> None:
    """No subscriber failed on it, so there is no subscriber to redeliver it to."""

    async def act(place: Place) -> None:
        async with place.bus() as bus:
            assert isinstance(bus.broker, tl.HubBroker)
            directory = bus.broker.require_directory()
            await directory.create_channel("orders", schema=Order, qos=Qos(invalid="dead_letter"))
            await bus.publish("orders", {"number": "one"})
            await bus.flush()
            (found,) = await letters_of(bus).find(cause=tl.Cause.INVALID_PAYLOAD)
            assert (found.letter.subscriber, found.returns) == ("channel orders", False)
            assert found.letter.message.decode() == {"number": "one"}
            done = await bus.replay_dead()
            assert done.count == 0
            assert "channel orders" in done.failed[0].reason
            (failure,) = await letters_of(bus).replay([found.letter])
            assert "publish it again" in failure.text
            assert len(await letters_of(bus).find()) == 1

    play(act, tmp_path)


# Hubs without a journal, and hubs that know nothing of it


def test_a_hub_without_a_journal_has_none_and_what_died_here_is_replayed_here() -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            tries: list[int] = []

            @bus.on("orders.*", name="billing", group="billing", retry=ONCE)
            async def billing(number: int) -> None:
                tries.append(number)
                if len(tries) == 1:
                    raise ValueError("the first time")

            await bus.flush()
            await bus.publish("orders.placed", 1)
            await until(lambda: len(bus.dead_letters) == 1, "it is dead")
            assert await letters_of(bus).find() == []
            assert (await bus.replay_dead()).count == 1
            await until(lambda: len(tries) == 2, "it is handled")
            assert await bus.broker.require_store().recall_dead_letters() == ([], "")

    play(act, None)


@pytest.mark.parametrize("journal", [False, True])
def test_what_became_of_a_member_s_replay_is_known_everywhere(journal: bool, tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        async with place.bus("worker") as bus, place.bus("other") as other:
            tries: list[int] = []

            @bus.on("orders.*", name="billing", group="billing", retry=ONCE)
            async def billing(number: int) -> None:
                tries.append(number)
                if len(tries) < 3:
                    raise ValueError(f"time {len(tries)}")

            await bus.flush()
            message_id = await other.publish("orders.placed", 7)
            await fate_is(message_id, "dead", "handler failed: ValueError: time 1", bus, other)
            assert (await bus.replay_dead()).count == 1
            await fate_is(message_id, "dead", "handler failed: ValueError: time 2", bus, other)
            assert ((await snapshot_of(place.hub, 10)).dead_letters, len(bus.dead_letters)) == (1, 1)
            assert (await bus.replay_dead()).count == 1
            await fate_is(message_id, "delivered", "", bus, other)
            assert ((await snapshot_of(place.hub, 10)).dead_letters, len(bus.dead_letters)) == (0, 0)
            (row,) = (await snapshot_of(place.hub, 10)).subscribers
            assert (row.accepted, row.delivered, row.dead) == (1, 1, 0)

    play(act, tmp_path if journal else None)


async def fate_is(message_id: str, fate: str, reason: str, *buses: tl.Bus) -> None:
    """Return when all conditions hold, within a minute."""
    for bus in buses:
        async with asyncio.timeout(60):
            while True:
                explained = await bus.explain(message_id)
                if [(each.fate.value, each.reason) for each in explained.outcomes] == [(fate, reason)]:
                    break
                await asyncio.sleep(0.1)


def test_a_hub_that_refuses_the_question_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(place: Place) -> None:
        await let_die(place, durable=True)

        def refuse(*_: object) -> None:
            raise ProtocolError("unknown", "this hub does not know LETTERS")

        place.hub.answers._handlers[control.Letters] = refuse
        async with place.bus("second") as bus:
            assert await bus.broker.require_store().recall_dead_letters() == ([], "")
            assert (await bus.replay_dead()).ids == ()
            warned = [each for each in caplog.records if "cannot list them" in each.message]
            assert [each.levelno for each in warned] == [logging.WARNING]

    play(act, tmp_path)


class OldHub:
    """It has a journal and the same version, but does not know dead letters: it answers only HELLO."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.heard: list[Any] = []

    def received(self, batch: Any) -> None:
        for frame in batch:
            said = control.read_from_client(frame[1:])
            self.heard.append(said)
            if isinstance(said, control.Hello):
                welcome = control.Welcome(
                    re=said.id,
                    version=1,
                    hub="old",
                    session="1",
                    identity="anonymous",
                    heartbeat_s=5.0,
                    window=1000,
                    max_frame_bytes=1_000_000,
                    features=[feature.value for feature in tl.Feature],
                )
                self._wire.send([(frames.control(control.write(welcome)),)])

    def writable(self) -> None:
        return

    def broken(self, error: Exception) -> None:
        raise error

    def lost(self, why: str) -> None:
        return


def test_an_older_hub_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    """It would not answer: to it, an unknown message is a bad frame."""

    async def act(simulation: Any) -> None:
        hubs: list[OldHub] = []

        def accept(wire: Wire) -> OldHub:
            hubs.append(OldHub(wire))
            return hubs[-1]

        listener = await PairTransport().listen("pair:old", accept, max_frame_bytes=1_000_000)
        async with tl.connect("pair:old", name="second", world=world(simulation)) as bus:
            assert await bus.broker.require_store().recall_dead_letters() == ([], "")
            assert (await bus.replay_dead()).ids == ()
        await listener.aclose()
        assert not any(isinstance(each, control.Letters) for hub in hubs for each in hub.heard)
        assert caplog.text.count("cannot list them") == 1

    simulate(act)


def test_a_replay_is_told_when_the_hub_is_back(tmp_path: Path) -> None:
    async def act(place: Place) -> None:
        async with place.bus() as bus:
            tries: list[int] = []

            @bus.on("orders.*", name="billing", durable=True, retry=ONCE)
            async def billing(number: int) -> None:
                tries.append(number)
                if len(tries) == 1:
                    raise ValueError("the first time")

            await bus.flush()
            await bus.publish("orders.placed", 1)
            await until(lambda: len(bus.dead_letters) == 1, "it is dead")
            await letters_of(bus).find()
            await place.stop()
            (letter,) = bus.dead_letters
            bus.dead_letters.replay(letter)
            with pytest.raises(tl.HubUnavailable):
                await bus.broker.require_store().recall_dead_letters()
            await place.start()
            await until(lambda: len(tries) == 2, "it is handled")

    play(act, tmp_path)
    assert kept(tmp_path) == []
