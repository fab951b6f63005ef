"""The hub: a facade over its parts. It listens, keeps sessions, and knows which clients are alive."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
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
from trunkline.segments import probe
from trunkline.transports.addresses import in_use
from trunkline.transports.schemes import transport_for
from trunkline.transports.transport import Listener, Wire
from trunkline.wire import control
from trunkline.wire.frames import PublishHead

log = logging.getLogger("trunkline.hub")

CLOSE_S = 2.0
SPARE_CLIENTS = 100
"""So many more than there may be are let in as far as HELLO, to be told why they cannot stay."""


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
        self.broker = broker or MemoryBroker(self.world)
        """The engine: it routes, bounds and accounts. The hub adds the wire."""
        store = self.broker.store
        self.store = None if store is None else store.local
        """What it keeps over a restart; None without a journal."""
        self.broker.tree.private_replies = self.access.restricts
        self.recent = Recent()
        self.broker.finders.append(self.recent.find)
        self.published = 0
        """Messages of all clients."""
        self._links: Counter[tuple[str, str]] = Counter()
        self.began = self.broker.sequence.last
        """The number of the last message before this run."""
        self.directory = DirectoryApi(self)
        self.leavers = Leavers()
        self.answers = Answers(self)
        self.id = self.world.uuid7()
        self.since_ns = self.world.time_ns()
        """When this run began."""
        self.sessions: dict[str, Session] = {}
        self.watchers: Watchers[Session] = Watchers()
        """Who publishes on which topic, and wants to know who listens there."""
        self.counts: Counter[str] = Counter()
        self.probe = probe(self.world.secret()) if self.settings.shared_memory else None
        """What clients open to see whether they can read memory of this process."""
        rate = self.settings.limits.messages_per_s
        self.rates = None if rate is None else Buckets(Rate(per_s=rate))
        self.tracing: dict[Session, str] = {}
        """Who wants to see what is said, and of which clients."""
        self._listeners: list[Listener] = []
        self._recalled = False
        self._opened = 0
        self._dirty: dict[Session, None] = {}
        self._in_turn = 0
        self._lone = False
        """Whether the turn has a single frame: nothing else will come to send it together with."""
        self._scheduled = False
        self._watch: asyncio.TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._wires: dict[asyncio.Future[None], Session] = {}
        """Of those who are here, or have left and have not heard all of what was said."""
        self.urgent_until = 0.0
        """Until then publishers are asked to let other processes run."""
        self._closed = False

    @property
    def addresses(self) -> list[str]:
        """Where it listens."""
        return [listener.address for listener in self._listeners]

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # Life

    async def listen(self, url: str, keys: str | None = None, *, insecure: bool = False) -> str:
        """Take connections at `url`; return the address under which it is reached. Raises OSError.

        `keys` is a directory of keys. Without them, beyond this machine only if `insecure` and the environment say so.
        The first time, raises JournalUnusable if what an earlier run has kept of channels cannot be read, and closes.
        """
        if not self._recalled:
            try:
                self.directory.recall()
            except JournalUnusable:
                await self.aclose()
                raise
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
            # They come faster than they can be told why. It cannot be spoken to before it has its receiver.
            loop.call_soon(session.end, "too many clients")
        else:
            session.hello_timer = loop.call_later(self.settings.hello_s, session.hello_missing)
        return session

    async def aclose(self) -> None:
        """Say goodbye to everybody, and stop. What was said has left this process then, or its reader is too slow."""
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

    # Who lives

    def _tick(self) -> None:
        """Send heartbeats, suspect clients that are silent, end the connections of those that are silent too long."""
        now = self.now()
        for session in list(self.sessions.values()):
            session.tick(now)
        self._watch = asyncio.get_running_loop().call_later(self.settings.heartbeat_s / 2, self._tick)

    def left(self, session: Session, why: str) -> None:
        """A client is gone: free what it held."""
        self.sessions.pop(session.id, None)
        self._dirty.pop(session, None)
        self.tracing.pop(session, None)
        for topic in session.topics:
            self.watchers.discard(topic, session)
        for outlet in list(session.outlets.values()):
            if lost := self.part(session, outlet):
                log.warning("%s disconnected: %d messages for %s are lost with it", session.name, lost, outlet.name)
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
        """A subscription ends; how many messages were lost with it."""
        self.broker.tree.remove(outlet.pattern, outlet)
        lost = outlet.close()
        self.counts["dropped"] += lost
        if outlet.ledger is not None and outlet.reports:
            outlet.ledger.leaves(outlet.name)
        if not outlet.tap:
            # Not the outlet itself: what its connection has not sent would stay with it.
            leaver = Leaver(outlet.name, outlet.pattern, outlet.books)
            self.broker.served.dismiss(leaver)
            if outlet.reports and session.ended:
                self.leavers.put(session.origin, outlet.subscription, leaver)
        return lost

    def leaving(self, work: Coroutine[Any, Any, None]) -> None:
        """A member leaves: `parted` waits until that is done."""
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _part(self, member: Member) -> None:
        """A member is gone: its work is for others now."""
        await member.aclose()
        self.changed([member.stream.pattern])

    async def parted(self) -> None:
        """Return when all who have left are gone."""
        while self._leaving:
            await asyncio.wait(self._leaving)

    # Turns: what one chunk of input brings is sent together

    def turn_begin(self, *, lone: bool = False) -> None:
        self._in_turn += 1
        self._lone = lone

    def turn_end(self) -> None:
        self._in_turn -= 1
        if not self._in_turn:
            self._send_off()

    def touch(self, session: Session) -> None:
        """It has something to send."""
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
        if not session.may(Action.PUBLISH, topic):
            batch.fail(-1, "forbidden", f"{session.identity} may not publish on {topic}: the hub has no rule for it")
            self.counts["forbidden"] += 1
            batch.done()
            return
        checked = self.directory.check(batch)
        if checked is None:
            batch.done()
            return
        asks, batch = batch if batch.asks else None, checked
        self.published += batch.count
        try:
            if asks is not None:
                self._check_served(session, asks)
            if self.broker.take(batch):
                self.recent.remember(batch.first, batch.count, topic, batch.body)
        except InvalidTopic as error:
            self.published -= batch.count
            batch.fail(-1, "invalid_topic", str(error))
            batch.done()

    def _check_served(self, session: Session, batch: Batch) -> None:
        """Its publisher is told if nobody gets the requests in it: it need not wait for answers."""
        route = self.broker.resolve(batch.topic)
        if route.unserved and not route.stored:
            # Nobody learns topics in this way that it may not publish on.
            nearest = [each for each in self.broker.nearest(batch.topic) if session.may(Action.PUBLISH, each)]
            batch.fail(-1, "no_responders", f"nobody subscribes to {batch.topic}", nearest=nearest)

    def publish_straight(self, head: PublishHead, body: BatchBody, origin: int) -> int:
        """As `publish`, without a batch, of one that no rule is about: see `take_straight` for what it returns."""
        topic = head.topic
        if self.directory.registry.find(topic) is not None:
            return 0
        first = self.broker.take_straight(head, body, origin)
        if first:
            if self._lone:
                # Its subscriber works while the rest is done here.
                self._send_off()
            self.published += head.count
            self.recent.remember(first, head.count, topic, body)
        return first

    def link(self, pattern: str, topic: str) -> None:
        """Several clients may want the same link: it ends with the last of them."""
        self.broker.link(pattern, topic)
        self._links[pattern, topic] += 1

    def unlink(self, pattern: str, topic: str) -> None:
        self._links[pattern, topic] -= 1
        if not self._links[pattern, topic]:
            del self._links[pattern, topic]
            self.broker.unlink(pattern, topic)

    def info(self, topic: str) -> control.TopicInfo:
        """What a publisher must know of a topic."""
        route = self.broker.resolve(topic)
        # Groups and durable subscriptions may refuse, and so may outlets with little room.
        confirm = route.stored or bool(route.local) or any(map(self._is_strict, route.outlets))
        heard = self.broker.has_subscribers(topic)
        return self.directory.complete(
            control.TopicInfo(topic=topic, heard=heard, confirm=confirm, durable=route.stored)
        )

    def _is_strict(self, outlet: Outlet) -> bool:
        """Whether publishers must wait for its answer: a window ahead of a smaller inbox would exceed its capacity."""
        return outlet.overflow is Overflow.REJECT or (
            outlet.overflow is Overflow.BLOCK and outlet.capacity < self.settings.window
        )

    def watch(self, session: Session, topic: str) -> control.TopicInfo:
        """From now on the session is told when this changes. Raises ProtocolError."""
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

    def changed(self, where: list[str]) -> None:
        """Subscriptions to these patterns have changed: tell those who publish there what it means for them."""
        wanted = dict.fromkeys(each for pattern in where for each in patterns(pattern))
        for topic, watchers in self.watchers.matching(*wanted).items():
            info = self.info(topic)
            for session in watchers:
                if session.topics[topic] != info:
                    session.topics[topic] = info
                    session.send(info)

    # Watching

    def trace(self, session: Session, direction: str, said: control.Control) -> None:
        if isinstance(said, control.Traced):
            return
        what: dict[str, Any] = msgspec.to_builtins(said)
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
