"""At a hub with rules a durable subscription belongs to the identity that made it; over TLS, and over restarts."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hub.guests import Guest, hub_of, make_keys
from trunkline import Cause, DeadLetter, Message, ProtocolError
from trunkline.hub import owners
from trunkline.hub.hub import Hub
from trunkline.hub.owners import DurableOwner, DurableOwners
from trunkline.journal import JournalBroker
from trunkline.wire import control

DEADLINE_S = 60.0
SHARED = ["publish", "subscribe"]
RULES = [
    {"who": "cert:data", "may": SHARED, "on": ["data.>"]},
    {"who": "cert:nobody", "may": SHARED, "on": ["data.>"]},
    {"who": "cert:admin", "may": ["subscribe", "administer"], "on": ["data.>"]},
]
"""`data` owns the subscription, `nobody` may subscribe to the same topics, `admin` administers them."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


def on_a_real_loop(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """TLS needs real sockets, and therefore real time."""

    def run(hub_at: Any) -> None:
        asyncio.run(asyncio.wait_for(test(hub_at), DEADLINE_S))

    return run


Come = Callable[..., Awaitable[Guest]]


@pytest.fixture
def hub_at(keys: Path, tmp_path: Path) -> Any:
    @asynccontextmanager
    async def run(rules: Sequence[object] = RULES) -> AsyncIterator[tuple[Hub, Come]]:
        async with hub_of(tmp_path, keys, rules) as hub:
            yield hub, lambda name: Guest.come(hub, keys, name)

    return run


async def leave(guest: Guest, hub: Hub) -> None:
    guest.say(control.Goodbye())
    await guest.ended.wait()
    await hub.parted()


def code(answer: control.Control) -> str:
    return answer.code if isinstance(answer, control.Error) else "done"


@on_a_real_loop
async def test_nobody_else_takes_it_over(hub_at: Any) -> None:
    async with hub_at() as (hub, come):
        owner = await come("data")
        assert code(await owner.subscribe(1, "data.x", name="billing", durable=True)) == "done"
        await leave(owner, hub)
        other = await come("nobody")
        await other.publish("data.x", 1, b"for billing")
        for number, fields in enumerate(({"name": "billing"}, {"name": "m", "group": "billing"}), 1):
            answer = await other.subscribe(number, "data.x", durable=True, **fields)
            assert code(answer) == "exists"
            assert isinstance(answer, control.Error)
            assert "cert:data" not in answer.text
        assert code(await other.subscribe(3, "data.x", name="mine", durable=True)) == "done"
    async with hub_at() as (hub, come):
        other, owner = await come("nobody"), await come("data")
        assert code(await other.subscribe(1, "data.x", name="billing", durable=True)) == "exists"
        assert code(await owner.subscribe(1, "data.x", name="mine", durable=True)) == "exists"
        assert code(await owner.subscribe(2, "data.x", name="billing", durable=True)) == "done"
        assert await owner.take() > 0


@on_a_real_loop
async def test_an_administrator_may_use_it_and_it_stays_the_owners(hub_at: Any) -> None:
    async with hub_at() as (hub, come):
        owner = await come("data")
        await owner.subscribe(1, "data.x", name="billing", durable=True)
        await leave(owner, hub)
        admin = await come("admin")
        assert code(await admin.subscribe(1, "data.x", name="billing", durable=True)) == "done"
        await leave(admin, hub)
        assert code(await (await come("nobody")).subscribe(1, "data.x", name="billing", durable=True)) == "exists"
        assert code(await (await come("data")).subscribe(1, "data.x", name="billing", durable=True)) == "done"


@on_a_real_loop
async def test_a_durable_group_is_shared_and_nobody_makes_it_its_own(hub_at: Any) -> None:
    async with hub_at() as (hub, come):
        for name in ("data", "nobody"):
            guest = await come(name)
            assert code(await guest.subscribe(1, "data.x", name=name, group="workers", durable=True)) == "done"
            await leave(guest, hub)
        alone = await come("nobody")
        assert code(await alone.subscribe(1, "data.x", name="workers", durable=True)) == "done"
        await leave(alone, hub)
    async with hub_at() as (_, come):
        guest = await come("data")
        assert code(await guest.subscribe(1, "data.x", name="m", group="workers", durable=True)) == "done"


@on_a_real_loop
async def test_one_that_was_made_without_rules_belongs_to_the_first_who_comes(hub_at: Any) -> None:
    async with hub_at(()) as (hub, come):
        for name in ("nobody", "data"):
            guest = await come(name)
            assert code(await guest.subscribe(1, "data.x", name="billing", durable=True)) == "done", (
                "no rules, no owner"
            )
            await leave(guest, hub)
    async with hub_at() as (hub, come):
        owner = await come("data")
        assert code(await owner.subscribe(1, "data.x", name="billing", durable=True)) == "done"
        await leave(owner, hub)
        assert code(await (await come("nobody")).subscribe(1, "data.x", name="billing", durable=True)) == "exists"


@on_a_real_loop
async def test_a_name_that_was_forgotten_is_free(hub_at: Any) -> None:
    async with hub_at() as (hub, come):
        owner = await come("data")
        await owner.subscribe(1, "data.x", name="billing", durable=True)
        await leave(owner, hub)
    async with hub_at() as (hub, come):
        broker = hub.broker
        assert isinstance(broker, JournalBroker)
        assert await broker.journal.forget("billing")
        other = await come("nobody")
        assert code(await other.subscribe(1, "data.x", name="billing", durable=True)) == "done"
        await leave(other, hub)
        assert code(await (await come("data")).subscribe(1, "data.x", name="billing", durable=True)) == "exists"


@on_a_real_loop
async def test_its_owner_and_administrators_forget_it_at_a_running_hub(hub_at: Any) -> None:
    async with hub_at() as (hub, come):
        owner, other, admin = await come("data"), await come("nobody"), await come("admin")
        kept = hub.directory.owners.kept
        for guest, group in ((owner, None), (admin, None), (owner, "workers"), (admin, "workers")):
            name = group or "billing"
            await owner.subscribe(1, "data.x", name="billing", group=group, durable=True)
            refused = await guest.ask(control.Forget, name=name)
            assert isinstance(refused, control.Error)
            assert refused.details == {"error": "DuplicateName"}, "it has a subscriber"
            await owner.ask(control.Unsubscribe, subscription=1)
            assert code(await other.ask(control.Forget, name=name)) == "forbidden"
            assert name in kept()
            assert await guest.ask(control.Forget, name=name) == control.Done(re=guest.asked)
            assert await guest.ask(control.Forget, name=name) == control.Done(re=guest.asked, changed=False)
            assert not kept()
        assert await other.ask(control.Forget, name="unknown") == control.Done(re=other.asked, changed=False)
        await other.subscribe(1, "data.x", name="billing", durable=True)
        assert kept() == {"billing": DurableOwner("cert:nobody")}


@on_a_real_loop
async def test_its_dead_letters_are_for_the_owner_to_replay_and_remove(hub_at: Any) -> None:
    async with hub_at() as (_, come):
        owner, other = await come("data"), await come("nobody")
        await owner.subscribe(1, "data.x", name="billing", durable=True)
        await owner.publish("data.x", 1, b"one")
        seq = await owner.take()
        message = Message(id="data.x-1-0", topic="data.x", seq=seq)
        letter = DeadLetter(message, "billing", Cause.REJECTED, "why", "Reject", "", (), 1)
        data = base64.b64encode(letter.to_bytes()).decode()
        await owner.tell(control.Nack(subscription=1, seq=seq, fate="dead", letter=data))
        again = control.LetterAgain(subscriber="billing", seq=seq)
        for guest, done in ((other, 0), (owner, 1)):
            answer = await guest.ask(control.LetterReplay, letters=[again])
            assert isinstance(answer, control.LettersDone)
            assert answer.done == done
        assert await owner.take() == seq
        await owner.tell(control.Nack(subscription=1, seq=seq, fate="dead", letter=data))
        for guest, done in ((other, 0), (owner, 1)):
            answer = await guest.ask(control.LetterRemove, letters=[("billing", seq)])
            assert isinstance(answer, control.LettersDone)
            assert answer.done == done


# Pure


def test_what_cannot_be_kept_is_not_claimed() -> None:
    known = DurableOwners()

    def fail(_: dict[str, DurableOwner]) -> None:
        raise ProtocolError("not_kept", "no room")

    with pytest.raises(ProtocolError):
        known.claim("a", DurableOwner("me"), exists=False, keep=fail)
    assert known.kept() == {}
    assert known.may_use("a", "another")


def test_an_identity_owns_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "MAX_OWNED", 2)
    known = DurableOwners()
    for name in ("a", "b", "b"):
        known.claim(name, DurableOwner("me"), exists=False, keep=None)
    with pytest.raises(ProtocolError) as refused:
        known.claim("c", DurableOwner("me"), exists=False, keep=None)
    assert refused.value.code == "too_many"
    known.claim("c", DurableOwner("another"), exists=False, keep=None)
    kept = known.kept()
    known.restore(kept, ["b", "c"])
    assert known.may_use("a", "another"), "its subscription is gone"
    known.claim("a", DurableOwner("me"), exists=False, keep=None)
