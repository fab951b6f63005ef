"""Every message of the protocol, sent by every kind of identity about objects of another one, at a live hub.

A message that is added to the protocol needs a row here.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hub.guests import RULES, Guest, batch_on, hub_of, make_keys
from tests.hub.hubs import until
from trunkline import Cause, DeadLetter, Message, ProtocolError
from trunkline.hub import rights
from trunkline.hub.access import Access, AccessRule, Action
from trunkline.hub.hub import Hub
from trunkline.hub.rights import RIGHTS
from trunkline.journal import JournalBroker
from trunkline.segments import Segment, probe
from trunkline.topic import reply_topic
from trunkline.wire import control
from trunkline.wire.frames import PublishHead

KINDS = ("nobody", "data", "owner", "elsewhere", "admin", "open")
"""Who says it: without any rule; with rules for `data.>` only; who owns it; with all rights elsewhere; who administers;
and somebody else, at a hub without rules."""
ALL = set(KINDS)
USERS = {"owner", "open"}
SEERS = {"owner", "admin", "open"}
ADMINS = {"admin", "open"}
MINE = {"owner"}
"""What belongs to a connection is nobody else's, also without rules."""
PLAIN, MEMBER, SLOW, DURABLE = 1, 2, 3, 4


class Scene:
    """The objects of the owner: subscriptions, a link, a channel with a schema, a dead letter, a waiting batch."""

    hub: Hub
    owner: Guest
    seq: int
    """Of a message that a plain subscription and a member of a group were sent."""

    async def build(self, hub: Hub, keys: Path) -> None:
        self.hub = hub
        owner = self.owner = await Guest.come(hub, keys, "owner")
        schema = {"type": "object"}
        (info,) = (await _as(control.Schemas, owner.ask(control.SchemaPut, name="orders", schema=schema))).schemas
        await _as(control.Done, owner.ask(control.ChannelCreate, channel="orders", pattern="orders.made.>"))
        await _as(control.Done, owner.ask(control.ChannelCreate, channel="orders.typed", schema_hash=info.hash))
        await _as(control.Done, owner.ask(control.ProducerRegister, channel="orders"))
        await _as(control.Done, owner.ask(control.ConsumerRegister, channel="orders", consumer_id="c"))
        await _as(control.Done, owner.ask(control.Link, pattern="orders.placed", topic="_to.owner"))
        await _as(control.Subscribed, owner.subscribe(PLAIN, "orders.placed", name="audit"))
        await _as(control.Subscribed, owner.subscribe(MEMBER, "orders.placed", name="m", group="g"))
        await _as(control.Subscribed, owner.subscribe(SLOW, "orders.slow", credit=0))
        await _as(control.Subscribed, owner.subscribe(DURABLE, "orders.placed", name="billing", durable=True))
        await owner.publish("orders.placed", 1, b"1")
        self.seq = await owner.take()
        assert [await owner.take() for _ in range(2)] == [self.seq] * 2
        letter = letter_of(Message(id="orders.placed-1-0", topic="orders.placed", seq=self.seq))
        owner.say(control.Nack(subscription=DURABLE, seq=self.seq, fate="dead", letter=letter))
        owner.send(batch_on("orders.slow", 2, [b"2"]))
        await owner.tell()
        await until(lambda: self.waiting > 0, "the batch waits")

    @property
    def waiting(self) -> int:
        waiting: int = self.hub.stats()["waiting"]
        return waiting

    @property
    def session(self) -> Any:
        return next(each for each in self.hub.sessions.values() if each.name == "owner")

    @property
    def held(self) -> int:
        held: int = self.session.members[MEMBER].held
        return held

    async def fates(self) -> list[tuple[Any, ...]]:
        broker = self.hub.broker
        assert isinstance(broker, JournalBroker)
        await broker.journal.flush()
        query = "SELECT fate FROM fates WHERE subscriber = 'audit'"
        return await broker.journal.in_thread(lambda reader: reader.query(query))


class Row(NamedTuple):
    allowed: set[str]
    do: Callable[[Guest, Scene], Awaitable[bool]]
    """Say it; whether it had its effect."""


