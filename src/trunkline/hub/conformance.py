"""Conformance: a batch on a channel with a schema is decoded, and messages that do not match are removed. Pure.

The remaining messages continue as a separate batch, which reports its outcome to the original one. Refused messages
have no number and no position in their publisher's count: for subscribers they were never sent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from msgspec.structs import replace

from trunkline import columns
from trunkline.delivery.batch import Batch
from trunkline.message import Message
from trunkline.schema import Checker, Problem
from trunkline.wire.frames import PublishHead

MAX_COUNTED = 100_000


class Broken(NamedTuple):
    """A message that does not match: its index in the batch, and the problem."""

    place: int
    message: Message
    problem: Problem


class Rest:
    """Passes the outcome of the rest of a batch to the original batch."""

    def __init__(self, whole: Batch, places: list[int]) -> None:
        self._whole = whole
        self._places = places

    def settled(self, batch: Batch) -> None:
        whole = self._whole
        whole.first = batch.first
        for failure in batch.failures:
            index = self._places[failure.index] if failure.index >= 0 else -1
            whole.failures.append(replace(failure, index=index))
        whole.done()


class Sieve:
    def __init__(self) -> None:
        self._taken_out: OrderedDict[tuple[int, str, int], int] = OrderedDict()
        """The number of messages removed so far, by publisher, topic and priority."""

    def sift(self, batch: Batch, checker: Checker, max_bytes: int) -> tuple[Batch | None, list[Broken]]:
        """The remaining batch, if any, and the removed messages. Raises InvalidPayload if the batch is malformed."""
        messages = batch.open()
        broken: list[Broken] = []
        for index, message in enumerate(messages):
            if (problem := checker.broken(message, max_bytes)) is not None:
                broken.append(Broken(index, message, problem))
        self._count(batch, len(broken))
        if not broken:
            return batch, broken
        bad = {each.place for each in broken}
        places = [index for index in range(len(messages)) if index not in bad]
        return (_part(batch, places, messages) if places else None), broken

    def _count(self, batch: Batch, broken: int) -> None:
        if not batch.origin:
            return
        key = (batch.origin, batch.topic, batch.priority)
        before = self._taken_out.get(key, 0)
        batch.position = max(0, batch.position - before)
        if broken:
            self._taken_out[key] = before + broken
            if len(self._taken_out) > MAX_COUNTED:
                self._taken_out.popitem(last=False)


def _part(batch: Batch, places: list[int], messages: list[Message]) -> Batch:
    left = [messages[index] for index in places]
    body = columns.pack_batch(left)
    head = PublishHead(batch.number, batch.topic, len(left), batch.priority, again=batch.again)
    part = Batch(Rest(batch, places), head, body, batch.origin)
    part.position = batch.position
    return part
