"""How one subscriber wants its messages: a frozen group, and the same as keywords."""

from __future__ import annotations

from typing import TypedDict

from trunkline.delivery.inbox import Overflow
from trunkline.delivery.retry import Retry
from trunkline.settings import Group


class Delivery(Group, frozen=True, kw_only=True):
    """What a subscription promises its subscriber.

    `name` says who it is, in stats, fates and dead letters. Members of one `group` share the messages: each goes to one
    of them. `capacity` bounds the inbox (the bus's `max_pending` if not given). `where` is a filter on header and
    payload. `dedupe_s` lets an id in once within that time. With `ack` a message counts as delivered when it is
    acknowledged; until then it is leased for `lease_s`, and tried again as `retry` says.
    """

    name: str | None = None
    group: str | None = None
    capacity: int | None = None
    overflow: Overflow = Overflow.BLOCK
    where: str | None = None
    dedupe_s: float | None = None
    ack: bool = False
    lease_s: float = 30.0
    retry: Retry = Retry()


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
