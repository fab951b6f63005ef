"""Every broker keeps the contract, and the contract notices brokers that do not."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from trunkline import (
    Broker,
    Delivery,
    Feature,
    MemoryBroker,
    Message,
    Overflow,
    RecordingBroker,
    Stream,
    World,
)
from trunkline.delivery.fates import Outcome
from trunkline.delivery.inbox import Inbox
from trunkline.journal import Journal, JournalBroker, JournalSettings
from trunkline.message import NORMAL
from trunkline.testing import (
    CONTRACT,
    BrokenPromise,
    Promise,
    Simulation,
    check_broker,
    contract,
    limits,
    simulate,
    world,
)
from trunkline.testing import features as feature_promises
from trunkline.testing.trial import Trial

SEEDS = range(5)


class PlainBroker(MemoryBroker):
    """Publish and subscribe, nothing else. It refuses everything else."""

    name = "plain"
    features: frozenset[Feature] = frozenset()

    async def publish(self, batch: Sequence[Message]) -> None:
        if any(message.priority != NORMAL for message in batch):
            self.require(Feature.PRIORITY)
        if any(message.requires_ack for message in batch):
            self.require(Feature.ACKNOWLEDGEMENT)
        await super().publish(batch)

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        if delivery.durable:
            self.require(Feature.DURABLE)
        if delivery.group is not None:
            self.require(Feature.GROUPS)
        if delivery.ack:
            self.require(Feature.ACKNOWLEDGEMENT)
        if delivery.capacity is not None and delivery.overflow in (Overflow.BLOCK, Overflow.REJECT):
            self.require(Feature.BACKPRESSURE)
        return super().subscribe(pattern, delivery)

    def link(self, pattern: str, topic: str) -> bool:
        return Broker.link(self, pattern, topic)


class Journaled(JournalBroker):
    """With a journal in a temporary directory. No threads: time is virtual."""

    def __init__(self, world: World, commit_in_loop_s: float = 0.0) -> None:
        self._folder = tempfile.TemporaryDirectory()
        settings = JournalSettings(commit_in_loop_s=commit_in_loop_s)
        journal = Journal(self._folder.name, settings, world=world, threaded=False)
        super().__init__(journal, owns_journal=True)

    async def aclose(self) -> None:
        await super().aclose()
        self._folder.cleanup()


BROKERS: dict[str, Callable[[World], Broker]] = {
    "memory": MemoryBroker,
    "journal": Journaled,
    "journal, committed in the loop": lambda world: Journaled(world, commit_in_loop_s=3600.0),
    "recording": lambda world: RecordingBroker(MemoryBroker(world)),
    "recording over a journal": lambda world: RecordingBroker(Journaled(world)),
    "plain": PlainBroker,
}


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("make", BROKERS.values(), ids=BROKERS)
@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps(promise: Promise, make: Callable[[World], Broker]) -> None:
    for seed in SEEDS:
        simulate(lambda simulation: promise(lambda: make(world(simulation))), seed=seed)


# The contract itself


def test_a_broker_may_come_from_a_context_manager() -> None:
    closed: list[Broker] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[Broker]:
        broker = PlainBroker()
        yield broker
        await broker.aclose()
        closed.append(broker)

    simulate(lambda _: CONTRACT[0](opened))
    assert len(closed) == 1


def test_nothing_is_missing_from_the_contract() -> None:
    for module in (contract, feature_promises, limits):
        defined = {name for name, value in vars(module).items() if isinstance(value, Promise)}
        assert defined <= {promise.name for promise in CONTRACT}
    assert len({promise.name for promise in CONTRACT}) == len(CONTRACT)
    assert all(promise.says for promise in CONTRACT)


def test_every_header_field_is_tried() -> None:
    """A new field of Message must be added to the message that the contract sends."""
    broker = MemoryBroker()
    message = contract.full_message(Trial(broker), broker.world.time_ns())
    blank = Message(topic="t")
    plain = [field for field in Message.__struct_fields__ if getattr(message, field) == getattr(blank, field)]
    assert plain == ["seq"]


class Loses(MemoryBroker):
    """Drops every third message."""

    count = 0

    async def publish(self, batch: Sequence[Message]) -> None:
        kept = []
        for message in batch:
            self.count += 1
            if self.count % 3:
                kept.append(message)
        await super().publish(kept)


class Doubles(MemoryBroker):
    async def publish(self, batch: Sequence[Message]) -> None:
        await super().publish(batch)
        await super().publish(batch)


class Shouts(MemoryBroker):
    """Delivers everything to everyone."""

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        return super().subscribe(">", delivery)


class Confuses(MemoryBroker):
    """Ignores * and >."""

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        return super().subscribe(pattern.removesuffix("*") + ">" if pattern.endswith("*") else pattern, delivery)


class Reverses(MemoryBroker):
    async def publish(self, batch: Sequence[Message]) -> None:
        await super().publish(batch[::-1])


class Remembers(MemoryBroker):
    """Delivers messages from before the subscription."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.past: list[Message] = []

    async def publish(self, batch: Sequence[Message]) -> None:
        await super().publish(batch)
        self.past += batch

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        stream = super().subscribe(pattern, delivery)
        inbox = next(inbox for inbox in self.served if inbox.name == stream.name)
        for message in self.past:
            inbox.offer(message)
        return stream


class Strips(MemoryBroker):
    """Loses headers."""

    async def publish(self, batch: Sequence[Message]) -> None:
        await super().publish([msgspec.structs.replace(message, headers=None) for message in batch])


