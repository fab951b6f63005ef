"""A link carries messages to a kernel and back: over its sockets, over a bus, or simulated by a test."""

from __future__ import annotations

from typing import Protocol

from trunkline.jupyter.wire import Fault, KernelMessage, KernelWire


class KernelReceiver(Protocol):
    """The receiver of a link's messages. It is called in the thread of the event loop."""

    def take(self, messages: list[KernelMessage]) -> None:
        """Receive messages, in order."""

    def count_fault(self, fault: Fault, why: str) -> None:
        """Count frames that are not a message."""

    def lost(self, how: str) -> None:
        """Called when the kernel is gone."""


class KernelLink(Protocol):
    wire: KernelWire

    async def open(self, client: KernelReceiver) -> None:
        """Connect, and begin to receive. Call it again after a restart of the kernel."""

    async def send(self, message: KernelMessage) -> None:
        """Send a message to the kernel. Returns when it is sent."""

    async def aclose(self) -> None:
        """Receive nothing more. Closing twice is allowed."""
