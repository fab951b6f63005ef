"""The stored messages that wait for their next attempt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trunkline.delivery.inbox import Inbox
from trunkline.journal.backlog import MAX_PAUSE_S, KeptMessage
from trunkline.journal.ledger import decode_message, decode_story, readable
from trunkline.journal.reader import Reader

if TYPE_CHECKING:
    from trunkline.journal.journal import Journal


def kept_for(reader: Reader, subscriber: str) -> list[KeptMessage]:
    """The retries of one subscriber, in order. Unreadable ones are skipped and logged."""
    rows = reader.query("SELECT message, story, due_ns FROM retries WHERE subscriber = ? ORDER BY seq", (subscriber,))
    found = []
    for data, past, due_ns in rows:
        message = readable(decode_message, data, "a message that waits for its next attempt")
        if message is not None:
            found.append(KeptMessage(message, readable(decode_story, past, "the attempts of a message") or [], due_ns))
    return found


def recall(journal: Journal, inbox: Inbox) -> None:
    """Give a plain subscriber the messages that failed before the last restart and wait for its name."""
    if not any(subscriber == inbox.name for subscriber, _ in journal.ledger.retries):
        return
    loop = asyncio.get_running_loop()
    for kept in kept_for(journal.reader, inbox.name):
        pause_s = min(MAX_PAUSE_S, max(0.0, (kept.due_ns - journal.world.time_ns()) / 1e9))
        loop.call_later(pause_s, _give, inbox, kept)


def _give(inbox: Inbox, kept: KeptMessage) -> None:
    if inbox.custody is not None and not inbox.closed:
        inbox.custody.take_over(kept.message.seq, kept.story)
        inbox.offer(kept.message)