class RemovesTheFirst(MemoryBroker):
    """Keeps delivering to subscribers that have left."""

    def _leave(self, inbox: Inbox) -> None:
        super()._leave(next(iter(self.served), inbox))


class StaysOpen(MemoryBroker):
    async def aclose(self) -> None:
        for inbox in self.served:
            self._leave(inbox)


class CooksTheBooks(MemoryBroker):
    async def publish(self, batch: Sequence[Message]) -> None:
        await super().publish(batch)
        for inbox in self.served:
            inbox.books.delivered += 1


class Hangs(MemoryBroker):
    async def flush(self) -> None:
        await asyncio.Event().wait()


class ForgetsOptions(MemoryBroker):
    async def publish(self, batch: Sequence[Message]) -> None:
        changes = {"priority": NORMAL, "ttl_s": None, "requires_ack": False}
        await super().publish([msgspec.structs.replace(message, **changes) for message in batch])

    def subscribe(self, pattern: str, delivery: Delivery = Delivery()) -> Stream:
        return super().subscribe(pattern, Delivery(overflow=Overflow.DROP_NEWEST))


class PromisesNothing(MemoryBroker):
    """And refuses nothing."""

    features: frozenset[Feature] = frozenset()

    def require(self, feature: Feature) -> None:
        return


class ForgetsFates(MemoryBroker):
    async def explain(self, message_id: str, known: Message | None = None) -> tuple[Message | None, list[Outcome]]:
        return known, []


class ClaimsRules(MemoryBroker):
    features = MemoryBroker.features | {Feature.RIGHTS}


OPTIONS = [
    "messages_arrive_unchanged",
    "filters_let_in_what_fits",
    "what_expired_is_not_delivered",
    "names_are_unique",
    "a_group_shares",
    "priority_orders_delivery",
    "unacknowledged_comes_again",
    "what_cannot_be_handled_is_a_dead_letter",
    "a_message_may_require_an_ack",
    "block_makes_publishers_wait",
    "overflow_policies_do_as_named",
    "cancelled_publish_leaves_a_fate",
    "a_capacity_holds",
    "every_policy_leaves_a_fate",
    "backpressure_leaves_a_fate",
    "what_expired_or_died_leaves_a_fate",
]

BREAKERS: list[tuple[type[MemoryBroker], list[str], str]] = [
    (Loses, ["reaches_all_who_match", "order_is_kept"], "got nothing within 10 s"),
    (Doubles, ["reaches_all_who_match", "streams_are_independent"], "got ['for a', 'for a'] instead of ['for a']"),
    (Shouts, ["reaches_all_who_match", "wildcards_match"], "instead of ['for a']"),
    (Confuses, ["wildcards_match"], "instead of ['a']"),
    (Reverses, ["order_is_kept", "iteration_and_batches_agree"], "of x"),
    (Remembers, ["nothing_from_before_is_seen"], "got ['before', 'after'] instead of ['after']"),
    (Strips, ["messages_arrive_unchanged"], "headers was {'a': '1', 'ü': '…'} and arrived as None"),
    (RemovesTheFirst, ["closing_a_stream_concerns_it_alone"], "the wrong subscriber was removed"),
    (StaysOpen, ["closing_the_broker_ends_everything"], "publish on a closed broker did not raise Closed"),
    (CooksTheBooks, ["reaches_all_who_match"], "do not balance"),
    (Hangs, ["reaches_all_who_match"], "a publish that nothing holds up did not return within 10 s"),
    (ForgetsOptions, OPTIONS, "priority was 75 and arrived as 50"),
    (
        ForgetsFates,
        [
            "explain_tells_one_fate_for_each_subscriber",
            "every_policy_leaves_a_fate",
            "backpressure_leaves_a_fate",
            "what_expired_or_died_leaves_a_fate",
        ],
        "{} instead of {'t#1': <Fate.DELIVERED: 'delivered'>",
    ),
    (ClaimsRules, ["rights_hold"], "pass `guest`"),
    (PromisesNothing, [promise.name for promise in feature_promises.FEATURES[:-1]], "did not raise Unsupported"),
]


@pytest.mark.parametrize(("breaker", "promises", "seen"), BREAKERS, ids=[kind.__name__ for kind, *_ in BREAKERS])
def test_says_what_is_broken(breaker: type[MemoryBroker], promises: list[str], seen: str) -> None:
    async def broken(simulation: Simulation) -> dict[str, BrokenPromise]:
        with pytest.raises(ExceptionGroup) as caught:
            await check_broker(lambda: breaker(world(simulation)))
        return {error.promise: error for error in caught.value.exceptions if isinstance(error, BrokenPromise)}

    found = simulate(broken)
    assert set(promises) <= set(found)
    first = found[promises[0]]
    assert seen in first.seen
    assert promises[0] in str(first)
    assert next(promise.says for promise in CONTRACT if promise.name == promises[0]) in str(first)


def test_a_guest_without_limits_breaks_the_rules() -> None:
    with pytest.raises(BrokenPromise, match=r"subscribing to secret\.a without the right to did not raise NotAllowed"):
        simulate(lambda simulation: limits.rights_hold(lambda: ClaimsRules(world(simulation)), lambda broker: broker))


def test_a_broker_without_rules_has_no_guests() -> None:
    with pytest.raises(BrokenPromise, match="it has no rules, but an identity that they limit"):
        simulate(lambda simulation: limits.rights_hold(lambda: MemoryBroker(world(simulation)), lambda broker: broker))
