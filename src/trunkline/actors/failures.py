"""Carries out the decisions of supervision after failures."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trunkline.actors.cell import Cell
from trunkline.actors.errors import ActorFailed
from trunkline.actors.message_fates import CellState
from trunkline.actors.supervision import Directive, decide
from trunkline.delivery.dead_letters import describe
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.actors.system import ActorSystem

log = logging.getLogger("trunkline.actors")


class Failures:
    """The failures of the actors of one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system

    def crashed(self, cell: Cell, error: BaseException, message: Message | None) -> None:
        """Called by a cell when its incarnation has failed."""
        directive = decide(cell.keep.on_error, error)
        if directive is Directive.RESUME and cell.state is not CellState.RUNNING:
            # An incarnation that has not started cannot be resumed.
            directive = Directive.RESTART
        log.error("%s failed (%s): %s", cell.ref, directive.value, describe(error), exc_info=error)
        again = message if message is not None and cell.failed_on(message, error) else None
        if directive is Directive.RESUME and again is not None:
            cell.retried(again, error, 0)
        if directive is Directive.RESUME and cell.outside is None:
            cell.resume()
            return
        cell.state = CellState.RESTARTING
        if directive is Directive.RESUME:
            self._system.start(self._resume(cell))
        else:
            self._system.start(self._supervise(cell, error, message, directive, again))

    async def _resume(self, cell: Cell) -> None:
        """Resume when the handler that took too long has ended."""
        await cell.wait_outside()
        if cell.state is CellState.RESTARTING:
            cell.resume()

    def ended(self, cell: Cell) -> None:
        """Called by a cell when its actor has stopped by itself."""
        cell.state = CellState.RESTARTING
        self._system.start(self._supervise(cell, None, None, Directive.RESTART))

    async def _supervise(
        self,
        cell: Cell,
        error: BaseException | None,
        message: Message | None,
        directive: Directive,
        again: Message | None = None,
    ) -> None:
        system = self._system
        await cell.suspend()
        if error is not None:
            await cell.mourn(error, message)
        family = system.family_of(cell)
        if cell.name not in family:
            # It was stopped meanwhile.
            return
        verdict = family.ended(
            cell.name,
            system.loop.time(),
            failed=error is not None,
            directive=directive,
            chance=system.bus.broker.world.random.random(),
        )
        if verdict.escalate:
            await self._escalate(cell, error)
        elif verdict.restart:
            if again is not None and error is not None:
                cell.retried(again, error, verdict.pause_s)
            await self._restart([system.registry[name] for name in verdict.restart], verdict.pause_s, error)
        else:
            await system.end_actor(cell, error)

    async def _restart(self, cells: list[Cell], pause_s: float, error: BaseException | None) -> None:
        system = self._system
        for cell in reversed(cells):
            cell.state = CellState.RESTARTING
            await cell.suspend()
            if error is not None:
                # Also for actors that have not failed: their incarnation is over.
                await cell.mourn(error, None)
            await system.stop_children(cell)
            await cell.release()
        await asyncio.sleep(pause_s)
        for cell in cells:
            if cell.state is not CellState.RESTARTING or not system.is_alive:
                continue
            cell.restarts += 1
            try:
                await cell.begin()
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as failure:
                if isinstance(failure, asyncio.CancelledError) and _is_cancelled():
                    raise
                if cell.is_starting:
                    self.crashed(cell, failure, None)

    async def _escalate(self, cell: Cell, error: BaseException | None) -> None:
        """End the actor. Its failure becomes that of its parent, or of the whole system."""
        parent = cell.parent
        why = ActorFailed(cell.ref.address, cell.restarts, describe(error) if error is not None else "it stopped")
        why.__cause__ = error
        await self._system.end_actor(cell, error)
        if parent is not None:
            self.crashed(parent, why, None)
        else:
            self._system.give_up(why)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())