async def _as(kind: type[Any], asking: Awaitable[control.Control]) -> Any:
    answer = await asking
    assert isinstance(answer, kind), answer
    return answer


def letter_of(message: Message, subscriber: str = "someone") -> str:
    letter = DeadLetter(message, subscriber, Cause.REJECTED, "why", "Reject", "", (), 1)
    return base64.b64encode(letter.to_bytes()).decode()


def asks(kind: type[control.Control], **fields: Any) -> Callable[[Guest, Scene], Awaitable[bool]]:
    """Its answer is not an error, and it changes something."""

    async def do(guest: Guest, scene: Scene) -> bool:
        answer = await guest.ask(kind, **fields)
        if isinstance(answer, control.Error):
            assert answer.code in ("forbidden", "unknown", "unknown_channel", "unknown_schema"), answer
            return False
        return answer.changed if isinstance(answer, control.Done) else True

    return do


def tells(
    make: Callable[[Scene], control.Control], effect: Callable[[Scene], bool]
) -> Callable[[Guest, Scene], Awaitable[bool]]:
    """It has no answer: its effect on the owner is checked."""

    async def do(guest: Guest, scene: Scene) -> bool:
        assert not effect(scene)
        await guest.tell(make(scene))
        return effect(scene)

    return do


async def says_goodbye(guest: Guest, scene: Scene) -> bool:
    guest.say(control.Goodbye())
    await guest.ended.wait()
    return True


async def is_welcome(guest: Guest, scene: Scene) -> bool:
    """Each succeeded: an identity comes from the transport. A second HELLO is refused."""
    error = await _as(control.Error, guest.ask(control.Hello, versions=[1], name="other", origin=7))
    return bool(error.code == "out_of_order")


async def reports(guest: Guest, scene: Scene) -> bool:
    row = control.FateRow(fate="delivered", first=scene.seq, last=scene.seq, count=1)
    await guest.tell(control.Fates(subscription=PLAIN, rows=[row]))
    return bool(await scene.fates())


async def sees_letters(guest: Guest, scene: Scene) -> bool:
    return bool((await _as(control.LettersAnswer, guest.ask(control.Letters))).letters)


async def replays(guest: Guest, scene: Scene) -> bool:
    again = control.LetterAgain(subscriber="billing", seq=scene.seq)
    return bool((await _as(control.LettersDone, guest.ask(control.LetterReplay, letters=[again]))).done)


async def removes(guest: Guest, scene: Scene) -> bool:
    letters = [("billing", scene.seq)]
    return bool((await _as(control.LettersDone, guest.ask(control.LetterRemove, letters=letters))).done)


async def forgets(guest: Guest, scene: Scene) -> bool:
    """Of an unused one."""
    await scene.owner.ask(control.Unsubscribe, subscription=DURABLE)
    return await asks(control.Forget, name="billing")(guest, scene)


async def lists_channels(guest: Guest, scene: Scene) -> bool:
    return bool((await _as(control.Channels, guest.ask(control.ChannelList))).channels)


async def lists_schemas(guest: Guest, scene: Scene) -> bool:
    return bool((await _as(control.Schemas, guest.ask(control.SchemaList))).schemas)


async def maps(guest: Guest, scene: Scene) -> bool:
    """As if the owner were on this host."""
    scene.session.process = os.getpid()
    return await tells(lambda scene: control.Maps(), lambda scene: bool(scene.session.maps))(guest, scene)


async def has_mapped(guest: Guest, scene: Scene) -> bool:
    offered = probe(guest.wire.peer.identity)
    assert offered is not None
    scene.session.shared[1] = Segment.open(os.getpid(), offered.descriptor, offered.size, offered.token)
    return await tells(lambda scene: control.Mapped(numbers=[1]), lambda scene: not scene.session.shared)(guest, scene)


async def publishes(guest: Guest, scene: Scene) -> bool:
    taken = await guest.publish("orders.other", 7, b"x")
    assert [each.code for each in taken.failures] in ([], ["forbidden"])
    return not taken.failures


