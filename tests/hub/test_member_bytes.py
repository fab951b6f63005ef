"""What waits in the hub for a member of a group is bounded in bytes, too: by the policy of its inbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import trunkline as tl
from tests.hub.hubs import until
from tests.hub.test_admission import Raw
from trunkline.delivery.inbox import Inbox
from trunkline.hub.hub import Hub
from trunkline.hub.settings import HubSettings, Limits
from trunkline.wire import control

LIMIT = 1_000_000
SIZE = 100_000
DEADLINE_S = 60.0


@asynccontextmanager
async def member(overflow: str) -> AsyncIterator[tuple[Hub, Raw, Inbox]]:
    """A client that joins a group, and takes nothing until it gives credit."""
    async with asyncio.timeout(DEADLINE_S), Hub(settings=HubSettings(limits=Limits(pending_bytes=LIMIT))) as hub:
        await hub.listen(f"pair:member-bytes-{overflow}")
        raw = await Raw.open(hub)
        await raw.greet(name="worker")
        raw.say(
            control.Subscribe(
                id=2, subscription=1, pattern="work", name="w", credit=0, group="g", capacity=10**9, overflow=overflow
            )
        )
        await raw.hear(control.Subscribed)
        (session,) = hub.sessions.values()
        yield hub, raw, session.members[1].stream.inbox


def balanced(inbox: Inbox) -> bool:
    account = inbox.account()
    return account.accepted == account.delivered + account.dropped + account.in_flight


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_what_does_not_fit_is_dropped_and_counted(overflow: str) -> None:
    async def main() -> None:
        async with member(overflow) as (hub, _, inbox), tl.connect(hub.addresses[0], name="publisher") as bus:
            for number in range(50):
                await bus.publish("work", bytes([number]) * SIZE)
            await bus.flush()
            assert inbox.account().accepted == 50
            assert inbox.account().dropped >= 38
            assert inbox.bytes_waiting() <= LIMIT + 2 * SIZE
            assert balanced(inbox)
            kept = [message.payload[0] for message in inbox.messages()]
            assert kept == (list(range(50))[-len(kept) :] if overflow == "drop_oldest" else list(range(len(kept))))

    asyncio.run(main())


def test_publishers_wait_and_all_arrives_in_order() -> None:
    async def main() -> None:
        async with member("block") as (hub, raw, inbox), tl.connect(hub.addresses[0], name="publisher") as bus:
            publishing = asyncio.create_task(bus.publish_many("work", [bytes(SIZE)] * 50))
            await until(lambda: bool(inbox.parked), "publishers wait")
            assert inbox.bytes_waiting() <= 3 * LIMIT
            raw.say(control.Credit(subscription=1, messages=1000))
            got = []
            for _ in range(50):
                got.append(await raw.take())
                raw.say(control.Ack(subscription=1, ranges=[(got[-1], got[-1])]))
            await publishing
            assert got == sorted(set(got))
            assert inbox.capacity == 10**9
            await until(lambda: inbox.account().delivered == 50, "all are acknowledged")
            assert balanced(inbox)

    asyncio.run(main())
