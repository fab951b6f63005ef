"""How one subscriber wants its messages: a frozen group, and the same as keywords."""

from __future__ import annotations

from typing import TypedDict

from msgspec.structs import force_setattr

from trunkline.delivery.inbox import Overflow
from trunkline.delivery.retry import Retry
from trunkline.errors import InvalidSettings
from trunkline.settings import Group


class Delivery(Group, frozen=True, kw_only=True):
    """What a subscription promises its subscriber.

    `name` says who it is, in stats, fates and dead letters. Members of one `group` share the messages: each goes to one
    of them. `capacity` bounds the inbox (the bus's `max_pending` if not given). `where` is a filter on header and
    payload. `dedupe_s` lets an id in once within that time. With `ack` a message counts as delivered when it is
    acknowledged; until then it is leased for `lease_s`, and tried again as `retry` says.

    `durable` needs a journal, and a `name` or a `group`: what was not acknowledged comes again after a restart, under
    the same name. The first time it begins at `start`: the "end", the "beginning", a sequence number, or a point in
    time ("2026-11-16T10:00:00Z"). Durable means `ack`.
    """

    may_be_zero = frozenset({"start"})

    name: str | None = None
    group: str | None = None
    capacity: int | None = None
    overflow: Overflow = Overflow.BLOCK
    where: str | None = None
    dedupe_s: float | None = None
    ack: bool = False
    lease_s: float = 30.0
    retry: Retry = Retry()
    durable: bool = False
    start: int | str = "end"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.durable:
            if self.name is None and self.group is None:
                raise InvalidSettings("a durable subscription needs a name, or a group: it is found again by that")
            force_setattr(self, "ack", True)


class DeliveryOptions(TypedDict, total=False):
    """The fields of Delivery, as keywords of `bus.subscribe`."""

    name: str | None
    group: str | None
    capacity: int | None
    overflow: Overflow | str
    where: str | None
    dedupe_s: float | None
    ack: bool
    lease_s: float
    retry: Retry
    durable: bool
    start: int | str