ROWS: dict[type, Row] = {
    PublishHead: Row(USERS, publishes),
    control.Hello: Row(ALL, is_welcome),
    control.Goodbye: Row(ALL, says_goodbye),
    control.Maps: Row(MINE, maps),
    control.Mapped: Row(MINE, has_mapped),
    control.Heartbeat: Row(ALL, asks(control.Heartbeat)),
    control.Topic: Row(USERS, asks(control.Topic, topic="orders.placed")),
    control.Withdraw: Row(MINE, tells(lambda scene: control.Withdraw(batch=2), lambda scene: not scene.waiting)),
    control.Subscribe: Row(
        USERS, asks(control.Subscribe, subscription=9, pattern="orders.placed", name="new", credit=-1)
    ),
    control.Last: Row(USERS, asks(control.Last, topic="orders.placed")),
    control.Explain: Row(SEERS, asks(control.Explain, message_id="orders.placed-1-0")),
    control.Unsubscribe: Row(MINE, asks(control.Unsubscribe, subscription=PLAIN)),
    control.Stop: Row(
        MINE,
        tells(
            lambda scene: control.Stop(subscription=MEMBER),
            lambda scene: scene.session.members[MEMBER].stream.inbox.closed,
        ),
    ),
    control.Credit: Row(
        MINE,
        tells(lambda scene: control.Credit(subscription=SLOW, messages=5), lambda scene: not scene.waiting),
    ),
    control.Ack: Row(
        MINE,
        tells(lambda scene: control.Ack(subscription=MEMBER, ranges=[(1, scene.seq)]), lambda scene: not scene.held),
    ),
    control.Nack: Row(
        MINE,
        tells(
            lambda scene: control.Nack(subscription=MEMBER, seq=scene.seq, fate="dropped"),
            lambda scene: not scene.held,
        ),
    ),
    control.Fates: Row(MINE, reports),
    control.Link: Row(USERS, asks(control.Link, pattern="orders.placed", topic="orders.copy")),
    control.Unlink: Row(MINE, asks(control.Unlink, pattern="orders.placed", topic="_to.owner")),
    control.Forget: Row(SEERS, forgets),
    control.Letters: Row(USERS, sees_letters),
    control.LetterReplay: Row(SEERS, replays),
    control.LetterRemove: Row(SEERS, removes),
    control.ProducerRegister: Row(USERS, asks(control.ProducerRegister, channel="orders", metadata={"a": 1})),
    control.ProducerUnregister: Row(MINE, asks(control.ProducerUnregister, channel="orders")),
    control.ConsumerRegister: Row(USERS, asks(control.ConsumerRegister, channel="orders", consumer_id="d")),
    control.ConsumerUnregister: Row(MINE, asks(control.ConsumerUnregister, channel="orders", consumer_id="c")),
    control.DiscoveryRequest: Row(SEERS, asks(control.DiscoveryRequest, channel="orders")),
    control.ChannelCreate: Row(USERS, asks(control.ChannelCreate, channel="orders.new")),
    control.ChannelDestroy: Row(SEERS, asks(control.ChannelDestroy, channel="orders")),
    control.ChannelList: Row(SEERS, lists_channels),
    control.ChannelDescribe: Row(SEERS, asks(control.ChannelDescribe, channel="orders")),
    control.SchemaPut: Row(USERS, asks(control.SchemaPut, name="orders", schema={"type": "object", "title": "new"})),
    control.SchemaGet: Row(SEERS, asks(control.SchemaGet, name="orders")),
    control.SchemaList: Row(SEERS, lists_schemas),
    control.Stats: Row(ADMINS, asks(control.Stats)),
    control.SnapshotRequest: Row(ADMINS, asks(control.SnapshotRequest)),
    control.Trace: Row(ADMINS, asks(control.Trace)),
}


def test_every_message_has_a_row() -> None:
    assert set(ROWS) == {PublishHead, *control.FROM_CLIENT} == {PublishHead, *RIGHTS}
    assert all(row.reason for row in RIGHTS.values() if not _needed(row)), "what needs no right says why"


