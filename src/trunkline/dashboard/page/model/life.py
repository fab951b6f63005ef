"""The life of one message: published, bridged, attempted, settled; and its conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trunkline.bridge import PASSED
from trunkline.delivery.dead_letters import DeadLetter
from trunkline.delivery.fates import Fate, Outcome
from trunkline.message import Message, MessageType

FOREVER = 2**63
ANSWERS = (MessageType.RESPONSE, MessageType.ERROR, MessageType.ACK)


class LifeEvent(msgspec.Struct, frozen=True):
    """One event in the life of a message."""

    at_ns: int
    """0 if the time is not known."""
    kind: str
    """published, passed, attempt, or a fate."""
    who: str
    text: str = ""


class ConversationNode(msgspec.Struct, frozen=True):
    """A message of a conversation, and its depth in the tree."""

    message: Message
    depth: int
    after_ns: int
    """The time since the first message of the conversation."""


class MessageLife(msgspec.Struct, frozen=True):
    message_id: str
    message: Message | None
    events: list[LifeEvent]
    """In the order of time."""
    outcomes: list[Outcome]
    letters: list[DeadLetter]
    conversation: list[ConversationNode]
    """The tree in depth-first order. Empty if the message has no conversation."""
    note: str = ""


def make_life(
    message_id: str,
    message: Message | None,
    outcomes: Sequence[Outcome],
    letters: Sequence[DeadLetter],
    conversation: Sequence[Message] = (),
    note: str = "",
) -> MessageLife:
    return MessageLife(
        message_id=message_id,
        message=message,
        events=_events(message, outcomes, letters),
        outcomes=sorted(outcomes, key=lambda each: each.subscriber),
        letters=list(letters),
        conversation=tree_of(conversation) if len(conversation) > 1 else [],
        note=note,
    )


def _events(message: Message | None, outcomes: Sequence[Outcome], letters: Sequence[DeadLetter]) -> list[LifeEvent]:
    found = []
    if message is not None:
        found.append(LifeEvent(message.timestamp_ns, "published", message.sender, f"on {message.topic}"))
        for hop in (message.headers or {}).get(PASSED, "").split():
            found.append(LifeEvent(message.timestamp_ns, "passed", hop, "forwarded by a bridge"))
    for letter in letters:
        found += [
            LifeEvent(each.at_ns, "attempt", letter.subscriber, f"attempt {each.number} failed: {each.error}")
            for each in letter.attempts
        ]
    found += [LifeEvent(each.at_ns, each.fate.value, each.subscriber, each.reason) for each in outcomes]
    # Events without a time come last.
    return sorted(
        found, key=lambda event: (event.kind == Fate.IN_FLIGHT, event.at_ns or 2**63, event.kind != "published")
    )


def tree_of(messages: Sequence[Message]) -> list[ConversationNode]:
    """Each message below the message that it answers or follows. Siblings are ordered by number."""
    messages = sorted(messages, key=lambda each: each.seq)
    children: dict[int, list[Message]] = {}
    roots = []
    for at, message in enumerate(messages):
        parent = _parent(message, messages[:at])
        if parent is None:
            roots.append(message)
        else:
            children.setdefault(parent.seq, []).append(message)
    found: list[ConversationNode] = []
    begin_ns = min((each.timestamp_ns for each in messages), default=0)
    waiting = [(root, 0) for root in reversed(roots)]
    while waiting:
        message, depth = waiting.pop()
        found.append(ConversationNode(message, depth, message.timestamp_ns - begin_ns))
        waiting += [(child, depth + 1) for child in reversed(children.get(message.seq, []))]
    return found


def _parent(message: Message, before: Sequence[Message]) -> Message | None:
    """The request that it answers, else the message named by its correlation id, else the first with the same
    correlation id.
    """
    if message.type in ANSWERS and message.request_id:
        asked = [each for each in before if each.type is MessageType.REQUEST and each.request_id == message.request_id]
        if asked:
            return asked[-1]
    for each in before:
        if message.correlation_id and each.id == message.correlation_id:
            return each
    if not message.correlation_id:
        return None
    return next((each for each in before if each.correlation_id == message.correlation_id), None)
