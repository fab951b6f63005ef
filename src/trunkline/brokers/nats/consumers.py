"""The consumers of JetStream that this connection has: how they are opened, asked for entries, and closed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from trunkline.brokers.engine.driver import ConsumerSpec, ConsumerState, ConsumerTerms, EngineEvents, Entry
from trunkline.brokers.nats.jetstream import PlaceInStream, place_in_stream
from trunkline.brokers.nats.link import NatsLink, without_waiting
from trunkline.brokers.nats.names import NatsNames, place_of
from trunkline.brokers.nats.owners import OWNER_TABLE, Owners
from trunkline.brokers.nats.refusals import JetStreamRefused, translated
from trunkline.brokers.nats.store import NANOS, NatsStore, nanoseconds
from trunkline.errors import DuplicateName, EngineUnavailable

log = logging.getLogger("trunkline.connection")

PULL_S = 30.0
BEAT_S = 5.0
ROLE = "trunkline.role"


class NatsConsumer:
    """A consumer of JetStream, as this connection has it."""

    def __init__(self, name: str, spec: ConsumerSpec, inbox: str) -> None:
        self.name = name
        self.spec = spec
        self.inbox = inbox
        self.subscription: Subscription | None = None
        self.pulls = 0
        self.heard_at = 0.0
        self.reached = (0, 0, 0)
        """The last delivery, counted at the server; the highest entry that was delivered; how many matched after it."""
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
        """Closed, and still the owners of their places: what they hold is not settled."""
        self.owners = Owners(link, names, store)
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
        filters = [self._names.prefix + spec.pattern, f"{self._names.again}{name}.>"]
        known = await self._store.js.consumer(stream, name)
        fresh = known is None
        if known is None:
            known = await self._store.js.put_consumer(stream, name, self._config(name, spec, filters))
        elif sorted(known["config"].get("filter_subjects") or ()) != sorted(filters):
            known = await self._store.js.put_consumer(stream, name, {**known["config"], "filter_subjects": filters})
        connection = self._link.required()
        number = spec.subscription

        async def arrived(message: Msg) -> None:
            self._entry(number, message)

        self._open[number] = consumer
        with translated(self._link.url):
            consumer.subscription = await connection.subscribe(f"{consumer.inbox}.*", cb=arrived)
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
        if consumer.subscription is not None and self._link.live:
            without_waiting(consumer.subscription.unsubscribe())

    def leave(self, subscription: int) -> None:
        """What a closed one held is settled, or was given back: its place is free."""
        if (consumer := self._leaving.pop(subscription, None)) is not None:
            self.owners.leave(consumer.name)

    async def forget(self, role: str) -> bool:
        place = place_of(role)
        await self._store.discard(OWNER_TABLE, place)
        return await self._store.js.drop_consumer(self._names.stream, place)

    async def states(self) -> list[ConsumerState]:
        found: list[ConsumerState] = []
        prefix = self._names.prefix
        for each in await self._store.js.consumers(self._names.stream):
            config = each["config"]
            role = (config.get("metadata") or {}).get(ROLE)
            subjects = [one for one in config.get("filter_subjects") or () if one.startswith(prefix)]
            if role and subjects and config.get("durable_name"):
                floor = int(each["ack_floor"]["stream_seq"])
                found.append(ConsumerState(role, subjects[0][len(prefix) :], floor, 0))
        return found

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
        """If neither an entry nor a heartbeat comes, the request is lost: its leader may have changed."""
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
                # At once if it was answered; later if there is nobody who answers.
                delay_s = 0.0 if status in ("404", "408") else 0.2
                asyncio.get_running_loop().call_later(delay_s, self._events().pull_ended, subscription)
            return
        place = place_in_stream(message.reply)
        if place is None:
            return
        self._note_reached(subscription, consumer, place)
        self._events().entry_arrived(
            subscription,
            Entry(place.seq, self._names.topic(message.subject), message.data, place.stored_ns, message.reply),
        )

    # What the stream has lost

    async def _check_removed(self, spec: ConsumerSpec, known: dict[str, Any]) -> dict[str, Any]:
        """What the stream has lost since a place was served last; the place as it is then."""
        stream = await self._store.js.stream(self._names.stream)
        first = 0 if stream is None else int(stream["state"]["first_seq"])
        if known["delivered"]["stream_seq"] >= first - 1:
            return known
        # Another member of the group may have read on in between.
        known = await self._store.js.consumer(self._names.stream, known["name"]) or known
        delivered = known["delivered"]
        reached = delivered["stream_seq"]
        exact = self._store.only_has(spec.pattern)
        if reached < first - 1 and (not spec.shared or not exact):
            # In a group, the member says it that gets the next entry.
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
            # In between may be entries of other topics. But fewer wait than before: so many are gone, or more.
            self._link.start(self._find_removed(subscription, reached, number, pending - 1 - place.pending))

    async def _find_removed(self, subscription: int, reached: int, number: int, fewer: int) -> None:
        """Between two entries that follow each other are numbers that a consumer did not get."""
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