def test_who_may_say_it_follows_from_the_table() -> None:
    """Rights on topics of others are needed for their objects. Own objects need only the owner."""
    for kind, row in RIGHTS.items():
        needed = {action for action, _ in _needed(row)}
        if needed:
            assert ROWS[kind].allowed == (ADMINS if needed == {Action.ADMINISTER} else USERS), kind
        elif "of its own connection" in row.reason and kind is not control.Goodbye:
            assert ROWS[kind].allowed == MINE, kind


def test_a_handler_needs_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        rows = {kind: row for kind, row in RIGHTS.items() if kind is not control.Stats}
        monkeypatch.setattr(rights, "RIGHTS", rows)
        with pytest.raises(TypeError, match="Stats"):
            Hub()

    asyncio.run(main())


class _Any:
    """A message in which every field is a different topic."""

    def __getattr__(self, name: str) -> str:
        return f"the.{name}"


def _needed(row: rights.RightsRow) -> list[rights.Right]:
    return list(row.needs(_Any()))


MESSAGES: list[control.Control] = [
    control.Topic(id=1, topic="a"),
    control.Subscribe(id=1, subscription=1, pattern="a.>", name="n", credit=1),
    control.Link(id=1, pattern="a.>", topic="b"),
    control.Last(id=1, topic="a"),
    control.ChannelCreate(id=1, channel="a"),
    control.ChannelCreate(id=1, channel="a", pattern="b.>"),
    control.SchemaPut(id=1, name="a", schema={}),
    control.Stats(id=1),
    control.SnapshotRequest(id=1),
    control.Trace(id=1),
]


def test_all_messages_that_need_rights_are_tried() -> None:
    assert {type(each) for each in MESSAGES} == {kind for kind, row in RIGHTS.items() if _needed(row)}


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_every_right_is_needed_and_no_other(message: control.Control) -> None:
    needed = set(RIGHTS[type(message)].needs(message))
    rules = [AccessRule(who="me", may=(action,), on=(pattern,)) for action, pattern in needed]
    rights.check(Access(rules), "me", (), message)
    rights.check(Access(), "me", (), message)
    nothing = AccessRule(who="me", may=(Action.PUBLISH,), on=("elsewhere",))
    for missing in rules:
        with pytest.raises(ProtocolError, match="me may not") as refused:
            rights.check(Access([nothing, *(rule for rule in rules if rule is not missing)]), "me", (), message)
        assert refused.value.code == "forbidden"
    with pytest.raises(ProtocolError):
        rights.check(Access(rules), "another", (), message)


def test_a_reply_topic_needs_its_secret_and_some_rule() -> None:
    access = Access([AccessRule(who="me", may=(Action.PUBLISH,), on=("a",))])
    topic = reply_topic("secret")

    def subscribe(secret: str) -> control.Subscribe:
        return control.Subscribe(id=1, subscription=1, pattern=topic, name="n", credit=1, secret=secret)

    rights.check(access, "me", (), subscribe("secret"))
    rights.check(access, "me", (topic,), subscribe(""))
    for identity, secret in (("me", ""), ("me", "guessed"), ("another", "secret")):
        with pytest.raises(ProtocolError):
            rights.check(access, identity, (), subscribe(secret))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("who", KINDS)
def test_who_may_say_what(who: str, keys: Path, tmp_path: Path) -> None:
    found: dict[str, bool] = {}

    async def say(rows: dict[type, Row], folder: Path) -> None:
        """Until one of them has an effect: the next one must start from a clean state."""
        scene = Scene()
        async with hub_of(folder, keys, [] if who == "open" else RULES) as hub:
            await scene.build(hub, keys)
            guest = scene.owner if who == "owner" else await Guest.come(hub, keys, "data" if who == "open" else who)
            while rows and not any(found.values()):
                said = next(iter(rows))
                found[said.__name__] = await rows.pop(said).do(guest, scene)

    async def main() -> dict[str, bool]:
        rows = dict(ROWS)
        all_found: dict[str, bool] = {}
        while rows:
            folder = tmp_path / str(len(rows))
            folder.mkdir()
            await say(rows, folder)
            all_found |= found
            found.clear()
        return all_found

    assert asyncio.run(main()) == {said.__name__: who in row.allowed for said, row in ROWS.items()}
