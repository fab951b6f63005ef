"""JetStream's fast ingest: messages one by one, confirmed together. It needs server 2.14, and `allow_batched`.

The reply subject of a message carries the protocol: `INBOX.ID.FLOW.fail.NUMBER.OPERATION.$FI`. Messages of a batch are
numbered from 1. The first answer of the server contains the number of messages between two acknowledgements. With
`fail`, an acknowledgement covers everything up to its number. The last message commits the batch.

After any error, the messages that were not confirmed are sent again in another batch. Each has a `Nats-Msg-Id`, so the
stream stores it once. The protocol's ping is not used: subscribers of the topic would get it as a message.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nats.aio.msg import Msg
from trunkline.brokers.nats.refusals import FOR_NOW, JetStreamRefused, of_answer

FLOW = 100
"""Messages between two acknowledgements, unless the server asks for fewer."""
OUTSTANDING = 2
"""The most acknowledgements that may be outstanding. Beyond that, sending stops."""
MAX_MESSAGES = 10_000
AGAIN_S = 0.25
SILENT_S = 10.0
"""If the server does not answer for this long, the messages are sent again."""
START, APPEND, COMMIT = 0, 1, 2
NOT_ENABLED = (10205, 10206, 10209)
UNKNOWN = 10208
"""The error code for an unknown batch: the server was restarted, or has ended the batch."""
LATER = (*FOR_NOW, 10158, 10211)
"""Errors after which messages are sent again later. The last two: a message with the same id is being stored, and there
are too many batches."""


def answer_of(message: Msg) -> dict[str, Any] | None:
    """The answer of JetStream. None if it is from another program, which may also subscribe to an open topic."""
    try:
        found = json.loads(message.data)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() & {"stream", "type", "error"} else None


class OpenMessage(NamedTuple):
    """A message as it is sent to the server."""

    batch: int
    place: int
    subject: str
    headers: bytes
    payload: bytes

    def command(self, reply: str) -> bytes:
        size = len(self.headers)
        head = f"HPUB {self.subject} {reply} {size} {size + len(self.payload)}\r\n".encode()
        return b"%b%b%b\r\n" % (head, self.headers, self.payload)


class IngestEvents(NamedTuple):
    confirmed: Callable[[Iterable[OpenMessage]], None]
    refused: Callable[[OpenMessage, JetStreamRefused], None]
    disabled: Callable[[list[OpenMessage]], None]
    """Called when the stream no longer offers fast ingest, with the messages to send in another way."""


class FastIngest:
    """Fast ingest on one connection into one stream.

    There is one batch at a time. New messages are appended to it, or wait for the next one.
    """

    def __init__(self, write: Callable[[bytes], None], inbox: str, events: IngestEvents) -> None:
        self._write = write
        self._inbox = inbox
        """It is unique, so its last token makes the names of batches unique."""
        self._name = inbox.rpartition(".")[2]
        self._events = events
        self._waiting: deque[OpenMessage] = deque()
        self._batch: list[OpenMessage] = []
        self._most = MAX_MESSAGES
        """The most messages in a batch. Reduced after a failure, so that some messages are confirmed at each
        attempt."""
        self._last = 0
        self._reply = ""
        """The prefix of the reply subjects of this batch."""
        self._sent = 0
        self._confirmed = 0
        self._flow = FLOW
        self._refused: dict[int, JetStreamRefused] = {}
        self._answered_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None

    def add(self, messages: list[OpenMessage]) -> None:
        extends = self._sent < len(self._batch) and not self._waiting
        room = max(0, self._most - len(self._batch)) if extends else 0
        self._batch += messages[:room]
        self._waiting += messages[room:]
        self._begin()

    def ended(self) -> None:
        """Called when the connection has ended. Unconfirmed messages are sent again on the next one."""
        for timer in (self._watch, self._pause):
            if timer is not None:
                timer.cancel()
        self._watch = self._pause = None
        self._waiting.clear()
        self._batch = []
        self._reply = ""

    # Sending

    def _begin(self) -> None:
        if self._batch or not self._waiting or self._pause is not None:
            return
        while self._waiting and len(self._batch) < self._most:
            self._batch.append(self._waiting.popleft())
        self._last += 1
        self._reply = f"{self._inbox}.{self._name}-{self._last}.{FLOW}.fail."
        self._sent = self._confirmed = 0
        self._refused.clear()
        self._flow = FLOW
        # Only one message may be sent before the server has answered how many it accepts.
        self._send(1)
        self._answered_at = asyncio.get_running_loop().time()
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(SILENT_S, self._look)

    def _send(self, upto: int) -> None:
        batch, reply = self._batch, self._reply
        commands: list[bytes] = []
        for number in range(self._sent + 1, upto + 1):
            operation = COMMIT if number == len(batch) else START if number == 1 else APPEND
            commands.append(batch[number - 1].command(f"{reply}{number}.{operation}.$FI"))
        self._sent = upto
        self._write(b"".join(commands))

    def _look(self) -> None:
        self._watch = None
        if not self._batch:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._answered_at + SILENT_S:
            self._retry(0.0)
        if self._watch is None:
            self._watch = loop.call_at(self._answered_at + SILENT_S, self._look)

    def _retry(self, delay_s: float) -> None:
        self._most = max(1, len(self._batch) // 2)
        self._again(delay_s)

    def _again(self, delay_s: float = 0.0) -> None:
        """Send the unconfirmed messages in another batch, before all waiting ones."""
        self._waiting.extendleft(reversed(self._batch[self._confirmed :]))
        self._batch = []
        self._reply = ""
        if delay_s:
            self._pause = asyncio.get_running_loop().call_later(delay_s, self._go_on)
        else:
            self._begin()

    def _go_on(self) -> None:
        self._pause = None
        self._begin()

    # Answers of the server

    def answered(self, message: Msg) -> None:
        if not self._reply or not message.subject.startswith(self._reply):
            return  # an answer for a batch that was abandoned
        number = int(message.subject[len(self._reply) :].partition(".")[0])
        self._answered_at = asyncio.get_running_loop().time()
        if (message.headers or {}).get("Status"):
            self._retry(AGAIN_S)  # no responder: the stream has no leader at the moment
            return
        answer = answer_of(message)
        if answer is None:
            return
        error = of_answer(answer)
        match answer.get("type"):
            case "ack":
                self._flow = max(1, int(answer["msgs"]))
                self._confirm(int(answer["seq"]))
                room = self._confirmed + self._flow * OUTSTANDING
                if not self._refused and self._sent < min(room, len(self._batch)):
                    self._send(min(room, len(self._batch)))
            case "gap":
                return  # the server ends the batch, and then reports how much it stored
            case "err" if error is not None:
                self._refused[int(answer["seq"])] = error
            case None if error is not None:
                self._failed(number, error)
            case None:
                self._committed(int(answer.get("count", number)))

    def _confirm(self, upto: int) -> None:
        if upto > self._confirmed:
            stored = self._batch[self._confirmed : upto]
            self._confirmed = upto
            self._events.confirmed(stored)

    def _committed(self, upto: int) -> None:
        """Called when the batch has ended. Everything up to this number is stored."""
        if upto >= len(self._batch):
            self._most = min(2 * self._most, MAX_MESSAGES)
        self._confirm(upto)
        first = next((number for number in sorted(self._refused) if number > upto), None)
        if first is not None:
            self._refuse(first, self._refused[first])
        else:
            self._again()

    def _failed(self, number: int, error: JetStreamRefused) -> None:
        if error.number in NOT_ENABLED:
            rest = [*self._batch[self._confirmed :], *self._waiting]
            self.ended()
            self._events.disabled(rest)
        elif error.number in (UNKNOWN, *LATER):
            self._retry(AGAIN_S)
        else:
            self._refuse(number, error)

    def _refuse(self, number: int, error: JetStreamRefused) -> None:
        """Report one refused message, and send the other unconfirmed ones again."""
        if self._confirmed < number <= self._sent:
            message = self._batch.pop(number - 1)
            self._events.refused(message, error)
        self._again()
