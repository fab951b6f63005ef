"""Inboxes that belong to an execution or a comm, and not to a broker: filled from a kernel, which never waits."""

from __future__ import annotations

from trunkline.clock import World
from trunkline.delivery.custody import Custody
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.retry import Retry
from trunkline.delivery.stream import Stream
from trunkline.errors import InboxFull
from trunkline.message import Message


def put(box: Inbox, message: Message) -> None:
    """Put it in, or count what is lost by that."""
    try:
        box.offer(message)
    except InboxFull:
        # Counted there. A kernel cannot be told no.
        return


def stream_of(box: Inbox, world: World) -> Stream:
    """What is in it, to be read by whoever holds the stream."""
    # Nothing here is acknowledged, so nothing is tried again, or dies.
    custody = Custody(box, lease_s=30.0, retry=Retry(), chance=world.random, on_dead=lambda *_: None)
    return Stream(box, custody, ack=False)


def end(box: Inbox) -> None:
    """Take no more. What is in it can be read; nobody has to close it."""
    box.close()
    box.gone = True
