"""The options of a subscription: as an immutable group, and as keywords."""

from __future__ import annotations

from typing import Final, TypedDict

from msgspec.structs import force_setattr

from trunkline.delivery.retry import Retry
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidSettings
from trunkline.settings import Group

END: Final = "end"
LAST: Final = "last"


class Delivery(Group, frozen=True, kw_only=True):
    """The options of a subscription.

    `name` identifies it in stats, fates and dead letters. Members of one `group` share the messages: each goes to one
    of them. `capacity` bounds the inbox (the bus's `max_pending` if not given). `where` is a filter on header and
    payload. Within `dedupe_s`, only the first message with an id is accepted. With `ack` a message counts as delivered
    when it is acknowledged; until then it is leased for `lease_s`, and tried again according to `retry`.

    `durable` needs a journal, and a `name` or a `group`: messages that were not acknowledged are delivered again after
    a restart, to the subscription of the same name. It implies `ack`.

    `start` is where a subscription to stored topics starts: at the "end", at the "beginning", at a sequence number,
    at a point in time ("2026-11-16T10:00:00Z"), or with the "last" message of each topic that matches. Later messages
    follow without a gap. A durable subscription starts there the first time. One that is not durable starts there each
    time; unless that is the "end", it is fed from the journal, so no publisher waits for it.

    `one_of` groups subscriptions of one client at a hub. If the pattern of one of them is exactly the topic of a
    message, the others do not get it. That topic then has its own credit, and does not hold up the others. Only a hub
    supports this; with other brokers each subscription gets the message.
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
    start: int | str = END
    one_of: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.durable:
            if self.name is None and self.group is None:
                raise InvalidSettings(
                    "a durable subscription needs a name or a group, which identifies it after a restart"
                )
            force_setattr(self, "ack", True)
        elif self.start != END and self.group is not None:
            raise InvalidSettings(
                f"start={self.start!r}: a group with this start must be durable, because its members share one position"
            )

    @property
    def reads_stored(self) -> bool:
        """Whether the broker must read stored messages for it, other than with a durable cursor."""
        return self.start == LAST or (self.start != END and not self.durable)


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
    one_of: str | None
