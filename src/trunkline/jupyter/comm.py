"""Comms: message exchanges between a kernel and its clients that outlive their cell, and are identified by an id."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from trunkline.clock import World
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.subscriber import Overflow
from trunkline.jupyter.channels import KernelChannel, put
from trunkline.jupyter.wire import KernelMessage

log = logging.getLogger("trunkline.jupyter")

MAX_COMMS: Final = 10_000
CAPACITY: Final = 1000
"""The maximum number of unread messages of a comm. Beyond it, the oldest are dropped and counted."""


class Send(Protocol):
    def __call__(
        self, msg_type: str, content: Mapping[str, Any], buffers: Sequence[bytes] = (), /
    ) -> Awaitable[None]: ...


class Comm:
    """One comm. `messages` has the kernel's messages on it, from any cell."""

    def __init__(
        self,
        comm_id: str,
        target_name: str,
        data: Mapping[str, Any],
        messages: KernelChannel,
        send: Send,
        forget: Callable[[str], None],
    ) -> None:
        self.id = comm_id
        self.target_name = target_name
        self.data = data
        """The data it was opened with."""
        self.messages = messages
        self._send = send
        self._forget = forget

    @property
    def closed(self) -> bool:
        return self.messages.closed

    async def send(self, data: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        await self._send("comm_msg", {"comm_id": self.id, "data": data}, buffers)

    async def close(self, data: Mapping[str, Any] | None = None) -> None:
        """Close it at the kernel, too. Closing twice is allowed."""
        if not self.closed:
            await self._send("comm_close", {"comm_id": self.id, "data": data or {}})
            self._forget(self.id)


class Comms:
    """The comms of one kernel, by id."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._comms: dict[str, Comm] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._targets: dict[str, Callable[[Comm, KernelMessage], object]] = {}
        self.send: Send | None = None
        self.observers: list[Callable[[KernelMessage], object]] = []
        """Called with all messages on comms."""

    def __len__(self) -> int:
        return len(self._comms)

    def get(self, comm_id: str) -> Comm | None:
        return self._comms.get(comm_id)

    def all(self) -> list[Comm]:
        return list(self._comms.values())

    def on_open(self, target_name: str, callback: Callable[[Comm, KernelMessage], object]) -> None:
        """Register a callback for comms that the kernel opens to this target."""
        self._targets[target_name] = callback

    def add(self, comm_id: str, target_name: str, data: Mapping[str, Any]) -> Comm:
        assert self.send is not None, "comms belong to a kernel"
        self.forget(comm_id)
        if len(self._comms) >= MAX_COMMS:
            oldest = next(iter(self._comms))
            log.warning("%d comms are open: the oldest one, %s, is removed", MAX_COMMS, oldest)
            self.forget(oldest)
        inbox = self._inboxes[comm_id] = Inbox(
            f"comm {comm_id}", "comm", self._world.time_ns, capacity=CAPACITY, overflow=Overflow.DROP_OLDEST
        )
        stream = KernelChannel(inbox, self._world)
        comm = self._comms[comm_id] = Comm(comm_id, target_name, data, stream, self.send, self.forget)
        return comm

    def take(self, message: KernelMessage) -> bool:
        """Take a message of the kernel on a comm; False if the comm is not open."""
        for observe in self.observers:
            observe(message)
        content = message.content
        comm_id = str(content.get("comm_id", ""))
        if message.header.msg_type == "comm_open":
            target = str(content.get("target_name", ""))
            data = content.get("data")
            comm = self.add(comm_id, target, data if isinstance(data, dict) else {})
            if (callback := self._targets.get(target)) is not None:
                self._call(callback, comm, message)
            return True
        inbox = self._inboxes.get(comm_id)
        if inbox is None:
            return False
        put(inbox, message)
        if message.header.msg_type == "comm_close":
            self.forget(comm_id)
        return True

    def _call(self, callback: Callable[[Comm, KernelMessage], object], comm: Comm, message: KernelMessage) -> None:
        try:
            callback(comm, message)
        except Exception:
            log.exception("the callback for comms to %s raised an error", comm.target_name)

    def forget(self, comm_id: str) -> None:
        """End a comm. Unread messages can still be read."""
        self._comms.pop(comm_id, None)
        inbox = self._inboxes.pop(comm_id, None)
        if inbox is not None:
            inbox.close()

    def end(self) -> None:
        """End all comms."""
        for comm_id in list(self._comms):
            self.forget(comm_id)
