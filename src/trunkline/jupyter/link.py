"""A link: how messages reach a kernel and come back. Over its sockets, over a bus, or made up by a test."""

from __future__ import annotations

from typing import Protocol

from trunkline.jupyter.wire import Fault, KernelMessage, KernelWire


class KernelReceiver(Protocol):
    """What a link hands over what it received. It is called in the event loop thread."""

    def take(self, messages: list[KernelMessage]) -> None:
        """Messages, in order."""

    def count_fault(self, fault: Fault, why: str) -> None:
        """Frames that were no message."""

    def lost(self, how: str) -> None:
        """The kernel is gone."""


class KernelLink(Protocol):
    wire: KernelWire

    async def open(self, client: KernelReceiver) -> None:
        """Connect, and begin to receive. Opening again after the kernel's restart begins anew."""

    async def send(self, message: KernelMessage) -> None:
        """Hand a message over to the kernel. Returns when it is on its way."""

    async def aclose(self) -> None:
        """Receive nothing more. Closing twice is fine."""
