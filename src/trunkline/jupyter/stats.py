"""Statistics of a kernel's client."""

from __future__ import annotations

import msgspec

from trunkline.jupyter.client import KernelClient
from trunkline.jupyter.router import Routed


class KernelStats(msgspec.Struct, frozen=True):
    """Counters of a kernel's client."""

    state: str
    active_requests: int
    orphan_messages: int
    global_subscribers: int
    stale_requests: int
    dropped_requests: int
    """Executions that were dropped without being closed, before they were complete."""
    orphans: dict[str, int]
    """The total number of orphans since the start, by reason."""
    orphans_claimed: int
    routed: Routed
    faults: dict[str, int]
    comms: int
    others: int
    published: int
    unpublished: int
    restarts: int


def stats_of(client: KernelClient, restarts: int) -> KernelStats:
    router, publisher = client.router, client.publisher
    return KernelStats(
        state=client.state,
        active_requests=len(router.requests),
        orphan_messages=len(router.orphans),
        global_subscribers=len(router.served),
        stale_requests=router.stale,
        dropped_requests=router.dropped,
        orphans=dict(router.orphans_by_why),
        orphans_claimed=router.orphans.claimed,
        routed=msgspec.structs.replace(router.counts),
        faults={fault.value: count for fault, count in client.faults.items()},
        comms=len(router.comms),
        others=len(router.others),
        published=0 if publisher is None else publisher.published,
        unpublished=0 if publisher is None else publisher.lost,
        restarts=restarts,
    )
