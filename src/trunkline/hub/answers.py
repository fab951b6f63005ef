"""What the hub answers to what clients say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from trunkline.brokers.broker import Feature
from trunkline.delivery.fates import Fate
from trunkline.delivery.options import END, Delivery
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidTopic, ProtocolError, TrunklineError
from trunkline.hub import claims
from trunkline.hub.access import Action
from trunkline.hub.admission import MAX_NAME, Admission
from trunkline.hub.claims import MAX_REASON
from trunkline.hub.explain import Explanations
from trunkline.hub.last import LastMessages
from trunkline.hub.letterdesk import LetterDesk
from trunkline.hub.member import Member
from trunkline.topic import EVERYTHING, reply_topic, validate_pattern
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

log = logging.getLogger("trunkline.hub")

RETURNED = "returned"
REPORT_S = 0.1
KEPT_REPORT_S = 0.02
"""The same where a journal keeps them: who reads it asks nobody."""
MAX_REPORTS_PER_S = 4000
"""Of all clients together: the more subscriptions there are, the longer each gathers."""
FOREVER_S = 1e9
"""The lease of what a client holds: it ends when the client does."""


class Answers:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()
        self._letters = LetterDesk(hub)
        self._admission = Admission(hub, keeps_letters=self._letters.keeps)
        self._explanations = Explanations(hub)
        self._handlers: dict[type[control.Control], Callable[[Session, Any], control.Control | None]] = {
            control.Hello: self._admission.hello,
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
            control.Last: self._later(LastMessages(hub).answer),
            control.Explain: self._later(self._explanations.answer),
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

    def _goodbye(self, session: Session, said: control.Goodbye) -> None:
        session.end("goodbye")

    def _heartbeat(self, session: Session, said: control.Heartbeat) -> control.Control | None:
        if not said.id:
            return None
        last = self._hub.broker.sequence.last if self._hub.access.knows(session.identity) else 0
        return control.Beat(re=said.id, last=last)

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
        self._prove(session, said)
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
        if said.group is not None or said.durable or said.start != END:
            self._join(session, said, overflow)
            return None
        roster = hub.broker.roster
        ledger = roster.ledger
        kept = ledger is not None and not said.tap and ledger.keeps_of(said.pattern)
        before = hub.leavers.take(session.origin, said.subscription, said.pattern)
        outlet = Outlet(
            session,
            said.subscription,
            said.pattern,
            # Two clients may give their subscribers the same name: fates and accounts are of one of them.
            said.name if said.tap else roster.free_name(said.name),
            capacity=said.capacity,
            overflow=overflow,
            credit=said.credit,
            time_ns=hub.world.time_ns,
            leads=hub.broker.tree.leads,
            hears=said.hears,
            reports=said.reports and not said.tap,
            tap=said.tap,
            ledger=ledger if kept else None,
            books=None if before is None else before.books,
        )
        role = outlet.name if outlet.reports else ""
        report_s = (
            max(KEPT_REPORT_S if kept else REPORT_S, roster.served / MAX_REPORTS_PER_S) if outlet.reports else None
        )
        session.outlets[said.subscription] = outlet
        if not said.tap:
            roster.admit(outlet, before)
        if outlet.ledger is not None and outlet.reports:
            outlet.ledger.attends(outlet.name, outlet.pattern, hub.broker.sequence.last)
        hub.broker.tree.add(outlet.pattern, outlet)
        hub.changed([said.pattern])
        return control.Subscribed(re=said.id, subscription=said.subscription, report_s=report_s, role=role)

    def _prove(self, session: Session, said: control.Subscribe) -> None:
        """A reply topic belongs to whoever knows its secret."""
        room = len(session.replies) < self._hub.settings.limits.subscriptions
        if said.secret and room and reply_topic(said.secret) == said.pattern:
            session.replies.add(said.pattern)

    def _join(self, session: Session, said: control.Subscribe, overflow: Overflow) -> None:
        """A member of a group, or a subscription that the journal feeds."""
        session.early[said.subscription] = 0
        self._start(self._open_member(session, said, overflow))

    async def _open_member(self, session: Session, said: control.Subscribe, overflow: Overflow) -> None:
        hub = self._hub
        try:
            # Its name may be that of one who is just leaving: the same client, on the connection it has lost.
            await hub.parted()
            broker = hub.broker
            if said.durable:
                broker.require(Feature.DURABLE)
            delivery = Delivery(
                # Only a durable subscription is found again by its name.
                name=said.name if said.durable and said.group is None else broker.roster.free_name(said.name),
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
            if hub.access.restricts:
                self._letters.require_name(session, delivery)
            stream = broker.subscribe(said.pattern, delivery)
            credit = session.early.pop(said.subscription)
            member = Member(
                session,
                said.subscription,
                stream,
                said.credit + credit if said.credit >= 0 else -1,
                hub.access.restricts,
            )
            session.members[said.subscription] = member
            await stream.opened()
        except TrunklineError as error:
            session.early.pop(said.subscription, None)
            if (failed := session.members.pop(said.subscription, None)) is not None:
                await failed.aclose()
            session.say(self._refusal(error, said.id))
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
            hub.part(session, outlet)
            session.replies.discard(outlet.pattern)
            hub.changed([outlet.pattern])
            return control.Done(re=said.id)
        if session.early.pop(said.subscription, None) is not None:
            return control.Done(re=said.id)
        member = session.members.pop(said.subscription, None)
        if member is None:
            raise ProtocolError("unknown", f"there is no subscription {said.subscription}")

        async def leave() -> None:
            await member.aclose()
            hub.changed([member.stream.pattern])
            session.say(control.Done(re=said.id))

        # The same client may come again under the same name at once: it waits for this.
        hub.leaving(leave())
        return None

    def _stop(self, session: Session, said: control.Stop) -> None:
        if (member := session.members.get(said.subscription)) is not None:
            member.stop()

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
            member.bury(said.seq, claims.letter(said.letter, self._hub.broker.sequence.last))
        else:
            member.settle(said.seq, claims.ended(said.fate), said.reason[:MAX_REASON])

    def _fates(self, session: Session, said: control.Fates) -> None:
        """What a plain subscriber says became of what it got."""
        outlet = session.outlets.get(said.subscription)
        if outlet is None or not outlet.reports:
            return
        if outlet.ledger is not None and self._letters.is_taken(outlet.name):
            raise ProtocolError(
                "taken", f"{outlet.name} is a durable subscription, or a member of a group: use another"
            )
        last = self._hub.broker.sequence.last
        strange = 0
        for fate, row in claims.fates(said.rows, last):
            strange += not self._take_row(outlet, fate, row)
        letters = [claims.letter(data, last) for data in said.letters]
        own = [each for each in letters if self._was_sent(outlet, each.message.seq)]
        if own and outlet.ledger is not None:
            self._start(self._letters.take(session, outlet, own))
        if said.asked:
            self._explanations.reported(outlet)
        if strange := strange + len(letters) - len(own):
            raise claims.not_sent(strange, outlet.name)

    def _take_row(self, outlet: Outlet, fate: Fate, row: control.FateRow) -> bool:
        """False if its subscriber was not sent that."""
        first, began = row.first, self._hub.began
        if row.last > began and not outlet.books.has(max(first, began + 1), row.last):
            return False
        if first <= began:
            # Of before this run of the hub: nobody else knows better.
            last = min(row.last, began)
            outlet.report_earlier(first, last, fate, row.reason)
            first = last + 1
        if first > row.last:
            return True
        # Some of it may have been said before, on a connection that ended.
        outlet.report(first, row.last, fate, row.reason)
        return True

    def _was_sent(self, outlet: Outlet, seq: int) -> bool:
        """Of messages before this run of the hub nobody knows."""
        return seq <= self._hub.began or outlet.books.has(seq, seq)

    def _link(self, session: Session, said: control.Link) -> control.Control:
        session.require(Action.SUBSCRIBE, said.pattern)
        session.require(Action.PUBLISH, said.topic)
        if (said.pattern, said.topic) in session.links:
            return control.Done(re=said.id, changed=False)
        if len(session.links) >= self._hub.settings.limits.subscriptions:
            raise ProtocolError("too_many", f"{len(session.links)} links are there already")
        self._hub.link(said.pattern, said.topic)
        session.links.append((said.pattern, said.topic))
        self._hub.changed([said.pattern])
        return control.Done(re=said.id)

    def _unlink(self, session: Session, said: control.Unlink) -> control.Control:
        if (said.pattern, said.topic) not in session.links:
            return control.Done(re=said.id, changed=False)
        session.links.remove((said.pattern, said.topic))
        self._hub.unlink(said.pattern, said.topic)
        self._hub.changed([said.pattern])
        return control.Done(re=said.id)

    # Watching

    def _stats(self, session: Session, said: control.Stats) -> control.Control:
        session.require(Action.ADMINISTER, EVERYTHING)
        return control.StatsAnswer(re=said.id, stats=self._hub.stats())

    def _trace(self, session: Session, said: control.Trace) -> control.Control:
        session.require(Action.ADMINISTER, EVERYTHING)
        if said.on:
            self._hub.tracing[session] = said.client
        else:
            self._hub.tracing.pop(session, None)
        return control.Done(re=said.id)

    def left(self, session: Session) -> None:
        """What the registry knows of a client goes with it."""
        self._admission.left(session)
        self._hub.directory.left(session)

    async def settled(self, timeout_s: float) -> None:
        """Return when what clients have said so far is done, or after this time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
