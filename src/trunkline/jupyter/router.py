"""Who gets what a kernel says: all subscribers first, then the request it belongs to; or it is kept as an orphan.

The table of requests and orphans is the one that serves requests on a bus.
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
from trunkline.delivery.requests import OrphanBox, Pending, Requests
from trunkline.delivery.stream import Stream
from trunkline.delivery.subscribers import Subscribers
from trunkline.errors import InboxFull, RequestTimeout
from trunkline.hooks.log import TRACE
from trunkline.jupyter.comm import Comms
from trunkline.jupyter.errors import KernelError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.message_types import BROADCAST
from trunkline.jupyter.outputs import display_id_of
from trunkline.jupyter.settings import KernelSettings
from trunkline.jupyter.wire import KernelMessage
from trunkline.message import NORMAL, MessageType
from trunkline.settings import Settings
from trunkline.topic import matches

log = logging.getLogger("trunkline.jupyter")

MAX_OTHERS: Final = 1000
"""Executions of other clients that are kept."""

BY_ID: Final = frozenset(
    {"comm_open", "comm_msg", "comm_close", "update_display_data", "display_data", "execute_result"}
)
"""Messages that may name a comm or a display: those decide before the parent does."""


class Routed(msgspec.Struct):
    """What became of messages, counted."""

    total: int = 0
    to_requests: int = 0
    late: int = 0
    others: int = 0
    broadcast: int = 0
    orphaned: int = 0


class KernelRouter:
    """Used from one event loop thread. Times come in, nothing here waits."""

    def __init__(self, kernel_id: str, session: str, world: World, settings: KernelSettings) -> None:
        self.kernel_id = kernel_id
        self.session = session
        self.settings = settings
        self.requests = Requests(settings.orphans)
        self.served = Subscribers(world, Settings())
        """Those who see everything."""
        self.comms = Comms(world)
        self.counts = Routed()
        self.orphans_by_why: Counter[str] = Counter()
        self.stale = 0
        self.others: OrderedDict[str, Execution] = OrderedDict()
        """Executions of other clients of this kernel."""
        self._world = world
        self._late: OrderedDict[str, tuple[Execution, float]] = OrderedDict()
        self._ranked: dict[str, int] = {}
        self._owners: dict[str, WeakSet[Execution]] = {}
        """Who shows what has this display id."""
        self._matching: dict[str, tuple[Inbox, ...]] = {}
        self._now = 0.0

    # Requests

    def register(self, execution: Execution, topic: str, now_s: float, timeout_s: float) -> None:
        """Before it is sent. What has come of it already is claimed, in order, before anything newer."""
        self._now = now_s
        if execution.priority != NORMAL:
            self._ranked[execution.id] = execution.priority
        pending = Pending(
            execution.id,
            self.session,
            topic,
            now_s,
            timeout_s,
            execution.take,  # type: ignore[arg-type]  # whatever comes here is a kernel's message
            execution.fail,
            execution.accepts,  # type: ignore[arg-type]
        )
        execution.completed = self._completed
        self.requests.open(pending)

    def claim(self, request_id: str) -> Execution | None:
        """What has been heard of a request that another client, or an earlier life of this one, has sent."""
        return self.others.pop(request_id, None)

    def unregister(self, request_id: str) -> None:
        """Let go of a request, open or late; of one that is not there, too."""
        self.requests.close(request_id)
        self._ranked.pop(request_id, None)
        self._late.pop(request_id, None)

    def retire(self, execution: Execution, now_s: float) -> None:
        """Nobody waits for it any more; what still comes of it is late, and no orphan."""
        self._now = now_s
        self.requests.close(execution.id)
        self._completed(execution)

    def _completed(self, execution: Execution) -> None:
        self._ranked.pop(execution.id, None)
        self._late[execution.id] = (execution, self._now + self.settings.late_s)
        if len(self._late) > self.settings.orphans.max_messages:
            self._late.popitem(last=False)[1][0].close()

    def fail_all(self, error: Callable[[], KernelError]) -> None:
        """The kernel is gone: end all that is open, each with an error of its own."""
        for pending in self.requests:
            self.requests.close(pending.request_id)
            pending.fail(error())
        for execution in self.others.values():
            execution.fail(error())
        self._ranked.clear()
        self.comms.end()

    # Subscribers

    def subscribe(self, pattern: str, delivery: Delivery) -> Stream:
        """Everything the kernel says on matching topics, whose-ever it is."""
        _, stream = self.served.join(pattern, delivery, self._leave)
        self._matching.clear()
        return stream

    def _leave(self, inbox: Inbox) -> None:
        self._matching.clear()
        self.served.part(inbox)

    def end_subscriptions(self) -> None:
        """Nothing more will come: those who see everything come to the end, after what is there."""
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
                # Counted in its books: a kernel cannot be told no.
                continue

    # Messages

    def route(self, messages: list[KernelMessage], now_s: float) -> None:
        """Take what has come, in order. What belongs to requests of a higher priority goes first."""
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
            if message.header.msg_type in BY_ID and self._by_id(message):
                continue
            if answer(message):
                counts.to_requests += 1
                if tracing:
                    self._trace(message, "to its request")
            else:
                self._homeless(message, now_s, tracing)

    def _rank(self, message: KernelMessage) -> int:
        return -self._ranked.get(message.request_id or "", NORMAL)

    def _by_id(self, message: KernelMessage) -> bool:
        """Whether the id of a comm or a display has decided where it goes."""
        content = message.content
        kind = message.header.msg_type
        if kind.startswith("comm_"):
            if not self.comms.take(message):
                return False
            # Whoever asked meanwhile sees it as well.
            if self.requests.answer(message):
                self.counts.to_requests += 1
            else:
                self.counts.broadcast += 1
                if log.isEnabledFor(TRACE):
                    self._trace(message, "to its comm")
            return True
        display_id = display_id_of(content)
        if display_id is None:
            return False
        owners = self._owners.get(display_id)
        if kind != "update_display_data":
            execution = self._execution_of(message.request_id)
            if execution is not None:
                self._owners.setdefault(display_id, WeakSet()).add(execution)
            return False
        if not owners:
            return False
        for execution in list(owners):
            if execution.id == message.request_id and not execution.complete:
                execution.take(message)
            else:
                execution.take_late(message)
        self.counts.to_requests += 1
        return True

    def _execution_of(self, request_id: str | None) -> Execution | None:
        if request_id is None:
            return None
        if (late := self._late.get(request_id)) is not None:
            return late[0]
        if (other := self.others.get(request_id)) is not None:
            return other
        pending = self.requests.find(request_id)
        owner = None if pending is None else getattr(pending.answer, "__self__", None)
        return owner if isinstance(owner, Execution) else None

    def _homeless(self, message: KernelMessage, now_s: float, tracing: bool) -> None:
        """No open request takes it."""
        request_id = message.request_id
        late = self._late.get(request_id) if request_id is not None else None
        if late is not None:
            late[0].take_late(message)
            self.counts.late += 1
            where = "late, to its request"
        elif message.header.msg_type in BROADCAST:
            self.counts.broadcast += 1
            where = "to subscribers"
        elif message.parent.session not in ("", self.session) and (request_id or "") not in self.requests:
            self._attribute(message, now_s)
            self.counts.others += 1
            where = f"to {message.parent.username or 'another client'}"
        elif message.type is MessageType.REQUEST:
            self._attribute(message, now_s)
            self.counts.others += 1
            where = "a request"
        else:
            orphan = self.requests.keep_orphan(message, now_s)
            self.counts.orphaned += 1
            self.orphans_by_why[orphan.why.name.lower()] += 1
            where = f"orphan: {orphan.why.value}"
        if tracing:
            self._trace(message, where)

    def _attribute(self, message: KernelMessage, now_s: float) -> None:
        """Another client of this kernel asked for it: it is theirs, and to be seen as theirs."""
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
        elif execution.accepts(message):
            execution.take(message)

    def _trace(self, message: KernelMessage, where: str) -> None:
        log.log(TRACE, "%s %s of %s: %s", message.header.msg_type, message.id, message.request_id or "nobody", where)

    # Cleaning up

    def cleanup(self, now_s: float) -> None:
        """Let go of requests whose time is over, of orphans that are too old, and of what was kept for late comers."""
        self._now = now_s
        for pending in self.requests.due(now_s):
            self.stale += 1
            self._ranked.pop(pending.request_id, None)
            log.warning(
                "request %s on kernel %s is given up after %g s: what still comes of it is an orphan. Give it more time"
                " with timeout_s, or interrupt the kernel",
                pending.request_id,
                self.kernel_id,
                pending.timeout_s,
            )
            pending.fail(RequestTimeout(pending.request_id, pending.topic, pending.timeout_s, None))
        if aged := self.requests.orphans.expire(now_s):
            log.log(TRACE, "%d orphans of kernel %s were too old to be claimed", aged, self.kernel_id)
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
        """Messages nobody has asked for (yet): searchable, claimed by the request they belong to."""
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
