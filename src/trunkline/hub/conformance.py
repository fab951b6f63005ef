"""Conformance: a batch on a channel with a schema is opened, and what does not fit is taken out. Pure.

What is left goes on as a parcel of its own, which tells the whole one what becomes of it. Refused messages take no
number and no place in their publisher's count: to subscribers it is as if they had never been sent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from msgspec.structs import replace

from trunkline import columns
from trunkline.hub.parcel import Parcel
from trunkline.message import Message
from trunkline.schema import Checker, Problem
from trunkline.wire.frames import PublishHead

MAX_COUNTED = 100_000


class Broken(NamedTuple):
    """A message that does not fit: its place in the batch, and what is wrong with it."""

    place: int
    message: Message
    problem: Problem


class Rest:
    """Who is told what becomes of the rest of a parcel."""

    def __init__(self, whole: Parcel, places: list[int]) -> None:
        self._whole = whole
        self._places = places

    def settled(self, parcel: Parcel) -> None:
        whole = self._whole
        whole.first = parcel.first
        for failure in parcel.failures:
            index = self._places[failure.index] if failure.index >= 0 else -1
            whole.failures.append(replace(failure, index=index))
        whole.done()


class Sieve:
    def __init__(self) -> None:
        self._taken_out: OrderedDict[tuple[int, str, int], int] = OrderedDict()
        """By publisher, topic and priority: how many messages were taken out so far."""

    def sift(self, parcel: Parcel, checker: Checker, max_bytes: int) -> tuple[Parcel | None, list[Broken]]:
        """What goes on, if anything does, and what does not. Raises InvalidPayload if the parcel is no batch."""
        messages = parcel.open()
        broken: list[Broken] = []
        for index, message in enumerate(messages):
            if (problem := checker.broken(message, max_bytes)) is not None:
                broken.append(Broken(index, message, problem))
        self._count(parcel, len(broken))
        if not broken:
            return parcel, broken
        bad = {each.place for each in broken}
        places = [index for index in range(len(messages)) if index not in bad]
        return (_part(parcel, places, messages) if places else None), broken

    def _count(self, parcel: Parcel, broken: int) -> None:
        if not parcel.origin:
            return
        key = (parcel.origin, parcel.topic, parcel.priority)
        before = self._taken_out.get(key, 0)
        parcel.position = max(0, parcel.position - before)
        if broken:
            self._taken_out[key] = before + broken
            if len(self._taken_out) > MAX_COUNTED:
                self._taken_out.popitem(last=False)


def _part(parcel: Parcel, places: list[int], messages: list[Message]) -> Parcel:
    left = [messages[index] for index in places]
    body = columns.pack_batch(left)
    head = PublishHead(parcel.number, parcel.topic, len(left), parcel.priority, again=parcel.again)
    part = Parcel(Rest(parcel, places), head, body, parcel.origin)
    part.position = parcel.position
    return part
