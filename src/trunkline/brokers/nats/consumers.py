"""The JetStream consumers of this connection: opening them, requesting entries, closing them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from trunkline.brokers.engine.batches import decode, entry_of
from trunkline.brokers.engine.driver import ConsumerSpec, ConsumerTerms, EngineEvents, Entry, Standing
from trunkline.brokers.engine.notes import table_of
from trunkline.brokers.nats.jetstream import PlaceInStream, place_in_stream
from trunkline.brokers.nats.link import NatsLink
from trunkline.brokers.nats.names import NatsNames, place_of
from trunkline.brokers.nats.owners import OWNER_TABLE
from trunkline.brokers.nats.refusals import JetStreamRefused
from trunkline.brokers.nats.store import NANOS, NatsStore, nanoseconds
from trunkline.brokers.nats.straight import without_waiting
from trunkline.errors import DuplicateName, EngineUnavailable
from trunkline.topic import matches

log = logging.getLogger("trunkline.connection")

PULL_S = 30.0
BEAT_S = 5.0
ROLE = "trunkline.role"
SINCE = "trunkline.since"


class NatsConsumer:
    """A JetStream consumer on this connection."""

    def __init__(self, name: str, spec: ConsumerSpec, inbox: str) -> None:
        self.name = name
        self.spec = spec
        self.inbox = inbox
        self.subscriptions: list[Subscription] = []
        self.pulls = 0
        self.heard_at = 0.0
        self.reached = (0, 0, 0)
        """The consumer sequence of the last delivery, the highest entry that was delivered, and how many matching
        entries were pending after it."""
        self.watch: asyncio.TimerHandle | None = None

    @property
    def is_alone(self) -> bool:
        """Whether its place has one subscriber at a time."""
        return self.spec.durable and not self.spec.shared


class NatsConsumers:
    def __init__(self, link: NatsLink, names: NatsNames, store: NatsStore, events: Callable[[], EngineEvents]) -> None:
        self._link = link
        self._names = names
        self._store = store
        self._events = events
        self._open: dict[int, NatsConsumer] = {}
        self._leaving: dict[int, NatsConsumer] = {}
        """Closed consumers that still own their places, because entries that they hold are not settled."""
        self.owners = store.owners
        self._last = 0
        self.max_bytes = 0

    def ended(self) -> None:
        for consumer in self._open.values():
            if consumer.watch is not None:
                consumer.watch.cancel()
        self._open.clear()
        self._leaving.clear()

    # Opening and closing

    async def open(self, spec: ConsumerSpec) -> ConsumerTerms:
        self._last += 1
        name = place_of(spec.role) if spec.role else f"once-{self.owners.me}-{spec.subscription}-{self._last}"
        consumer = NatsConsumer(name, spec, f"{self._link.inbox}c{spec.subscription}")
        if consumer.is_alone:
            if any(each.name == name for each in self._open.values()):
                raise DuplicateName("subscriber", spec.role)
            await self.owners.own(name, spec.role)
        try:
            return await self._begin(consumer)
        except BaseException:
            self.close(spec.subscription)
            if consumer.is_alone:
                self.owners.leave(name)
            raise

    async def _begin(self, consumer: NatsConsumer) -> ConsumerTerms:
        spec, name, stream = consumer.spec, consumer.name, self._names.stream
        self._open[spec.subscription] = consumer
        # A request that is stored before the consumer exists may wait, but one that it receives must not fail.
        consumer.subscriptions.append(self._link.answer_for(self._names.listens + spec.pattern))
        filters = [self._names.prefix + spec.pattern, f"{self._names.again}{name}.>"]
        known = await self._store.js.consumer(stream, name)
        fresh = known is None
        if known is None:
            if spec.role:
                # Notes of an earlier place with this name do not apply to the new one.
                await self._store.discard(table_of(spec.role))
            known = await self._store.js.put_consumer(stream, name, self._config(name, spec, filters))
            if spec.durable and (since := known["delivered"]["stream_seq"]):
                # Entries up to this one are not for the place.
                config = {**known["config"], "metadata": {ROLE: spec.role, SINCE: str(since)}}
                known = await self._store.js.put_consumer(stream, name, config)
        elif sorted(known["config"].get("filter_subjects") or ()) != sorted(filters):
            known = await self._store.js.put_consumer(stream, name, {**known["config"], "filter_subjects": filters})
        number = spec.subscription
        entries = self._link.listen(f"{consumer.inbox}.*", lambda message: self._entry(number, message))
        consumer.subscriptions.append(entries)
        if not fresh:
            known = await self._check_removed(spec, known)
        delivered = known["delivered"]
        consumer.reached = (delivered["consumer_seq"], delivered["stream_seq"], known["num_pending"])
        return ConsumerTerms(nanoseconds(known["created"]))

    def _config(self, name: str, spec: ConsumerSpec, filters: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": name,
            "ack_policy": "explicit",
            "ack_wait": int(spec.lease_s * NANOS),
            "max_deliver": -1,
            "max_ack_pending": -1,
            "filter_subjects": filters,
            "metadata": {ROLE: spec.role},
        }
        if spec.durable:
            found["durable_name"] = name
        else:
            found["inactive_threshold"] = int(max(spec.lease_s, PULL_S) * NANOS)
        match spec.start:
            case int():
                found |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, spec.start)}
            case "end":
                found["deliver_policy"] = "new"
            case "beginning":
                found["deliver_policy"] = "all"
            case "last":
                found["deliver_policy"] = "last_per_subject"
            case moment:
                found |= {"deliver_policy": "by_start_time", "opt_start_time": moment}
        return found

    def close(self, subscription: int) -> None:
        consumer = self._open.pop(subscription, None)
        if consumer is None:
            return
        if consumer.is_alone:
            self._leaving[subscription] = consumer
            self.owners.leaving(consumer.name)
        if consumer.watch is not None:
            consumer.watch.cancel()
        for made in consumer.subscriptions:
            if self._link.live:
                without_waiting(made.unsubscribe())

    def leave(self, subscription: int) -> None:
        """Release the place of a closed consumer. Its entries are settled or given back."""
        if (consumer := self._leaving.pop(subscription, None)) is not None:
            self.owners.leave(consumer.name)

    # Which consumers there are

    async def keeps(self, topic: str) -> bool:
        """Whether a durable place keeps the entries of a topic for its subscribers, also if they are away."""
        subject = self._names.prefix + topic
        return any(
            known["config"].get("durable_name") and any(matches(each, subject) for each in _filters(known["config"]))
            for known in await self._store.js.consumers(self._names.stream)
        )

    async def patterns(self) -> list[str]:
        prefix, filters = self._names.prefix, []
        for known in await self._store.js.consumers(self._names.stream):
            filters += [each[len(prefix) :] for each in _filters(known["config"]) if each.startswith(prefix)]
        return filters

    async def forget(self, role: str) -> bool:
        place = place_of(role)
        await self._store.discard(OWNER_TABLE, place)
        return await self._store.js.drop_consumer(self._names.stream, place)

    # The fates of messages

    async def standings(self, topic: str, number: int, without: set[str]) -> dict[str, Standing]:
        found: dict[str, Standing] = {}
        entry, js, stream = entry_of(number)[0], self._store.js, self._names.stream
        is_stored: bool | None = None
        for known in await js.consumers(stream):
            config = known["config"]
            about = config.get("metadata") or {}
            role = about.get(ROLE)
            if (
                not config.get("durable_name")
                or role is None
                or role in without
                or entry <= int(about.get(SINCE, 0))
                or not any(matches(each, self._names.prefix + topic) for each in _filters(config))
            ):
                continue
            again = await self._given_back(config["name"], topic, number)
            if again:
                found[role] = _standing(known, again, True)
                continue
            if is_stored is None:
                is_stored = await js.message(stream, seq=entry) is not None
            found[role] = _standing(known, entry, is_stored)
        return found

    async def _given_back(self, place: str, topic: str, number: int) -> int:
        """The last entry of a place in which a message was given back, or its dead letter replayed; 0 if there is
        none."""
        subject, last, at = f"{self._names.again}{place}.{topic}", 0, entry_of(number)[0] + 1
        while (each := await self._store.js.message(self._names.stream, seq=at, next_by_subj=subject)) is not None:
            head, _ = decode(each.data)
            if head.first <= number < head.first + head.count:
                last = each.seq
            at = each.seq + 1
        return last

    # Entries

    def pull(self, subscription: int, entries: int, max_bytes: int) -> None:
        consumer = self._open.get(subscription)
        if consumer is None:
            return
        consumer.pulls += 1
        wanted = {
            "batch": entries,
            "expires": int(PULL_S * NANOS),
            "idle_heartbeat": int(BEAT_S * NANOS),
            "max_bytes": max(max_bytes, self.max_bytes + 1024),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._names.stream}.{consumer.name}"
        self._link.publish(subject, json.dumps(wanted).encode(), f"{consumer.inbox}.{consumer.pulls}")
        self._listen(subscription, consumer)

    def _listen(self, subscription: int, consumer: NatsConsumer) -> None:
        """Watch for entries and heartbeats.

        If neither arrives, the request is lost: the stream may have a new leader.
        """
        loop = asyncio.get_running_loop()
        consumer.heard_at = loop.time()
        if consumer.watch is None:
            consumer.watch = loop.call_later(3 * BEAT_S, self._look, subscription, consumer)

    def _look(self, subscription: int, consumer: NatsConsumer) -> None:
        loop = asyncio.get_running_loop()
        silent_s = loop.time() - consumer.heard_at
        consumer.watch = None
        if silent_s < 3 * BEAT_S:
            consumer.watch = loop.call_later(3 * BEAT_S - silent_s, self._look, subscription, consumer)
        else:
            self._events().pull_ended(subscription)

    def _entry(self, subscription: int, message: Msg) -> None:
        consumer = self._open.get(subscription)
        if consumer is None:
            if message.reply:
                self._link.publish(message.reply, b"-NAK")
            return
        self._listen(subscription, consumer)
        status = (message.headers or {}).get("Status")
        if status is not None:
            if message.subject.rsplit(".", 1)[1] == str(consumer.pulls) and status != "100":
                # At once if the request has expired or found no entry. Later if it failed, for example because there is
                # no leader.
                delay_s = 0.0 if status in ("404", "408") else 0.2
                asyncio.get_running_loop().call_later(delay_s, self._events().pull_ended, subscription)
            return
        place = place_in_stream(message.reply)
        if place is None:
            return
        self._note_reached(subscription, consumer, place)
        topic = self._names.topic(message.subject)
        entry = Entry(place.seq, topic, message.data, place.stored_ns, message.reply, place.deliveries > 1)
        self._events().entry_arrived(subscription, entry)

    # Entries that the stream has removed

    async def _check_removed(self, spec: ConsumerSpec, known: dict[str, Any]) -> dict[str, Any]:
        """Report the entries that were removed since the place was last used.

        Returns the current state of the consumer.
        """
        stream = await self._store.js.stream(self._names.stream)
        first = 0 if stream is None else int(stream["state"]["first_seq"])
        if known["delivered"]["stream_seq"] >= first - 1:
            return known
        # Another member of the group may have read entries meanwhile.
        known = await self._store.js.consumer(self._names.stream, known["name"]) or known
        delivered = known["delivered"]
        reached = delivered["stream_seq"]
        exact = self._store.only_has(spec.pattern)
        if reached < first - 1 and (not spec.shared or not exact):
            # In a group, the member that gets the next entry reports it.
            count = first - 1 - reached
            self._events().trimmed(spec.subscription, reached + 1, first - 1, count if exact else 0, count)
            delivered["stream_seq"] = first - 1
        return known

    def _note_reached(self, subscription: int, consumer: NatsConsumer, place: PlaceInStream) -> None:
        before, reached, pending = consumer.reached
        number = place.seq
        consumer.reached = (place.delivered, max(reached, number), place.pending)
        if place.delivered != before + 1 or number <= reached + 1:
            return
        if self._store.only_has(consumer.spec.pattern):
            self._link.start(self._find_removed(subscription, reached, number, 0))
        elif pending - 1 > place.pending:
            # The gap may contain entries of other topics. But the number of pending entries has fallen by more than
            # one, so at least that many were removed.
            self._link.start(self._find_removed(subscription, reached, number, pending - 1 - place.pending))

    async def _find_removed(self, subscription: int, reached: int, number: int, fewer: int) -> None:
        """Report the removed entries between two entries that a consumer got in sequence."""
        try:
            stream = await self._store.js.stream(self._names.stream)
        except (EngineUnavailable, JetStreamRefused) as error:
            log.warning(
                "cannot find out whether %s has removed entries %d to %d: %s",
                self._link.url,
                reached + 1,
                number - 1,
                error,
            )
            return
        last = min(number, 0 if stream is None else int(stream["state"]["first_seq"])) - 1
        if last > reached:
            count = last - reached
            self._events().trimmed(subscription, reached + 1, last, min(fewer, count) or count, count)


def _filters(config: dict[str, Any]) -> list[str]:
    """The subjects of a consumer. Other programs make consumers with one subject, or for all of the stream."""
    return config.get("filter_subjects") or [config.get("filter_subject") or ">"]


def _standing(consumer: dict[str, Any], entry: int, is_stored: bool) -> Standing:
    """The standing of an entry, from the state of a consumer.

    The floor also passes entries that were removed and never delivered. Above it, the server does not tell which
    entries were acknowledged, unless all or none were.
    """
    delivered, floor = (int(consumer[each]["stream_seq"]) for each in ("delivered", "ack_floor"))
    if entry > delivered:
        return Standing.WAITING if is_stored else Standing.REMOVED
    if not is_stored:
        return Standing.FORGOTTEN
    pending = int(consumer["num_ack_pending"])
    if entry <= floor or not pending:
        return Standing.ACKNOWLEDGED
    return Standing.WAITING if entry == floor + 1 or pending >= delivered - floor else Standing.HANDED_OUT
