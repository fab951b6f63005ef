"""Shared-memory channels of this machine: processes, services, and files left by dead processes."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import age, rate
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.memory.survey import EngineFile, EngineNode, EngineService
from trunkline.wire.control import ChannelInfo
from trunkline.wire.reported_metrics import ReportedConsumer, read_metrics

LEFT = "Left by dead processes"
CHANNELS = [
    ListColumn("channel", "channel", "link"),
    ListColumn("producers", "producer"),
    ListColumn("frames", "frames", "number"),
    ListColumn("rate", "per second", "number"),
    ListColumn("last", "last frame", "number"),
    ListColumn("occupancy", "slots in use", "number"),
    ListColumn("overruns", "frames lost", "number"),
    ListColumn("consumers", "consumers", "wide"),
]
PROCESSES = [
    ListColumn("pid", "process", "number"),
    ListColumn("program", "program"),
    ListColumn("state", "state", "tag"),
    ListColumn("age", "age", "number"),
    ListColumn("channels", "channels"),
]
SERVICES = [
    ListColumn("name", "service"),
    ListColumn("kind", "kind", "tag"),
    ListColumn("owners", "used by"),
    ListColumn("age", "age", "number"),
]
FILES = [
    ListColumn("path", "file"),
    ListColumn("kind", "kind", "tag"),
    ListColumn("owner", "made by"),
    ListColumn("size", "size", "number"),
    ListColumn("age", "age", "number"),
]


def register(model: PageModel) -> None:
    @ui.page("/memory")
    def memory(filter: str = "") -> None:
        with framed(model, "Shared memory of this machine", "/memory") as shell:
            with box("tl-tools"):
                wanted = ListFilter("/memory", filter)
            channels = DataTable(
                CHANNELS, key="channel", none="no producer has registered a shared-memory channel at the hub"
            )
            text("Processes", "tl-h2").style("margin-top:20px")
            processes = DataTable(PROCESSES, key="id", none="no process uses shared-memory channels")
            text("Services", "tl-h2").style("margin-top:20px")
            services = DataTable(SERVICES, key="name", none="no services")
            left = text(LEFT, "tl-h2")
            left.style("margin-top:20px")
            files = DataTable(FILES, key="path", none="no files of dead processes")
            for table in (channels, processes, services, files):
                wanted.filters(table)

            async def refresh() -> None:
                model.look()
                found = await model.memory()
                known = [row for each in await model.channels() if (row := _channel(each, model.world.time_ns()))]
                channels.set(known)
                processes.set([_process(each) for each in found.nodes])
                services.set([_service(each) for each in found.services])
                files.set([_file(each) for each in found.left_over])
                left.text = LEFT + (": `trunkline doctor --reap` removes it" if found.left_over else "")

            shell.every(2.0, refresh)


def _channel(each: ChannelInfo, now_ns: int) -> dict[str, Any]:
    """The row of a channel. Empty if its producer has not reported metrics."""
    found = read_metrics({"metrics": each.memory})
    if found is None:
        return {}
    quiet_s = max(0.0, (now_ns - found.last_ns) / 1e9)
    return {
        **cell("channel", each.channel, address("/channels", filter=each.channel)),
        "producers": show.plain(", ".join(producer.name for producer in each.producers)) or "–",
        **number("frames", found.frames),
        **number("rate", found.per_s, rate(found.per_s)),
        **number("last", round(quiet_s), f"{age(quiet_s)} ago" if found.last_ns else "–"),
        **number("occupancy", found.occupancy, f"{found.occupancy:.0%}"),
        **number("overruns", found.overruns),
        "consumers": show.plain(", ".join(map(_consumer, found.slowest))) or "–",
    }


def _consumer(each: ReportedConsumer) -> str:
    waits = f", {each.waiting:,} waiting" if each.waiting else ""
    return f"{each.name} (process {each.pid}: {each.reads:,} read{waits})"


def _process(each: EngineNode) -> dict[str, Any]:
    return {
        "id": each.id,
        **number("pid", each.pid, str(each.pid)),
        "program": show.plain(each.program),
        **cell("state", "alive" if each.alive else "dead", kind="good" if each.alive else "bad"),
        **number("age", round(each.age_s), age(each.age_s)),
        "channels": show.plain(", ".join(each.channels)),
    }


def _service(each: EngineService) -> dict[str, Any]:
    return {
        "name": show.plain(each.name),
        **cell("kind", each.kind),
        "owners": ", ".join(map(str, each.owners)) or "nobody",
        **number("age", round(each.age_s), age(each.age_s)),
    }


def _file(each: EngineFile) -> dict[str, Any]:
    return {
        "path": show.plain(each.path),
        **cell("kind", each.kind),
        "owner": str(each.owner or "unknown"),
        **number("size", each.bytes, show.size(each.bytes)),
        **number("age", round(each.age_s), age(each.age_s)),
    }
