"""The problems of a hub, each with a description and a next step, derived from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from trunkline.plural import counted
from trunkline.wire.snapshot import HubSnapshot, SubscriberSnapshot

SLOW_NS = 1_000_000_000
"""A subscriber is slow if a message has been waiting for it for longer than this."""


class Problem(msgspec.Struct, frozen=True):
    kind: str
    text: str
    next_step: str


def problems(snapshot: HubSnapshot) -> list[Problem]:
    """The worst first: losses, then dead letters and durable subscriptions without a subscriber, then slowness."""
    return [*_lost(snapshot), *_unattended(snapshot), *_slow(snapshot), *_clients(snapshot)]


def is_slow(subscriber: SubscriberSnapshot, at_ns: int) -> bool:
    return bool(subscriber.waiting_since_ns) and at_ns - subscriber.waiting_since_ns > SLOW_NS


def _lost(snapshot: HubSnapshot) -> Iterator[Problem]:
    for each in snapshot.subscribers:
        if each.dropped:
            yield Problem(
                "dropped",
                f"{_who(each)} has dropped {counted(each.dropped, 'message')} of {each.accepted:,}"
                f" (policy {each.overflow}, room for {each.capacity:,})",
                f"make its handler faster, share the work with a group, {_instead_of_losing(each)}",
            )
    if failed := snapshot.counts.get("internal_errors", 0):
        yield Problem(
            "internal errors",
            f"the hub failed {counted(failed, 'time')} while handling a frame of a client",
            "read the hub's log for the cause",
        )


def _instead_of_losing(subscriber: SubscriberSnapshot) -> str:
    if subscriber.overflow == "block":
        # It had no room until the timeout of its publishers, or it left while messages were waiting for it.
        return "or raise capacity, or backpressure.timeout_s of its publishers"
    return 'raise capacity, or use overflow="block"'


def _unattended(snapshot: HubSnapshot) -> Iterator[Problem]:
    if letters := snapshot.dead_letters:
        be, them = ("is", "it") if letters == 1 else ("are", "them")
        yield Problem(
            "dead letters",
            f"there {be} {counted(letters, 'dead letter')}",
            f"`trunkline dead-letters list` shows {them}, `trunkline dead-letters replay` redelivers {them}",
        )
    for each in () if snapshot.dead_letters else snapshot.subscribers:
        if each.dead:
            yield Problem(
                "dead letters",
                f"{_who(each)} failed to handle {counted(each.dead, 'message')} of {each.accepted:,}",
                "they are in its process: `bus.dead_letters` lists the causes, `bus.replay_dead()` redelivers them;"
                " a hub with a journal keeps those of groups and durable subscriptions",
            )
    for each in snapshot.subscribers:
        if not each.connected and each.behind:
            yield Problem(
                "not connected",
                f"the durable subscription {each.name} ({each.pattern}) has no subscriber, and is"
                f" {counted(each.behind, 'message')} behind",
                f"start its subscriber, or delete it with `trunkline forget {each.name}`",
            )


def _slow(snapshot: HubSnapshot) -> Iterator[Problem]:
    for each in snapshot.subscribers:
        if is_slow(each, snapshot.at_ns):
            waited_s = (snapshot.at_ns - each.waiting_since_ns) / 1e9
            held_up = "; publishers wait for it" if each.overflow == "block" and not each.durable else ""
            yield Problem(
                "slow",
                f"{_who(each)} is slow: {counted(each.waiting, 'message')} waiting"
                f" for up to {waited_s:,.0f} s{held_up}",
                "make its handler faster, or share the work with a group",
            )


def _clients(snapshot: HubSnapshot) -> Iterator[Problem]:
    for client in snapshot.clients:
        if client.suspected:
            yield Problem(
                "silent",
                f"the client {client.name} ({client.address}) has not sent a heartbeat in time",
                "check whether its process is alive, and whether it blocks its event loop",
            )


def _who(subscriber: SubscriberSnapshot) -> str:
    where = f" of {subscriber.client}" if subscriber.client and subscriber.client != subscriber.name else ""
    return f"the subscriber {subscriber.name}{where} ({subscriber.pattern})"
