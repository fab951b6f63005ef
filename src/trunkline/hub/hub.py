"""The hub: a facade over its parts. It listens, manages sessions, and checks which clients are alive."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable
from fnmatch import fnmatchcase
from typing import Any, Self

import msgspec

from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.delivery.batch import Batch, BatchBody
from trunkline.delivery.books import Leaver
from trunkline.delivery.fates import Account
from trunkline.delivery.limits import Buckets, Rate
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.routing import patterns
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidTopic, ProtocolError
from trunkline.hub.access import Access, Action
from trunkline.hub.answers import Answers
from trunkline.hub.directory import DirectoryApi
from trunkline.hub.leavers import Leavers
from trunkline.hub.member import Member
from trunkline.hub.recent import Recent
from trunkline.hub.session import Session
from trunkline.hub.settings import HubSettings
from trunkline.hub.watchers import Watchers
from trunkline.journal.errors import JournalUnusable
from trunkline.plural import counted
from trunkline.segments import probe
from trunkline.transports.addresses import in_use
from trunkline.transports.schemes import transport_for
from trunkline.transports.transport import Listener, Wire
from trunkline.wire import control
from trunkline.wire.frames import PublishHead

log = logging.getLogger("trunkline.hub")

CLOSE_S = 2.0
MAX_NAMED = 5
"""The number of subscriptions that are named in a line of the log."""
SPARE_CLIENTS = 100
"""Connections beyond the limit that are accepted until HELLO, so that they get an error message."""


class Hub:
    """`async with Hub() as hub: await hub.listen("unix:///run/x.sock")`. A hub is used in one event loop."""

    def __init__(
        self,
        broker: MemoryBroker | None = None,
        *,
        settings: HubSettings | None = None,
        access: Access | None = None,
        world: World | None = None,
    ) -> None:
        self.world = world or (broker.world if broker is not None else World())
        self.settings = settings or HubSettings()
        self.access = access or Access()
        if broker is None:
            broker = MemoryBroker(self.world)
            # Numbers keep ascending over restarts, as with a journal, so that the accounts of subscribers stay correct.
            broker.sequence.last = self.world.time_ns() // 1000
        self.broker = broker
        """The engine, which routes messages, applies limits and keeps the accounts.

        The hub adds the network protocol.
        """
        store = self.broker.store
        self.store = None if store is None else store.local
        """The state that survives a restart; None without a journal."""
        self.broker.tree.private_replies = self.access.restricts
        self.recent = Recent()
        self.broker.finders.append(self.recent.find)
        self.published = 0
        """The number of messages that clients have published."""
        self._links: Counter[tuple[str, str]] = Counter()
        self.began = self.broker.sequence.last
        """The number of the last message before this run."""
        self.directory = DirectoryApi(self)
        self.leavers = Leavers()
        self.answers = Answers(self)
        self.id = self.world.uuid7()
        self.since_ns = self.world.time_ns()
        """The start time of this run."""
        self.sessions: dict[str, Session] = {}
        self.watchers: Watchers[Session] = Watchers()
        """The publishers of each topic, which are notified about its subscribers."""
        self.counts: Counter[str] = Counter()
        self.probe = probe(self.world.secret()) if self.settings.shared_memory else None
        """The probe with which clients test whether they can read memory of this process."""
        rate = self.settings.limits.messages_per_s
        self.rates = None if rate is None else Buckets(Rate(per_s=rate))
        self.tracing: dict[Session, str] = {}
        """Sessions that trace control messages, with the client that each traces."""
        self._listeners: list[Listener] = []
        self._recalled = False
        self._opened = 0
        self._dirty: dict[Session, None] = {}
        self._removed: dict[str, None] = {}
        """Patterns of subscriptions that were removed, until publishers are notified."""
        self._in_turn = 0
        self._lone = False
        """Whether this iteration has a single frame, so that there is nothing to combine it with."""
        self.straight = False
        """Whether the batch of such an iteration is being sent directly to its only subscriber."""
        self._scheduled = False
        self._watch: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._wires: dict[asyncio.Future[None], Session] = {}
        """Connected sessions, and those that are closing and have unsent output."""
        self.urgent_until = 0.0
        """Until this time publishers are asked to yield the processor."""
        self._closed = False

    @property
    def addresses(self) -> list[str]:
        """The addresses it listens at."""
        return [listener.address for listener in self._listeners]

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # Lifecycle

    async def listen(self, url: str, keys: str | None = None, *, insecure: bool = False) -> str:
        """Accept connections at `url`. Returns the actual address. Raises OSError.

        `keys` is a directory of keys. Without keys, addresses that other machines can reach need `insecure` and the
        environment variable. The first call raises JournalUnusable and closes the hub if the stored channels cannot be
        read.
        """
        if not self._recalled:
            try:
                self.directory.recall()
            except JournalUnusable:
                await self.aclose()
                raise
            if self.store is not None:
                await self.store.numbers.begin()
            self._recalled = True
        transport = transport_for(url, keys, insecure=insecure)
        try:
            listener = await transport.listen(url, self._accept, max_frame_bytes=self.settings.max_frame_bytes)
        except OSError as error:
            raise in_use(url, error) from error
        self._listeners.append(listener)
        if self._watch is None:
            self._tick()
        if len(self._listeners) == 1:
            self.broker.served_at(listener.address)
        log.info("listening at %s", listener.address)
        return listener.address

    def _accept(self, wire: Wire) -> Session:
        self._opened += 1
        session = Session(self, wire, self._opened)
        self.sessions[session.id] = session
        self._wires[session.gone] = session
        session.gone.add_done_callback(self._wires.pop)
        loop = asyncio.get_running_loop()
        if len(self.sessions) > 2 * self.settings.max_clients + SPARE_CLIENTS:
            # Too many at once to send each an error. Nothing can be sent before the wire has its receiver.
            loop.call_soon(session.end, "too many clients")
        else:
            session.hello_timer = loop.call_later(self.settings.hello_s, session.hello_missing)
        return session

    async def aclose(self) -> None:
        """Send GOODBYE to all clients, and stop. On return, all output is sent, except to readers that are too slow."""
        if self._closed:
            return
        self._closed = True
        for listener in self._listeners:
            await listener.aclose()
        if self._watch is not None:
            self._watch.cancel()
        for session in list(self.sessions.values()):
            session.end("the hub is closing")
        await self.answers.settled(CLOSE_S)
        if ending := [*self._leaving, *self._wires]:
            await asyncio.wait(ending, timeout=CLOSE_S)
        for session in self._wires.values():
            session.wire.abort()
        self.probe = None
        await self.broker.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Liveness

    def _tick(self) -> None:
        """Send heartbeats, suspect clients that are silent, end the connections of those that are silent too long."""
        now = self.now()
        if self.store is not None and self.broker.sequence.number > self.store.numbers.due:
            # Buses in this process have published, and no client has sent anything.
            self.store.numbers.extend()
        for session in list(self.sessions.values()):
            session.tick(now)
        self._watch = asyncio.get_running_loop().call_later(self.settings.heartbeat_s / 2, self._tick)

    def left(self, session: Session, why: str) -> None:
        """Free the resources of a client that is gone."""
        self.sessions.pop(session.id, None)
        self._dirty.pop(session, None)
        self.tracing.pop(session, None)
        for topic in session.topics:
            self.watchers.discard(topic, session)
        parted = [(self.part(session, outlet), outlet.name) for outlet in session.outlets.values()]
        if names := [name for lost, name in parted if lost]:
            log.warning(
                "%s disconnected: lost %s for %s: %s",
                session.name,
                counted(sum(lost for lost, _ in parted), "message"),
                counted(len(names), "subscription"),
                ", ".join([*names[:MAX_NAMED], *(["…"] if len(names) > MAX_NAMED else [])]),
            )
        for pattern, topic in session.links:
            self.unlink(pattern, topic)
        for member in session.members.values():
            self.leaving(self._part(member))
        self.changed([outlet.pattern for outlet in session.outlets.values()] + [each[0] for each in session.links])
        self.answers.left(session)
        session.outlets.clear()
        session.members.clear()
        if session.name:
            log.info("%s disconnected: %s", session.name, why)

    def part(self, session: Session, outlet: Outlet) -> int:
        """End a subscription. Returns how many messages were lost with it."""
        self.broker.tree.remove(outlet.pattern, outlet)
        lost = outlet.close()
        self.counts["dropped"] += lost
        if outlet.ledger is not None and outlet.reports:
            if self._closed:
                # It is expected to reconnect to the next run, which records what it misses until then.
                outlet.ledger.attends(outlet.name, outlet.pattern, self.broker.sequence.last)
            else:
                outlet.ledger.leaves(outlet.name)
        if not outlet.tap:
            # Not the outlet itself, which would keep the unsent output of its connection in memory.
            broker = self.broker
            leaver = Leaver(outlet.name, outlet.pattern, outlet.books, broker.sequence.last, broker.routed_upto)
            self.broker.served.dismiss(leaver)
            if outlet.reports and session.ended:
                self.leavers.put(session.origin, outlet.subscription, leaver)
        return lost

    def leaving(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the work of removing a member. `parted` waits until it is done."""
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _part(self, member: Member) -> None:
        """Remove a member that is gone. Its messages go to other members."""
        await member.aclose()
        self.removed(member.stream.pattern)

    async def parted(self) -> None:
        """Wait until all leaving members are gone."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    # Iterations: the output of one chunk of input is sent together

    def turn_begin(self, *, lone: bool = False) -> None:
        self._in_turn += 1
        self._lone = lone

    def turn_end(self) -> None:
        self._in_turn -= 1
        if self._dirty and not self._in_turn:
            self._send_off()
        if self.store is not None and self.broker.sequence.number > self.store.numbers.due:
            self.store.numbers.extend()

    def touch(self, session: Session) -> None:
        """Mark a session that has output to send."""
        self._dirty[session] = None
        if not self._in_turn and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_off)

    def _send_off(self) -> None:
        self._scheduled = False
        while self._dirty:
            session, _ = self._dirty.popitem()
            session.flush()

    # Publishing

    def publish(self, session: Session, batch: Batch) -> None:
        topic = batch.topic
        try:
            if not session.may(Action.PUBLISH, topic):
                text = f"{session.identity} may not publish on {topic}: the hub has no rule for it"
                batch.fail(-1, "forbidden", text)
                self.counts["forbidden"] += 1
                batch.done()
                return
            checked = self.directory.check(batch)
            if checked is None:
                batch.done()
                return
            asks, batch = batch if batch.asks else None, checked
            if asks is not None:
                self._check_served(session, asks)
            remembered = self.broker.take(batch)
            self.published += batch.count
            if remembered:
                self.recent.remember(batch.first, batch.count, topic, batch.body)
        except InvalidTopic as error:
            batch.fail(-1, "invalid_topic", str(error))
            batch.done()

    def _check_served(self, session: Session, batch: Batch) -> None:
        """Notify the publisher if its requests have no subscriber, so that it does not wait for answers."""
        if self.broker.is_unserved(batch.topic):
            # Only topics that the client may publish on are named.
            nearest = [each for each in self.broker.nearest(batch.topic) if session.may(Action.PUBLISH, each)]
            batch.fail(-1, "no_responders", f"nobody subscribes to {batch.topic}", nearest=nearest)

    def publish_straight(self, head: PublishHead, body: BatchBody, origin: int) -> int:
        """As `publish`, for a batch to which no rule applies, without building it.

        Returns the result of `take_straight`.
        """
        topic = head.topic
        if self.directory.registry.find(topic) is not None:
            return 0
        self.straight = self._lone
        try:
            first = self.broker.take_straight(head, body, origin)
        finally:
            self.straight = False
        if first:
            if self._dirty and self._lone:
                # Sent first, so that its subscriber works in parallel.
                self._send_off()
            self.published += head.count
            self.recent.remember(first, head.count, topic, body)
        return first

    def link(self, pattern: str, topic: str) -> None:
        """Add a link. Several clients may use the same link; it is removed with the last of them."""
        self.broker.link(pattern, topic)
        self._links[pattern, topic] += 1

    def unlink(self, pattern: str, topic: str) -> None:
        self._links[pattern, topic] -= 1
        if not self._links[pattern, topic]:
            del self._links[pattern, topic]
            self.broker.unlink(pattern, topic)

    def info(self, topic: str) -> control.TopicInfo:
        """The properties of a topic that a publisher needs."""
        route = self.broker.resolve(topic)
        # Groups and durable subscriptions may refuse, and so may outlets with little room.
        confirm = route.stored or bool(route.local) or any(map(self.is_strict, route.outlets))
        heard = self.broker.has_subscribers(topic)
        return self.directory.complete(
            control.TopicInfo(topic=topic, heard=heard, confirm=confirm, durable=route.stored)
        )

    def is_strict(self, outlet: Outlet) -> bool:
        """Whether publishers must wait for its answer: a window ahead of a smaller inbox would exceed its capacity."""
        return outlet.overflow is Overflow.REJECT or (
            outlet.overflow is Overflow.BLOCK and outlet.capacity < self.settings.window
        )

    def watch(self, session: Session, topic: str) -> control.TopicInfo:
        """Notify the session when the properties of a topic change. Raises ProtocolError."""
        if topic not in session.topics and len(session.topics) >= self.settings.limits.topics:
            oldest = next(iter(session.topics))
            del session.topics[oldest]
            self.watchers.discard(oldest, session)
        try:
            info = self.info(topic)
        except InvalidTopic as error:
            raise ProtocolError("invalid_topic", str(error)) from error
        session.topics[topic] = info
        self.watchers.add(topic, session)
        return info

    def changed(self, where: Iterable[str]) -> None:
        """What publishers must know about topics of these patterns may have changed: notify them."""
        wanted = dict.fromkeys(each for pattern in where for each in patterns(pattern))
        for topic, watchers in self.watchers.matching(*wanted).items():
            self._inform(topic, watchers)

    def added(self, pattern: str, *, hears: bool = True, confirms: bool = True) -> None:
        """A subscription was added: notify publishers.

        Not those that already know of such a subscriber: finding a route takes time for each of its subscribers.
        """
        for topic, watchers in self.watchers.matching(*patterns(pattern)).items():
            if any(hears > known.heard or confirms > known.confirm for known in (w.topics[topic] for w in watchers)):
                self._inform(topic, watchers)

    def removed(self, pattern: str) -> None:
        """A subscription was removed: notify publishers soon, once for all that are removed until then."""
        if not self._removed:
            asyncio.get_running_loop().call_soon(self._report_removed)
        self._removed[pattern] = None

    def _report_removed(self) -> None:
        removed, self._removed = self._removed, {}
        self.changed(removed)

    def _inform(self, topic: str, watchers: Iterable[Session]) -> None:
        info = self.info(topic)
        for session in watchers:
            if session.topics[topic] != info:
                session.topics[topic] = info
                session.send(info)

    # Watching

    def trace(self, session: Session, direction: str, message: control.Control) -> None:
        if isinstance(message, control.Traced):
            return
        what: dict[str, Any] = msgspec.to_builtins(message)
        for watcher, names in list(self.tracing.items()):
            if watcher is not session and not watcher.full and fnmatchcase(session.name or "?", names):
                watcher.send(
                    control.Traced(
                        at_ns=self.world.time_ns(),
                        client=session.name or session.wire.peer.address,
                        direction=direction,
                        what=what,
                    )
                )

    def stats(self) -> dict[str, Any]:
        return {
            "hub": self.id,
            "clients": len(self.sessions),
            "subscriptions": sum(len(s.outlets) + len(s.members) for s in self.sessions.values()),
            "published": self.published,
            "numbers": self.broker.sequence.last,
            "waiting": sum(outlet.waiting for s in self.sessions.values() for outlet in s.outlets.values()),
            "waiting_bytes": sum(outlet.waiting_bytes for s in self.sessions.values() for outlet in s.outlets.values()),
            "counts": dict(self.counts),
            "account": msgspec.to_builtins(sum(self.broker.served.accounts().values(), Account())),
            "memory": self.directory.memory(),
            "listening": self.addresses,
        }
