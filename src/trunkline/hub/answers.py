"""The handlers of control messages. Rights are checked before a handler is called: see rights.py."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from heapq import merge
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.delivery.books import MAX_ROWS_ELSEWHERE, Leaver
from trunkline.delivery.fates import Fate
from trunkline.delivery.options import END, Delivery
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.ranges import Ranges
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidTopic, ProtocolError, TrunklineError
from trunkline.hub import claims, rights
from trunkline.hub.absences import Absence, Absences
from trunkline.hub.admission import MAX_NAME, Admission
from trunkline.hub.claims import MAX_REASON
from trunkline.hub.dead_letters import DeadLetterApi
from trunkline.hub.explain import Explanations
from trunkline.hub.last import LastMessages
from trunkline.hub.member import Member
from trunkline.hub.snapshot import snapshot_of
from trunkline.plural import counted
from trunkline.topic import validate_pattern
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

log = logging.getLogger("trunkline.hub")

RETURNED = "returned"
MAX_FULL = 10
"""The number of subscribers that are named to a waiting publisher."""
REPORT_S = 0.1
KEPT_REPORT_S = 0.02
"""The same for a hub with a journal, which stores the fates."""
MAX_REPORTS_PER_S = 4000
"""The rate of all clients together: with more subscriptions, each one collects for longer."""
EARLIER_BYTES = 64 * 1024
"""The size at which a report that needs the journal counts until it is looked up: see `limits.pending_bytes`."""
FOREVER_S = 1e9
"""The lease of messages that a client holds. In effect, it ends when the client disconnects."""


class Answers:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead_letters = DeadLetterApi(hub)
        self._admission = Admission(hub, keeps_letters=self._dead_letters.keeps)
        self._explanations = Explanations(hub)
        self._absences = Absences(hub)
        self._handlers: dict[type[control.Control], Callable[[Session, Any], control.Control | None]] = {
            control.Hello: self._admission.hello,
            control.Maps: self._maps,
            control.Goodbye: self._goodbye,
            control.Heartbeat: self._heartbeat,
            control.Topic: self._topic,
            control.Withdraw: self._withdraw,
            control.Subscribe: self._subscribe,
            control.Mapped: self._mapped,
            control.Unsubscribe: self._unsubscribe,
            control.Stop: self._stop,
            control.Credit: self._credit,
            control.Ack: self._ack,
            control.Nack: self._nack,
            control.Fates: self._fates,
            control.Link: self._link,
            control.Unlink: self._unlink,
            control.Stats: self._stats,
            control.SnapshotRequest: self._later(self._snapshot),
            control.Trace: self._trace,
            **hub.directory.handlers,
            **{kind: self._later(work) for kind, work in self._dead_letters.handlers.items()},
            control.Last: self._later(LastMessages(hub).answer),
            control.Explain: self._later(self._explanations.answer),
        }
        if strays := self._handlers.keys() ^ rights.RIGHTS.keys():
            raise TypeError(f"a handler without a row in RIGHTS, or a row without a handler: {strays}")

    def take(self, session: Session, message: control.Control) -> None:
        """Check the rights that a message needs, handle it, and answer, also with errors."""
        try:
            rights.check(self._hub.access, session.identity, session.replies, message)
            answer = self._handlers[type(message)](session, message)
            if answer is not None:
                session.send(answer)
        except TrunklineError as error:
            session.send(self._refusal(error, getattr(message, "id", 0)))
        except Exception:
            if not (asked := getattr(message, "id", 0)):
                raise
            session.send(self._internal(message, asked))

    def _internal(self, message: control.Control, asked: int) -> control.Error:
        """Answer with an error after a failure inside the hub, so that the client does not wait for ever."""
        log.exception("a %s message could not be answered", type(message).__name__)
        self._hub.counts["internal_errors"] += 1
        return control.Error(
            code="internal", text="the hub failed to handle this: read its log for the cause", re=asked
        )

    def _refusal(self, error: TrunklineError, asked: int) -> control.Error:
        if isinstance(error, ProtocolError):
            self._hub.counts["refused"] += 1
            return control.Error(code=error.code, text=error.text, re=asked)
        if isinstance(error, InvalidTopic):
            return control.Error(code="invalid_topic", text=str(error), re=asked)
        return control.Error(code="refused", text=str(error), details={"error": type(error).__name__}, re=asked)

    def _later(self, work: Callable[[Session, Any], Awaitable[control.Control]]) -> Callable[[Session, Any], None]:
        """Run a handler that takes longer than one iteration. The answer is sent when it is done."""
        return lambda session, message: self._start(self._answer(session, message, work))

    async def _answer(
        self, session: Session, message: control.Ask, work: Callable[[Session, Any], Awaitable[control.Control]]
    ) -> None:
        try:
            answer = await work(session, message)
        except TrunklineError as error:
            answer = self._refusal(error, message.id)
        except Exception:
            answer = self._internal(message, message.id)
        session.send(answer)

    # Connecting and disconnecting

    def _maps(self, session: Session, message: control.Maps) -> None:
        session.maps = bool(session.process)

    def _mapped(self, session: Session, message: control.Mapped) -> None:
        for number in message.numbers:
            session.shared.pop(number, None)

    def _goodbye(self, session: Session, message: control.Goodbye) -> None:
        session.end("goodbye")

    def _heartbeat(self, session: Session, message: control.Heartbeat) -> control.Control | None:
        if not message.id:
            return None
        last = self._hub.broker.sequence.last if self._hub.access.knows(session.identity) else 0
        return control.Beat(re=message.id, last=last)

    # Publishing

    def _topic(self, session: Session, message: control.Topic) -> control.Control:
        info = self._hub.watch(session, message.topic)
        full = itertools.islice(self._hub.broker.resolve(message.topic).full(), MAX_FULL)
        return replace(info, re=message.id, full=[(each.name, each.times_full) for each in full])

    def _withdraw(self, session: Session, message: control.Withdraw) -> None:
        session.withdraw(message.batch, message.reason[:MAX_REASON])

    # Subscribing

    def _subscribe(self, session: Session, message: control.Subscribe) -> control.Control | None:
        hub = self._hub
        validate_pattern(message.pattern)
        if any(message.subscription in each for each in (session.outlets, session.members, session.opening)):
            raise ProtocolError("taken", f"subscription {message.subscription} already exists")
        most = hub.settings.limits.subscriptions
        if len(session.outlets) + len(session.members) + len(session.opening) >= most:
            raise ProtocolError("too_many", f"there are already {most} subscriptions")
        if rights.proves_reply(message) and len(session.replies) < most:
            session.replies.add(message.pattern)
        if min(message.credit, message.credit_bytes) < -1 or message.capacity < 1 or len(message.name) > MAX_NAME:
            raise ProtocolError("malformed", "the credit, the capacity or the name is out of range")
        try:
            overflow = Overflow(message.overflow)
        except ValueError as error:
            raise ProtocolError("malformed", f"unknown overflow policy {message.overflow!r}") from error
        if message.group is not None or message.durable or message.start != END:
            self._join(session, message, overflow)
            return None
        served = hub.broker.served
        ledger = served.ledger
        kept = ledger is not None and not message.tap and ledger.keeps_of(message.pattern)
        before = hub.leavers.take(session.origin, message.subscription, message.pattern)
        outlet = Outlet(
            session,
            message.subscription,
            message.pattern,
            # Two clients may use the same name for their subscribers, but fates and accounts need a unique one.
            message.name if message.tap else served.free_name(message.name),
            capacity=message.capacity,
            overflow=overflow,
            credit=message.credit,
            credit_bytes=message.credit_bytes,
            time_ns=hub.world.time_ns,
            leads=hub.broker.tree.leads,
            hears=message.hears,
            reports=message.reports and not message.tap,
            tap=message.tap,
            ledger=ledger if kept else None,
            one_of=None if message.one_of is None else (session.origin, message.one_of),
            books=None if before is None else before.books,
        )
        role = outlet.name if outlet.reports else ""
        report_s = (
            max(KEPT_REPORT_S if kept else REPORT_S, served.count / MAX_REPORTS_PER_S) if outlet.reports else None
        )
        session.outlets[message.subscription] = outlet
        if not message.tap:
            served.admit(outlet, before)
        if outlet.ledger is not None and outlet.reports:
            outlet.ledger.attends(outlet.name, outlet.pattern, hub.broker.sequence.last)
        self._end_absence(outlet, before)
        hub.broker.tree.add(outlet.pattern, outlet)
        hub.added(outlet.pattern, hears=outlet.hears, confirms=hub.is_strict(outlet))
        return control.Subscribed(re=message.id, subscription=message.subscription, report_s=report_s, role=role)

    def _end_absence(self, outlet: Outlet, before: Leaver | None) -> None:
        """Record what a subscriber missed since its last connection, to this run of the hub or to the one before."""
        hub = self._hub
        upto = hub.broker.sequence.last
        if before is not None:
            left, after = before.left, before.after
        elif hub.store is not None and (outlet.name, outlet.pattern) in hub.store.attended:
            hub.store.attended.discard((outlet.name, outlet.pattern))
            left = after = hub.began
        else:
            return
        if left < upto:
            outlet.books.away(left + 1, upto, hub.world.time_ns())
        if after < upto:
            self._start(self._absences.record(outlet, Absence(after, upto)))

    def _join(self, session: Session, message: control.Subscribe, overflow: Overflow) -> None:
        """Open a member of a group, or a subscription that reads from the journal."""
        session.opening[message.subscription] = (0, 0)
        self._start(self._open_member(session, message, overflow))

    async def _open_member(self, session: Session, message: control.Subscribe, overflow: Overflow) -> None:
        hub = self._hub
        try:
            # The name may still be in use by the same client on its lost connection, which is being closed.
            await hub.parted()
            broker = hub.broker
            if message.durable:
                broker.require(Feature.DURABLE)
            delivery = Delivery(
                # Only a durable subscription continues under its name.
                name=message.name
                if message.durable and message.group is None
                else broker.served.free_name(message.name),
                group=message.group,
                durable=message.durable,
                start=message.start,
                capacity=message.capacity,
                overflow=overflow,
                ack=True,
                lease_s=FOREVER_S,
            )
            if session.ended or message.subscription not in session.opening:
                return
            if hub.access.restricts:
                self._dead_letters.claim_name(session, message.pattern, delivery)
            stream = broker.subscribe(message.pattern, delivery)
            stream.inbox.books.limit_rows(MAX_ROWS_ELSEWHERE)
            credit, size = session.opening.pop(message.subscription)
            member = Member(
                session,
                message.subscription,
                stream,
                message.credit + credit if message.credit >= 0 else -1,
                hub.access.restricts,
                message.credit_bytes + size if message.credit_bytes >= 0 else -1,
                None if self._dead_letters.keeps else broker.served.dead_letters,
            )
            member.group = message.group or ""
            if message.group is not None and not message.durable:
                member.bound_bytes()
            session.members[message.subscription] = member
            await stream.opened()
        except TrunklineError as error:
            session.opening.pop(message.subscription, None)
            if (failed := session.members.pop(message.subscription, None)) is not None:
                await failed.aclose()
            session.send(self._refusal(error, message.id))
            return
        hub.added(message.pattern)
        role = stream.inbox.role if self._dead_letters.keeps else ""
        session.send(control.Subscribed(re=message.id, subscription=message.subscription, role=role))

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unsubscribe(self, session: Session, message: control.Unsubscribe) -> control.Control | None:
        hub = self._hub
        outlet = session.outlets.pop(message.subscription, None)
        if outlet is not None:
            hub.part(session, outlet)
            session.replies.discard(outlet.pattern)
            hub.removed(outlet.pattern)
            return control.Done(re=message.id)
        if session.opening.pop(message.subscription, None) is not None:
            return control.Done(re=message.id)
        member = session.members.pop(message.subscription, None)
        if member is None:
            raise ProtocolError("unknown", f"there is no subscription {message.subscription}")

        async def leave() -> None:
            await member.aclose()
            hub.removed(member.stream.pattern)
            session.send(control.Done(re=message.id))

        # The same client may subscribe again under the same name at once, and waits for this.
        hub.leaving(leave())
        return None

    def _stop(self, session: Session, message: control.Stop) -> None:
        if (member := session.members.get(message.subscription)) is not None:
            member.stop()

    def _credit(self, session: Session, message: control.Credit) -> None:
        if message.messages < 0 or message.bytes < 0:
            raise ProtocolError("malformed", "credit cannot be negative")
        if (outlet := session.outlets.get(message.subscription)) is not None:
            outlet.grant(message.messages, message.bytes)
        elif (member := session.members.get(message.subscription)) is not None:
            member.grant(message.messages, message.bytes)
        elif (opening := session.opening.get(message.subscription)) is not None:
            messages, size = opening
            session.opening[message.subscription] = (messages + message.messages, size + message.bytes)

    def _ack(self, session: Session, message: control.Ack) -> None:
        if (member := session.members.get(message.subscription)) is not None:
            member.ack(message.ranges)

    def _nack(self, session: Session, message: control.Nack) -> None:
        member = session.members.get(message.subscription)
        if member is None:
            return
        if message.fate == RETURNED:
            member.give_back(message.seq)
        elif message.letter is not None:
            member.bury(message.seq, claims.letter(message.letter, self._hub.broker.sequence.last))
        else:
            member.settle(message.seq, claims.ended(message.fate), message.reason[:MAX_REASON])

    def _fates(self, session: Session, message: control.Fates) -> None:
        """Record the fates that a client reports for messages of a plain subscription."""
        outlet = session.outlets.get(message.subscription)
        if outlet is None or not outlet.reports:
            return
        if outlet.ledger is not None and self._hub.broker.served.takes_back(outlet.name):
            raise ProtocolError(
                "taken", f"{outlet.name} is a durable subscription, or a member of a group: use another name"
            )
        last = self._hub.broker.sequence.last
        unknown = 0
        rows = [] if outlet.report_in_order(message.rows) else message.rows
        earlier: list[tuple[Fate, control.FateRow]] = []
        for fate, row in claims.fates(rows, last):
            unknown += not self._take_row(outlet, fate, row, earlier)
        letters = [claims.letter(data, last) for data in message.letters]
        own = [each for each in letters if self._was_sent(outlet, each.message.seq)]
        # Those on topics that are not stored stay with the client.
        stored = [each for each in own if self._hub.broker.resolve(each.message.topic).stored]
        if stored and outlet.ledger is not None:
            self._start(self._dead_letters.take(session, outlet, stored))
        if earlier:
            self._start(self._take_earlier(session, outlet, earlier, asked=message.asked))
        elif message.asked:
            self._explanations.reported(outlet)
        if unknown := unknown + len(letters) - len(own):
            raise claims.not_sent(unknown, outlet.name)

    def _take_row(
        self, outlet: Outlet, fate: Fate, row: control.FateRow, earlier: list[tuple[Fate, control.FateRow]]
    ) -> bool:
        """Record one row. False if these messages were not sent to the subscriber.

        Rows to be looked up are added to `earlier`.
        """
        first, began = row.first, self._hub.began
        if fate is Fate.DELIVERED and not row.reason and outlet.report_next(first, row.last):
            return True
        if row.last > began and not outlet.books.has(max(first, began + 1), row.last):
            return False
        if first <= began:
            # From before this run of the hub: there are no accounts to compare with.
            last = min(row.last, began)
            if self._hub.access.restricts:
                earlier.append((fate, replace(row, last=last)))
            else:
                outlet.report_earlier(first, last, fate, row.reason)
            first = last + 1
        if first > row.last:
            return True
        # Some of it may have been reported before, on a connection that ended.
        outlet.report(first, row.last, fate, row.reason)
        return True

    async def _take_earlier(
        self, session: Session, outlet: Outlet, rows: list[tuple[Fate, control.FateRow]], *, asked: bool
    ) -> None:
        """At a hub with rules, a client reports on messages from before this run only on topics of its subscription."""
        store, leads = self._hub.store, self._hub.broker.tree.leads
        if store is not None and outlet.ledger is not None:
            with session.held(EARLIER_BYTES):
                # One lookup for all rows: the next report of the subscription must not overtake some of them.
                found = await store.numbers_by_topic(
                    min(row.first for _, row in rows), max(row.last for _, row in rows)
                )
            own = Ranges()
            for first, last in merge(*(found[topic] for topic in found if leads(topic, outlet.pattern))):
                own.add(first, last)
            for fate, row in rows:
                for first, last in own.within(row.first, row.last):
                    outlet.report_earlier(first, last, fate, row.reason)
        if asked:
            self._explanations.reported(outlet)

    def _was_sent(self, outlet: Outlet, seq: int) -> bool:
        """Whether a message was sent to this outlet. True for messages from before this run, which have no accounts."""
        return seq <= self._hub.began or outlet.books.has(seq, seq)

    def _link(self, session: Session, message: control.Link) -> control.Control:
        if (message.pattern, message.topic) in session.links:
            return control.Done(re=message.id, changed=False)
        if len(session.links) >= self._hub.settings.limits.subscriptions:
            raise ProtocolError("too_many", f"this client already has {counted(len(session.links), 'link')}")
        self._hub.link(message.pattern, message.topic)
        session.links[(message.pattern, message.topic)] = None
        self._hub.changed([message.pattern])
        return control.Done(re=message.id)

    def _unlink(self, session: Session, message: control.Unlink) -> control.Control:
        if (message.pattern, message.topic) not in session.links:
            return control.Done(re=message.id, changed=False)
        del session.links[(message.pattern, message.topic)]
        self._hub.unlink(message.pattern, message.topic)
        self._hub.removed(message.pattern)
        return control.Done(re=message.id)

    # Watching

    def _stats(self, session: Session, message: control.Stats) -> control.Control:
        return control.StatsAnswer(re=message.id, stats=self._hub.stats())

    async def _snapshot(self, session: Session, message: control.SnapshotRequest) -> control.Control:
        return control.SnapshotAnswer(re=message.id, snapshot=await snapshot_of(self._hub, message.rows))

    def _trace(self, session: Session, message: control.Trace) -> control.Control:
        if message.on:
            self._hub.tracing[session] = message.client
        else:
            self._hub.tracing.pop(session, None)
        return control.Done(re=message.id)

    def left(self, session: Session) -> None:
        """Remove a client from the registry."""
        self._admission.left(session)
        self._hub.directory.left(session)

    async def settled(self, timeout_s: float) -> None:
        """Wait until all messages of clients so far are handled, or until the time is over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
