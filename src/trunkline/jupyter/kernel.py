"""A kernel, as people use it: execute and ask, read what comes, interrupt, restart, shut down."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, Unpack

import msgspec

from trunkline.bus.subscription import Subscription
from trunkline.delivery.options import Delivery, DeliveryOptions
from trunkline.delivery.requests import OrphanBox
from trunkline.errors import Unsupported
from trunkline.jupyter.errors import KernelClosed, KernelDied, KernelError, KernelRestarted
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.handshake import Handshake
from trunkline.jupyter.kernel_requests import DEAD as DEAD
from trunkline.jupyter.kernel_requests import RESTARTING, STARTING, KernelRequests
from trunkline.jupyter.message_types import CONTROL, IOPUB
from trunkline.jupyter.router import Routed
from trunkline.jupyter.wire import Fault, KernelMessage
from trunkline.settings import build
from trunkline.topic import EVERYTHING

log = logging.getLogger("trunkline.jupyter")


class KernelStats(msgspec.Struct, frozen=True):
    """How a kernel's client is doing."""

    state: str
    active_requests: int
    orphan_messages: int
    global_subscribers: int
    stale_requests: int
    orphans: dict[str, int]
    """All there ever were, by reason."""
    orphans_claimed: int
    routed: Routed
    faults: dict[str, int]
    comms: int
    others: int
    published: int
    unpublished: int


