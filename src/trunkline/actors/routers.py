"""The routers of a system: pools and groups, their members, and their end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING

from trunkline.actors.errors import UnknownActor
from trunkline.actors.pool import FarMember, Pool
from trunkline.actors.ref import Ref
from trunkline.bus.closing import Unfinished
from trunkline.errors import UsageError
from trunkline.topic import endpoint

if TYPE_CHECKING:
    from trunkline.actors.cell import Cell
    from trunkline.actors.system import ActorSystem


class Routers:
    """The routers of one system."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self.pools: dict[str, Pool] = {}

    async def pool(self, name: str, pool: Pool, size: int, spawn: Callable[..., Awaitable[Ref]]) -> Ref:
        self._add(name, pool)
        pool.spawn = spawn
        await self.resize(name, size)
        return self._system.ref(self._system.address(name))

    def group(self, name: str, group: Pool, addresses: list[str]) -> Ref:
        system = self._system
        members = [system.find(address) if system.owns(address) else FarMember(address) for address in addresses]
        self._add(name, group)
        for member in members:
            self._join(group, member)
        return system.ref(system.address(name))

    def _add(self, name: str, pool: Pool) -> None:
        self._system.check_free(name)
        self.pools[name] = pool
        self._system.bus.broker.forget_route(endpoint(self._system.address(name)))

    def _join(self, pool: Pool, member: Cell | FarMember) -> None:
        if isinstance(member, FarMember):
            self._system.watching.watch_for(member.name, self._far_ended)
        else:
            # It gets only some of the messages to the router: a range would include messages that others got.
            member.inbox.books.exact = True
        pool.add(member)

    async def resize(self, name: str, size: int) -> None:
        system = self._system
        pool = self.pools.get(name)
        if pool is None:
            raise UnknownActor(system.address(name))
        if pool.spawn is None:
            raise UsageError(
                f"{system.address(name)} is a group: its members are started separately, and it cannot be resized"
            )
        while len(pool.members) < size:
            number = next(each for each in count(1) if f"{name}.{each}" not in system.registry)
            ref = await pool.spawn(name=f"{name}.{number}")
            self._join(pool, system.find(ref.address))
        while len(pool.members) > size:
            last = pool.members[-1]
            pool.remove(last)
            await system.stop(last.ref, system.settings.drain_s)

    async def stop(self, name: str, drain_s: float | None) -> list[Unfinished]:
        """End a router, and the members that were started for it."""
        pool = self.pools[name]
        self._remove(name, None)
        left: list[Unfinished] = []
        if pool.spawn is not None:
            for member in reversed(pool.members):
                left += await self._system.stop(member.ref, drain_s)
        return left

    def left(self, member: Cell | FarMember, failed: BaseException | None) -> None:
        """Remove a member that has ended. A router ends with its last member."""
        for name, pool in list(self.pools.items()):
            if member in pool:
                pool.remove(member)
                if not pool.members:
                    self._remove(name, failed)

    def _far_ended(self, address: str) -> None:
        for pool in list(self.pools.values()):
            for member in pool.members:
                if isinstance(member, FarMember) and member.name == address:
                    self.left(member, None)

    def _remove(self, name: str, failed: BaseException | None) -> None:
        pool = self.pools.pop(name)
        address = self._system.address(name)
        self._system.bus.broker.forget_route(endpoint(address))
        self._system.watching.ended(address, pool.watchers, failed)
