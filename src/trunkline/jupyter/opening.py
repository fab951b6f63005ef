"""Common options of all ways to open a kernel's client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trunkline.clock import World
from trunkline.errors import UsageError
from trunkline.jupyter.gateway import Gateway
from trunkline.jupyter.kernel import Kernel, Life
from trunkline.jupyter.link import KernelLink
from trunkline.jupyter.metrics import Tracing
from trunkline.jupyter.settings import KernelSettings

if TYPE_CHECKING:
    from trunkline.bus.bus import Bus


class KernelOpening(msgspec.Struct, frozen=True):
    bus: Bus | None
    share: bool
    settings: KernelSettings
    world: World
    tracing: Tracing | None

    def __post_init__(self) -> None:
        if self.share and self.bus is None:
            raise UsageError("a shared kernel needs a bus: pass bus=")

    def kernel(self, kernel_id: str, link: KernelLink, session: str, life: Life | None = None) -> Kernel:
        return Kernel(
            kernel_id,
            link,
            session=session,
            world=self.world,
            settings=self.settings,
            bus=self.bus,
            life=life,
            tracing=self.tracing,
        )

    async def open(self, kernel: Kernel) -> Kernel:
        try:
            gateway = Gateway(kernel, self.bus) if self.bus is not None and self.share else None
            if gateway is not None:
                kernel.on_close(gateway.aclose)
                await gateway.open()
            await kernel.open()
            if gateway is not None:
                gateway.describe()
        except BaseException:
            await kernel.aclose()
            raise
        return kernel