class Kernel(KernelRequests):
    """One client of one kernel, in one event loop. Any number of tasks may use it at once."""

    # Beginning

    async def open(self) -> None:
        """Connect, and return when nothing the kernel says can be missed any more. Raises KernelNotStarted."""
        self._sweep()
        await self._greet()

    async def _greet(self) -> None:
        """Get acquainted; whoever asks meanwhile waits."""
        self._ready.clear()
        self._gone.clear()
        self._dead = None
        self.state = STARTING
        greeting = self._handshake = Handshake(self.id, self.settings)
        try:
            await self.link.open(self)
            await greeting.run(lambda socket: self._begin(socket, "kernel_info_request", {}, math.inf))
        except BaseException:
            self._dead = greeting.died or "it did not answer"
            self.state = DEAD
            raise
        finally:
            self._ready.set()
            for execution in greeting.asked:
                if execution.reply is not None:
                    self.info = execution.reply.content
                # What is still to come of it is expected, and of no interest.
                self.router.retire(execution, asyncio.get_running_loop().time())
        if self.state == STARTING:
            self.state = "idle"

    # What comes

    def take(self, messages: list[KernelMessage]) -> None:
        """Called by the link."""
        if messages[0].socket == IOPUB:
            self._handshake.iopub_live.set()
        if self.publisher is not None:
            for message in messages:
                self._publish(message)
        self.router.route(messages, asyncio.get_running_loop().time())
        for message in messages:
            if message.header.msg_type == "status":
                self._notice(str(message.content.get("execution_state", self.state)), message)

    def _notice(self, state: str, message: KernelMessage) -> None:
        """What the kernel is doing now; or, from whoever shares it, that it does nothing any more."""
        if message.parent.msg_id or state not in (DEAD, RESTARTING):
            self.state = state
        elif state == DEAD:
            self.lost(str(message.content.get("reason", "it is gone")))
        else:
            self.state = state
            self.router.fail_all(lambda: KernelRestarted(self.id))

    def answer(self, request: KernelMessage, msg_type: str, content: Mapping[str, Any]) -> None:
        """Answer a request on the bus in the place of the kernel."""
        self._publish(self.compose(request.socket, msg_type, content, parent=request.header))

    def _announce(self, state: str, reason: str) -> None:
        """Tell those on the bus what no message of the kernel tells them."""
        if self.publisher is not None:
            self._publish(self.compose(IOPUB, "status", {"execution_state": state, "reason": reason}))

    def count_fault(self, fault: Fault, why: str) -> None:
        """Called by the link: frames that were no message."""
        self._faults[fault] += 1
        log.warning("kernel %s: %s (%s)", self.id, why, fault.value)

    def lost(self, how: str) -> None:
        """The kernel is gone: whoever waits for it is told at once."""
        if self._dead is not None or self._closed:
            return
        self._dead = how
        self.state = DEAD
        log.warning("the kernel %s died: %s", self.id, how)
        self._announce(DEAD, how)
        self.router.fail_all(lambda: KernelDied(self.id, how))
        self.router.end_subscriptions()
        self._handshake.lost(how)
        self._gone.set()

    async def death(self) -> str:
        """Return when the kernel has died: how."""
        await self._gone.wait()
        return self._dead or "it was restarted"

    def subscribe(self, pattern: str = EVERYTHING, **options: Unpack[DeliveryOptions]) -> Subscription:
        """`async with kernel.subscribe() as messages`: everything the kernel says, before anybody else gets it.

        `pattern` is of topics `kernel.<id>.<socket>.<message type>`; `where` filters by content.
        """
        self._check_open()
        asked: DeliveryOptions = {"overflow": self.settings.channel_overflow, **options}
        delivery = build(Delivery, asked)

        return Subscription(lambda: self.router.subscribe(pattern, delivery))

    @property
    def orphans(self) -> OrphanBox:
        """Messages that no request has asked for (yet)."""
        return self.router.orphans

    @property
    def others(self) -> list[Execution]:
        """What other clients of this kernel have asked for lately, and what came of it."""
        return list(self.router.others.values())

    def stats(self) -> KernelStats:
        router = self.router
        return KernelStats(
            state=self.state,
            active_requests=len(router.requests),
            orphan_messages=len(router.orphans),
            global_subscribers=len(router.served),
            stale_requests=router.stale,
            orphans=dict(router.orphans_by_why),
            orphans_claimed=router.orphans.claimed,
            routed=msgspec.structs.replace(router.counts),
            faults={fault.value: count for fault, count in self._faults.items()},
            comms=len(router.comms),
            others=len(router.others),
            published=0 if self.publisher is None else self.publisher.published,
            unpublished=0 if self.publisher is None else self.publisher.lost,
        )

    def _sweep(self) -> None:
        """Clean up now, and again after a while. It takes microseconds: nothing waits for it."""
        loop = asyncio.get_running_loop()
        self.router.cleanup(loop.time())
        self._sweeper = loop.call_later(self.settings.cleanup_interval_s, self._sweep)

    # Life

    async def interrupt(self) -> None:
        """Stop what it is doing: its code gets a KeyboardInterrupt, or what its language has for that."""
        if self.life is not None:
            await self.life.interrupt()
        else:
            await self.ask("interrupt_request", socket=CONTROL)

    async def restart(self) -> None:
        """A new process in its place. All that was asked ends with KernelRestarted."""
        if self.life is None:
            raise Unsupported(f"the kernel {self.id}, which was started elsewhere", "a restart from here")
        if self._closed:
            raise KernelClosed(self.id)
        self._ready.clear()
        self._dead = None
        self.state = RESTARTING
        self._announce(RESTARTING, "it was asked to")
        self.router.fail_all(lambda: KernelRestarted(self.id))
        try:
            await self.life.restart()
        except BaseException:
            self._dead = "its restart failed"
            self._ready.set()
            raise
        await self._greet()

    async def shutdown(self, *, now: bool = False) -> None:
        """End the kernel, whoever started it; with `now`, without asking it. This client is closed by that."""
        if self._closed:
            return
        if self.life is None and self._dead is None:
            await self.ask("shutdown_request", {"restart": False}, socket=CONTROL)
        await self._close(lambda: KernelDied(self.id, "it was shut down"), now=now)

    async def aclose(self) -> None:
        """Leave. A kernel that was started here ends with it; one that was attached to goes on."""
        await self._close(lambda: KernelError(f"the client of kernel {self.id} was closed", self.id), now=False)

    async def _close(self, error: Callable[[], KernelError], *, now: bool) -> None:
        if self._closed:
            return
        self._announce(DEAD, "it was shut down" if self.life is not None else "whoever shared it has left")
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.router.fail_all(error)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self.life is not None:
                await self.life.shutdown(now)
        finally:
            for leave in self._on_close:
                await leave()
            await self.link.aclose()
            if self.publisher is not None:
                await self.publisher.aclose()
            self.router.close()
            self.state = "dead" if self.life is not None else "closed"

    def on_close(self, leave: Callable[[], Awaitable[None]]) -> None:
        self._on_close.append(leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
