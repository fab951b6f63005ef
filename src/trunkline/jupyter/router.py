"""Routes the messages of a kernel: to all subscribers first, then to their request, or to the orphans.

The table of requests and orphans is the same as for requests on a bus.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

import msgspec

from trunkline.clock import World
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.requests import OrphanBox, Requests, Why
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscribers import Subscribers
from trunkline.errors import InboxFull, RequestTimeout
from trunkline.jupyter.comm import Comms
from trunkline.jupyter.errors import KernelError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.message_types import BROADCAST
from trunkline.jupyter.open_execution import OpenExecution, accepts
from trunkline.jupyter.outputs import Outputs, display_id_of
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import KernelMessage
from trunkline.message import NORMAL, MessageType
from trunkline.message_log import TRACE
from trunkline.plural import counted
from trunkline.settings import Settings
from trunkline.topic import matches

log = logging.getLogger("trunkline.jupyter")

MAX_OTHERS: Final = 1000
"""The maximum number of executions of other clients that are kept."""

BY_ID: Final = frozenset(
    {"comm_open", "comm_msg", "comm_close", "update_display_data", "display_data", "execute_result"}
)
"""Messages that may name a comm or a display."""
TO_COMM: Final = "to its comm"
TO_SHOWN: Final = "to the executions that display it"
MAX_ISSUED: Final = 10_000
"""The maximum number of remembered ids of messages that this client sent."""


class Routed(msgspec.Struct):
    """Counters of routed messages."""

    total: int = 0
    to_requests: int = 0
    late: int = 0
    others: int = 0
    broadcast: int = 0
    orphaned: int = 0


class KernelRouter:
    """Routes messages in the thread of one event loop. Times are arguments, and no method waits."""

    def __init__(self, kernel_id: str, session: str, world: World, settings: KernelSettings) -> None:
        self.kernel_id = kernel_id
        self.session = session
        self.settings = settings
        self.requests = Requests(settings.orphans)
        self.served = Subscribers(world, Settings())
        """Subscribers of all messages."""
        self.comms = Comms(world)
        self.counts = Routed()
        self.orphans_by_why: Counter[str] = Counter()
        self.stale = 0
        self.dropped = 0
        """Executions that were dropped before they were complete."""
        self.others: OrderedDict[str, Execution] = OrderedDict()
        """Executions of other clients of this kernel."""
        self._world = world
        self._late: OrderedDict[str, tuple[Execution, float]] = OrderedDict()
        self._ranked: dict[str, int] = {}
        self._owners: dict[str, WeakSet[Execution]] = {}
        """The executions that show a display, by its id."""
        self._matching: dict[str, tuple[Inbox, ...]] = {}
        self._issued: OrderedDict[str, None] = OrderedDict()
        self._now = 0.0

    # Requests

    def register(self, execution: Execution, topic: str, now_s: float, timeout_s: float) -> None:
        """Register a request before it is sent. Messages that have already arrived are claimed first, in order."""
        self._now = now_s
        if execution.priority != NORMAL:
            self._ranked[execution.id] = execution.priority
        execution.completed = self._completed
        self.issued(execution.id)
        self.requests.open(OpenExecution(execution, self.session, topic, (now_s, timeout_s), self._dropped))

    def issued(self, request_id: str) -> None:
        """Remember the id of a message that this client sends. Its answers are valid even if they arrive early."""
        self._issued[request_id] = None
        if len(self._issued) > MAX_ISSUED:
            self._issued.popitem(last=False)

    def extend(self, request_id: str, now_s: float, timeout_s: float) -> None:
        self.requests.extend(request_id, now_s, timeout_s)

    def claim(self, request_id: str) -> Execution | None:
        """Claim the messages of a request that another client, or an earlier run of this one, has sent."""
        return self.others.pop(request_id, None)

    def unregister(self, request_id: str) -> None:
        """Remove a request, open or late. Unknown ones are ignored."""
        if request_id in self.requests or request_id in self._late:
            self._end(request_id, Why.CLOSED)
        self._late.pop(request_id, None)

    def open_execution(self, request_id: str) -> Execution | None:
        """The execution of this request, if it is registered, and neither complete nor dropped."""
        pending = self.requests.find(request_id)
        return pending.execution if isinstance(pending, OpenExecution) else None

    def retire(self, execution: Execution, now_s: float) -> None:
        """Retire a complete request. Its further messages are late, and not orphans."""
        self._now = now_s
        self._completed(execution)
        self.requests.close(execution.id)

    def _completed(self, execution: Execution) -> None:
        self._ranked.pop(execution.id, None)
        self.requests.end_as(execution.id, Why.ANSWERED)
        self._late[execution.id] = (execution, self._now + self.settings.late_s)
        if len(self._late) > self.settings.orphans.max_messages:
            self._late.popitem(last=False)[1][0].close()

    def _end(self, request_id: str, why: Why) -> None:
        self.requests.end_as(request_id, why)
        self.requests.close(request_id)
        self._ranked.pop(request_id, None)

    def _dropped(self, request_id: str) -> None:
        """Called when an execution was garbage-collected without being closed."""
        if request_id not in self.requests:
            return
        self._end(request_id, Why.DROPPED)
        self.dropped += 1
        log.warning(
            "execution %s of kernel %s was dropped before it was complete: its further messages are orphans. Keep"
            " the execution, or use `async with kernel.execute(...)`",
            request_id,
            self.kernel_id,
        )

    def capture(self, request_id: str, outputs: Outputs) -> None:
        """Redirect the outputs of an execution."""
        if (execution := self._execution_of(request_id)) is not None:
            execution.capture(outputs)

    def release(self, request_id: str, outputs: Outputs) -> None:
        """End `capture`."""
        if (execution := self._execution_of(request_id)) is not None:
            execution.release(outputs)

    def fail_all(self, error: Callable[[], KernelError]) -> None:
        """End all open requests because the kernel is gone, each with its own error."""
        for pending in self.requests:
            self._end(pending.request_id, Why.CLOSED)
            pending.fail(error())
        for execution in self.others.values():
            execution.fail(error())
        self.comms.end()

    # Subscribers

    def subscribe(self, pattern: str, delivery: Delivery) -> Stream:
        """All messages of the kernel on matching topics, from any client."""
        _, stream = self.served.join(pattern, delivery, self._leave)
        self._matching.clear()
        return stream

    def _leave(self, inbox: Inbox) -> None:
        self._matching.clear()
        self.served.part(inbox)

    def end_subscriptions(self) -> None:
        """End all subscriptions after the messages they already have."""
        for inbox in self.served:
            inbox.close()

    def _notify_subscribers(self, message: KernelMessage) -> None:
        matching = self._matching.get(message.topic)
        if matching is None:
            matching = tuple(inbox for inbox in self.served if matches(inbox.pattern, message.topic))
            self._matching[message.topic] = matching
        for inbox in matching:
            try:
                inbox.offer(message)
            except InboxFull:
                # The account has counted it. A kernel cannot be made to wait.
                continue

    # Messages

    def route(self, messages: list[KernelMessage], now_s: float) -> None:
        """Take arrived messages, in order. Those of requests with a higher priority go first."""
        self._now = now_s
        counts = self.counts
        counts.total += len(messages)
        if len(self.served):
            for message in messages:
                self._notify_subscribers(message)
        if self._ranked and len(messages) > 1:
            messages = sorted(messages, key=self._rank)
        answer = self.requests.answer
        tracing = log.isEnabledFor(TRACE)
        for message in messages:
            also = self._by_id(message) if message.header.msg_type in BY_ID else ""
            if answer(message):
                counts.to_requests += 1
                if tracing:
                    self._trace(message, f"to its request{also and ' and '}{also}")
            else:
                self._homeless(message, now_s, tracing, also)

    def _rank(self, message: KernelMessage) -> int:
        return -self._ranked.get(message.request_id or "", NORMAL)

    def _by_id(self, message: KernelMessage) -> str:
        """Pass a message to the comm or the displays that it names. Returns a description of the receiver."""
        kind = message.header.msg_type
        if kind.startswith("comm_"):
            return TO_COMM if self.comms.take(message) else ""
        display_id = display_id_of(message.content)
        if display_id is None:
            return ""
        if kind != "update_display_data":
            execution = self._execution_of(message.request_id)
            if execution is not None:
                self._owners.setdefault(display_id, WeakSet()).add(execution)
            return ""
        showing = list(self._owners.get(display_id, ()))
        for execution in showing:
            # The execution that sent the request gets the message by its request id.
            if execution.id != message.request_id:
                execution.update_shown(message)
        return TO_SHOWN if showing else ""

    def _execution_of(self, request_id: str | None) -> Execution | None:
        if request_id is None:
            return None
        if (late := self._late.get(request_id)) is not None:
            return late[0]
        if (other := self.others.get(request_id)) is not None:
            return other
        return self.open_execution(request_id)

    def _homeless(self, message: KernelMessage, now_s: float, tracing: bool, also: str) -> None:
        """Handle a message that belongs to no open request. `also` names receivers that already have it."""
        request_id = message.request_id
        late = self._late.get(request_id) if request_id is not None else None
        if also == TO_COMM:
            self.counts.broadcast += 1
            where = also
        elif late is not None:
            late[0].take_late(message)
            self.counts.late += 1
            where = f"late, to its request{also and ' and '}{also}"
        elif request_id is not None and message.header.msg_type in BROADCAST:
            self.counts.broadcast += 1
            where = "to subscribers"
        elif message.parent.session not in ("", self.session) and (request_id or "") not in self.requests:
            self._attribute(message, now_s)
            self.counts.others += 1
            where = f"to {message.parent.username or 'another client'}{also and ' and '}{also}"
        elif message.type is MessageType.REQUEST:
            self._attribute(message, now_s)
            self.counts.others += 1
            where = "a request"
        elif also:
            self.counts.to_requests += 1
            where = also
        else:
            where = self._keep_orphan(message, now_s)
        if tracing:
            self._trace(message, where)

    def _keep_orphan(self, message: KernelMessage, now_s: float) -> str:
        why = self.requests.why(message)
        if why is Why.EARLY and message.parent.session == self.session and message.request_id not in self._issued:
            why = Why.WRONG_ID
        self.requests.keep_orphan(message, now_s, why)
        self.counts.orphaned += 1
        self.orphans_by_why[why.name.lower()] += 1
        return f"orphan: {why.value}"

    def _attribute(self, message: KernelMessage, now_s: float) -> None:
        """Assign a message to the other client of this kernel that sent its request."""
        request_id = message.request_id or ""
        asking = message.type is MessageType.REQUEST
        execution = self.others.get(request_id)
        if execution is None:
            asked = message.header if asking else message.parent
            execution = self.others[request_id] = Execution(
                request_id,
                self._world,
                self.settings,
                who=asked.username or asked.session,
                sent_at_s=now_s,
                needs_reply=False,
            )
            if len(self.others) > MAX_OTHERS:
                self.others.popitem(last=False)[1].close()
        if asking:
            execution.code = execution.code or str(message.content.get("code", ""))
        elif execution.complete:
            execution.take_late(message)
        elif accepts(message):
            execution.take(message)

    def _trace(self, message: KernelMessage, where: str) -> None:
        log.log(
            TRACE, "%s %s of %s: %s", message.header.msg_type, message.id, message.request_id or "no request", where
        )

    # Cleaning up

    def cleanup(self, now_s: float) -> None:
        """Remove requests past their time limit, old orphans, and state kept for late messages."""
        self._now = now_s
        for pending in self.requests.due(now_s):
            self.stale += 1
            self._end(pending.request_id, Why.STALE)
            log.warning(
                "request %s on kernel %s reached its time limit of %g s: its further messages are orphans. Give it more"
                " time with timeout_s, or interrupt the kernel",
                pending.request_id,
                self.kernel_id,
                pending.timeout_s,
            )
            pending.fail(RequestTimeout(pending.request_id, pending.topic, pending.timeout_s, None))
        if aged := self.requests.orphans.expire(now_s):
            log.log(TRACE, "%s of kernel %s expired without being claimed", counted(aged, "orphan"), self.kernel_id)
        self._forget(now_s)
        log.debug(
            "kernel %s: %d active requests, %d orphan messages, %d global subscribers",
            self.kernel_id,
            len(self.requests),
            len(self.requests.orphans),
            len(self.served),
        )

    def _forget(self, now_s: float) -> None:
        while self._late:
            request_id, (execution, until_s) = next(iter(self._late.items()))
            if until_s > now_s:
                break
            del self._late[request_id]
            execution.close()
        for request_id, execution in list(self.others.items()):
            if execution.complete and now_s - (execution.complete_at_s or now_s) > self.settings.late_s:
                del self.others[request_id]
                execution.close()
        self._owners = {display_id: owners for display_id, owners in self._owners.items() if owners}

    @property
    def orphans(self) -> OrphanBox:
        """Messages whose request is not known yet.

        They can be searched, and are claimed when the request is registered.
        """
        return self.requests.orphans

    def close(self) -> None:
        """End every stream and every execution."""
        for inbox in self.served:
            self._leave(inbox)
        for executions in (self._executions(), self.others.values()):
            for execution in list(executions):
                execution.close()
        self.comms.end()

    def _executions(self) -> Iterable[Execution]:
        opened = [self._execution_of(pending.request_id) for pending in self.requests]
        late = [execution for execution, _ in self._late.values()]
        return [execution for execution in (*opened, *late) if execution is not None]
