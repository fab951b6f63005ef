"""What the hub answers to what clients say."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.brokers.broker import Feature
from trunkline.delivery.inbox import Overflow
from trunkline.delivery.options import Delivery
from trunkline.errors import InvalidTopic, ProtocolError, TrunklineError
from trunkline.hub import claims
from trunkline.hub.access import Action
from trunkline.hub.claims import MAX_REASON
from trunkline.hub.letterdesk import LetterDesk
from trunkline.hub.member import Member
from trunkline.hub.outlet import Outlet
from trunkline.topic import validate_pattern
from trunkline.wire import control
from trunkline.wire.control import LETTERS_KEPT, VERSIONS

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

log = logging.getLogger("trunkline.hub")

MAX_TOKENS = 10_000
MAX_NAME = 255
RETURNED = "returned"
FOREVER_S = 1e9
"""The lease of what a client holds: it ends when the client does."""


class Answers:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._letters = LetterDesk(hub)
        self._handlers: dict[type[control.Control], Callable[[Session, Any], control.Control | None]] = {
            control.Hello: self._hello,
            control.Goodbye: self._goodbye,
            control.Heartbeat: self._heartbeat,
            control.Topic: self._topic,
            control.Withdraw: self._withdraw,
            control.Subscribe: self._subscribe,
            control.Unsubscribe: self._unsubscribe,
            control.Stop: self._stop,
            control.Credit: self._credit,
            control.Ack: self._ack,
            control.Nack: self._nack,
            control.Fates: self._fates,
            control.Link: self._link,
            control.Unlink: self._unlink,
            control.Stats: self._stats,
            control.Trace: self._trace,
            **hub.directory.handlers,
            **{kind: self._later(work) for kind, work in self._letters.handlers.items()},
        }

    def take(self, session: Session, said: control.Control) -> None:
        """Do what was asked, and answer. What is wrong with it is answered, too."""
        asked = getattr(said, "id", 0)
        handler = self._handlers.get(type(said))
        try:
            if handler is None:
                raise ProtocolError("unknown_type", f"this hub does not know {type(said).__name__}")
            answer = handler(session, said)
            if answer is not None:
                session.say(answer)
        except TrunklineError as error:
            session.say(self._refusal(error, asked))

    def _refusal(self, error: TrunklineError, asked: int) -> control.Error:
        if isinstance(error, ProtocolError):
            self._hub.counts["refused"] += 1
            return control.Error(code=error.code, text=error.text, re=asked)
        if isinstance(error, InvalidTopic):
            return control.Error(code="invalid_topic", text=str(error), re=asked)
        return control.Error(code="refused", text=str(error), details={"error": type(error).__name__}, re=asked)

    def _later(self, work: Callable[[Session, Any], Awaitable[control.Control]]) -> Callable[[Session, Any], None]:
        """For what takes longer than a turn: it is answered when it is done."""
        return lambda session, said: self._start(self._answer(session, said, work))

    async def _answer(
        self, session: Session, said: control.Ask, work: Callable[[Session, Any], Awaitable[control.Control]]
    ) -> None:
        try:
            answer = await work(session, said)
        except TrunklineError as error:
            answer = self._refusal(error, said.id)
        except Exception:
            # Whoever asked must not wait for ever.
            log.exception("%s could not be answered", type(said).__name__)
            self._hub.counts["internal_errors"] += 1
            answer = control.Error(code="internal", text="the hub failed at this: its log says why", re=said.id)
        session.say(answer)

    # The beginning and the end

    def _hello(self, session: Session, said: control.Hello) -> control.Control | None:
        hub = self._hub
        if session.name:
            raise ProtocolError("out_of_order", "HELLO was said before")
        version = next((each for each in VERSIONS if each in said.versions), None)
        if version is None:
            session.say(
                control.Error(
                    code="version",
                    text=f"this hub speaks version {', '.join(map(str, VERSIONS))} of the protocol",
                    details={"versions": list(VERSIONS)},
                    re=said.id,
                )
            )
            session.end("no common version")
            return None
        if len(said.token) > MAX_NAME:
            raise ProtocolError("malformed", f"a token of {len(said.token)} characters: {MAX_NAME} will do")
        if said.token:
            if said.token in self._tokens:
                session.say(control.Error(code="replayed", text="this HELLO was said before", re=said.id))
                session.end("a replayed HELLO")
                return None
            self._tokens[said.token] = None
            if len(self._tokens) > MAX_TOKENS:
                self._tokens.popitem(last=False)
        mine = sum(other.identity == session.identity and bool(other.name) for other in hub.sessions.values())
        if mine >= hub.settings.limits.connections:
            session.say(
                control.Error(code="too_many", text=f"{session.identity} has {mine} connections already", re=said.id)
            )
            session.end("too many connections")
            return None
        session.origin = said.origin
        for other in list(hub.sessions.values()):
            if (
                said.origin
                and other is not session
                and other.origin == said.origin
                and other.identity == session.identity
            ):
                # It lost its connection before we did.
                other.end("its client has connected again")
        session.name = _printable(said.name[:MAX_NAME]) or session.wire.peer.address
        log.info("%s is here: %s, %s", session.name, session.identity, session.wire.peer.address)
        return control.Welcome(
            re=said.id,
            version=version,
            hub=hub.id,
            session=session.id,
            identity=session.identity,
            heartbeat_s=hub.settings.heartbeat_s,
            window=hub.settings.window,
            # Half of what is borne: whoever keeps to it is never held up, nor what it says of deliveries.
            window_bytes=hub.settings.limits.pending_bytes // 2,
            max_frame_bytes=hub.settings.max_frame_bytes,
            features=sorted(feature.value for feature in hub.engine.broker.features)
            + ([LETTERS_KEPT] if self._letters.keeps else []),
        )

    def _goodbye(self, session: Session, said: control.Goodbye) -> None:
        session.end("goodbye")

    def _heartbeat(self, session: Session, said: control.Heartbeat) -> control.Control | None:
        return control.Beat(re=said.id) if said.id else None

    # Publishing

    def _topic(self, session: Session, said: control.Topic) -> control.Control:
        session.require(Action.PUBLISH, said.topic)
        info = self._hub.watch(session, said.topic)
        return control.TopicInfo(
            **{name: getattr(info, name) for name in info.__struct_fields__ if name != "re"}, re=said.id
        )

    def _withdraw(self, session: Session, said: control.Withdraw) -> None:
        session.withdraw(said.batch, said.reason[:MAX_REASON])

    # Subscribing

    def _subscribe(self, session: Session, said: control.Subscribe) -> control.Control | None:
        hub = self._hub
        validate_pattern(said.pattern)
        session.require(Action.SUBSCRIBE, said.pattern)
        if any(said.subscription in each for each in (session.outlets, session.members, session.early)):
            raise ProtocolError("taken", f"subscription {said.subscription} is there already")
        if len(session.outlets) + len(session.members) >= hub.settings.limits.subscriptions:
            raise ProtocolError("too_many", f"{hub.settings.limits.subscriptions} subscriptions are there already")
        if said.credit < -1 or said.capacity < 1 or len(said.name) > MAX_NAME:
            raise ProtocolError("malformed", "a credit, a capacity or a name that cannot be")
        try:
            overflow = Overflow(said.overflow)
        except ValueError as error:
            raise ProtocolError("malformed", f"no policy is called {said.overflow!r}") from error
        if said.group is not None or said.durable:
            self._join(session, said, overflow)
            return None
        outlet = Outlet(
            session,
            said.subscription,
            said.pattern,
            said.name,
            capacity=said.capacity,
            overflow=overflow,
            credit=said.credit,
            hears=said.hears,
        )
        session.outlets[said.subscription] = outlet
        hub.switch.attach(outlet)
        hub.changed([said.pattern])
        ledger = hub.engine.broker.roster.ledger
        kept = ledger is not None and not said.tap and ledger.keeps_of(said.pattern)
        return control.Subscribed(re=said.id, subscription=said.subscription, kept=kept)

    def _join(self, session: Session, said: control.Subscribe, overflow: Overflow) -> None:
        """A member of a group, or a durable subscription."""
        session.early[said.subscription] = 0
        self._start(self._open_member(session, said, overflow))

    async def _open_member(self, session: Session, said: control.Subscribe, overflow: Overflow) -> None:
        hub = self._hub
        try:
            # Its name may be that of one who is just leaving: the same client, on the connection it has lost.
            await hub.parted()
            broker = hub.engine.broker
            if said.durable:
                broker.require(Feature.DURABLE)
            delivery = Delivery(
                name=said.name if said.group is None else broker.roster.free_name(said.name),
                group=said.group,
                durable=said.durable,
                start=said.start,
                capacity=said.capacity,
                overflow=overflow,
                ack=True,
                lease_s=FOREVER_S,
            )
            if session.ended or said.subscription not in session.early:
                return
            stream = broker.subscribe(said.pattern, delivery)
            credit = session.early.pop(said.subscription)
            member = Member(session, said.subscription, stream, said.credit + credit if said.credit >= 0 else -1)
            session.members[said.subscription] = member
            hub.switch.forget()
            await stream.opened()
        except TrunklineError as error:
            session.early.pop(said.subscription, None)
            if (failed := session.members.pop(said.subscription, None)) is not None:
                await failed.aclose()
            session.say(
                control.Error(code="refused", text=str(error), details={"error": type(error).__name__}, re=said.id)
            )
            return
        hub.changed([said.pattern])
        role = stream.inbox.role if self._letters.keeps else ""
        session.say(control.Subscribed(re=said.id, subscription=said.subscription, role=role))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unsubscribe(self, session: Session, said: control.Unsubscribe) -> control.Control | None:
        hub = self._hub
        outlet = session.outlets.pop(said.subscription, None)
        if outlet is not None:
            hub.switch.detach(outlet)
            hub.counts["dropped"] += outlet.close()
            hub.changed([outlet.pattern])
            return control.Done(re=said.id)
        if session.early.pop(said.subscription, None) is not None:
            return control.Done(re=said.id)
        member = session.members.pop(said.subscription, None)
        if member is None:
            raise ProtocolError("unknown", f"there is no subscription {said.subscription}")

        async def leave() -> None:
            await member.aclose()
            hub.switch.forget()
            hub.changed([member.stream.pattern])
            session.say(control.Done(re=said.id))

        self._start(leave())
        return None

    def _stop(self, session: Session, said: control.Stop) -> None:
        if (member := session.members.get(said.subscription)) is not None:
            member.stop()
            self._hub.switch.forget()

    def _credit(self, session: Session, said: control.Credit) -> None:
        if said.messages < 0:
            raise ProtocolError("malformed", "credit cannot be taken back")
        if (outlet := session.outlets.get(said.subscription)) is not None:
            outlet.grant(said.messages)
        elif (member := session.members.get(said.subscription)) is not None:
            member.grant(said.messages)
        elif said.subscription in session.early:
            session.early[said.subscription] += said.messages

    def _ack(self, session: Session, said: control.Ack) -> None:
        if (member := session.members.get(said.subscription)) is not None:
            member.ack(said.ranges)

    def _nack(self, session: Session, said: control.Nack) -> None:
        member = session.members.get(said.subscription)
        if member is None:
            return
        if said.fate == RETURNED:
            member.give_back(said.seq)
        elif said.letter is not None:
            member.bury(said.seq, claims.letter(said.letter, self._hub.engine.broker.sequence.last))
        else:
            member.settle(said.seq, claims.ended(said.fate), said.reason[:MAX_REASON])

    def _fates(self, session: Session, said: control.Fates) -> None:
        """What a plain subscriber says became of what it got: it goes into the journal."""
        ledger = self._hub.engine.broker.roster.ledger
        outlet = session.outlets.get(said.subscription)
        if ledger is None or outlet is None:
            return
        now_ns = self._hub.world.time_ns()
        last = self._hub.engine.broker.sequence.last
        for fate, row in claims.fates(said.rows, last):
            ledger.fate(outlet.name, outlet.pattern, fate, row.first, row.last, row.count, row.reason, now_ns)
        for data in said.letters:
            ledger.died(msgspec.structs.replace(claims.letter(data, last), subscriber=outlet.name), None)

    def _link(self, session: Session, said: control.Link) -> control.Control:
        session.require(Action.SUBSCRIBE, said.pattern)
        if (said.pattern, said.topic) in session.links:
            return control.Done(re=said.id, changed=False)
        if len(session.links) >= self._hub.settings.limits.subscriptions:
            raise ProtocolError("too_many", f"{len(session.links)} links are there already")
        self._hub.switch.link(said.pattern, said.topic)
        session.links.append((said.pattern, said.topic))
        self._hub.changed([said.pattern])
        return control.Done(re=said.id)

    def _unlink(self, session: Session, said: control.Unlink) -> control.Control:
        if (said.pattern, said.topic) not in session.links:
            return control.Done(re=said.id, changed=False)
        session.links.remove((said.pattern, said.topic))
        self._hub.switch.unlink(said.pattern, said.topic)
        self._hub.changed([said.pattern])
        return control.Done(re=said.id)

    # Watching

    def _stats(self, session: Session, said: control.Stats) -> control.Control:
        return control.StatsAnswer(re=said.id, stats=self._hub.stats())

    def _trace(self, session: Session, said: control.Trace) -> control.Control:
        session.require(Action.ADMINISTER, ">")
        if said.on:
            self._hub.tracing[session] = said.client
        else:
            self._hub.tracing.pop(session, None)
        return control.Done(re=said.id)

    def left(self, session: Session) -> None:
        """What the registry knows of a client goes with it."""
        self._hub.directory.left(session)


def _printable(name: str) -> str:
    """It is written to logs: one line of it."""
    return "".join(char if char.isprintable() else "?" for char in name)
