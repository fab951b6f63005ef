"""Channels and schemas: the contract, the members and the schema versions of each channel."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, card, code, empty, facts, tag, text
from trunkline.dashboard.page.filters import ListFilter
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import as_json, clock
from trunkline.dashboard.page.shell import framed
from trunkline.dashboard.page.table import DataTable, ListColumn, cell, number
from trunkline.errors import UsageError
from trunkline.registry.compatibility import Side, breaks
from trunkline.wire.control import ChannelInfo, SchemaInfo

CHANNELS = [
    ListColumn("channel", "channel"),
    ListColumn("pattern", "topics", "link"),
    ListColumn("schema", "schema", "link"),
    ListColumn("contract", "contract"),
    ListColumn("producers", "producers", "number"),
    ListColumn("consumers", "consumers", "number"),
    ListColumn("owner", "owner"),
    ListColumn("created", "created (UTC)"),
]
SCHEMAS = [
    ListColumn("name", "schema", "link"),
    ListColumn("version", "last version"),
    ListColumn("compatibility", "compatibility", "tag"),
    ListColumn("hash", "hash"),
]
MEANS = {
    "none": "any change is allowed",
    "backward": "a new version must read data written with the last one",
    "forward": "the last version must read data written with a new one",
    "full": "each version must read data written with the other",
}


def register(model: PageModel) -> None:
    @ui.page("/channels")
    def channels(filter: str = "") -> None:
        with framed(model, "Channels and schemas", "/channels") as shell:
            if not model.live:
                empty("A hub keeps channels and schemas: a journal alone has none.", "schema")
                return
            with box("tl-tools"):
                wanted = ListFilter("/channels", filter)
            known = DataTable(CHANNELS, key="channel", none="no channels yet: create one with bus.create_channel")
            text("Schemas", "tl-h2").style("margin-top:20px")
            schemas = DataTable(SCHEMAS, key="name", none="no schemas")
            for table in (known, schemas):
                wanted.filters(table)

            async def refresh() -> None:
                model.look()
                known.set([_channel(each) for each in await model.channels()])
                schemas.set([_schema(each) for each in await model.schemas()])

            shell.every(2.0, refresh)

    @ui.page("/schemas/{name}")
    def schema(name: str) -> None:
        with framed(model, f"Schema {name}", "/channels") as shell:
            content = box("")
            shown: list[SchemaInfo] = []

            async def refresh() -> None:
                nonlocal shown
                model.look()
                versions = [
                    found
                    for each in await model.schemas(name)
                    if (found := await model.schema(name, each.version)) is not None
                ]
                if versions == shown:
                    return
                shown = versions
                content.clear()
                with content:
                    for at, each in reversed(list(enumerate(versions))):
                        with card(f"Version {each.version}"):
                            if at:
                                _changes(versions[at - 1], each)
                            facts(
                                {"hash": each.hash, "compatibility": MEANS.get(each.compatibility, each.compatibility)}
                            )
                            code(as_json(each.schema))

            shell.every(5.0, refresh)


def _changes(before: SchemaInfo, after: SchemaInfo) -> None:
    """Show the incompatibilities between two versions, for readers of either."""
    old, new = Side(before.schema, before.version), Side(after.schema, after.version)
    for yes, no, writer, reader in (
        ("reads data written with", "cannot read data written with", old, new),
        ("can be read with", "cannot be read with", new, old),
    ):
        try:
            found = breaks(writer, reader)
        except UsageError as error:
            text(f"Not comparable with {before.version}: {error}", "tl-note")
            continue
        tag(f"{no if found else yes} {before.version}", "bad" if found else "good")
        for each in found:
            text(str(each), "tl-note tl-mono")


def _channel(each: ChannelInfo) -> dict[str, Any]:
    qos = each.qos
    contract = [f"priority {qos.priority}", qos.overflow.replace("_", " "), f"invalid: {qos.invalid.replace('_', ' ')}"]
    contract += ["durable"] if qos.durable else []
    contract += [f"group {qos.group}"] if qos.group else []
    named = f"{each.channel} {each.schema_version}" if each.schema_hash else "–"
    return {
        **cell("channel", each.channel),
        **cell("pattern", each.pattern, address("/messages", topic=each.pattern), "tl-mono"),
        **cell("schema", named, schema_address(each.channel) if each.schema_hash else ""),
        "contract": show.plain(", ".join(contract)),
        **number("producers", len(each.producers)),
        **number("consumers", len(each.consumers)),
        "owner": show.plain(each.owner),
        "created": clock(each.created_ns),
    }


def _schema(each: SchemaInfo) -> dict[str, Any]:
    return {
        **cell("name", each.name, schema_address(each.name)),
        "version": show.plain(each.version),
        **cell("compatibility", each.compatibility, kind="info"),
        "hash": each.hash[:16],
    }


def schema_address(name: str) -> str:
    return "/schemas/" + quote(name, safe="")
