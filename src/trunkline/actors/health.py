"""The health of an actor, in one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.actors.message_fates import CellState

if TYPE_CHECKING:
    from trunkline.actors.cell import Cell


class ActorHealth(msgspec.Struct, frozen=True):
    """The health of one actor."""

    address: str
    kind: str
    state: str
    health: str
    """`ok`, `full` (the mailbox is at least four fifths full), or the state: `starting`, `restarting`, `stuck`,
    `stopping`, `stopped`."""
    mailbox: int
    capacity: int
    handled: int
    restarts: int
    parent: str | None


def health_of(cell: Cell) -> ActorHealth:
    inbox = cell.inbox
    if cell.state is CellState.RUNNING:
        health = "full" if inbox.depth >= 0.8 * inbox.capacity else "ok"
    else:
        health = cell.state.value
    return ActorHealth(
        address=cell.ref.address,
        kind=cell.born_plan.name,
        state=cell.state.value,
        health=health,
        mailbox=inbox.depth,
        capacity=inbox.capacity,
        handled=cell.handled,
        restarts=cell.restarts,
        parent=None if cell.parent is None else cell.parent.ref.address,
    )
