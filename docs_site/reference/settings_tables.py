"""All settings: name, default, and description from the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import trunkline as tl
from docs_site.reference.words import cell, field_words, prose
from trunkline.hub.settings import HubSettings
from trunkline.journal import JournalSettings, Retention
from trunkline.jupyter.settings import KernelSettings
from trunkline.memory.settings import ChannelSettings
from trunkline.settings import Group
from trunkline.spark.settings import PipelineSettings

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(?P<name>[a-z_.]+)` \|.*\| (?P<what>[^|]+) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
GROUPS: dict[str, tuple[type[Group], str]] = {
    "Settings of a bus": (tl.Settings, "guide.md"),
    "Options of a subscription": (tl.Delivery, "guide.md"),
    "Retries": (tl.Retry, ""),
    "Connection to a hub": (tl.ConnectionSettings, ""),
    "Connection to NATS or Redis": (tl.EngineSettings, "fleet.md"),
    "A hub": (HubSettings, "hub.md"),
    "A journal": (JournalSettings, "journal.md"),
    "Retention in a journal": (Retention, "journal.md"),
    "A channel in shared memory": (ChannelSettings, "memory.md"),
    "A kernel": (KernelSettings, "jupyter.md"),
    "A pipeline": (PipelineSettings, ""),
}


def page() -> str:
    lines = [
        "# Settings",
        "",
        "Groups of settings are frozen and checked when they are built. The settings of a bus are also read from the",
        "environment (`TRUNKLINE_DRAIN_S=2`, `TRUNKLINE_BACKPRESSURE__TIMEOUT_S=1`) and from the TOML file that",
        "`TRUNKLINE_CONFIG` names.",
        "",
    ]
    for title, (kind, described) in GROUPS.items():
        lines += [f"## {title}", "", f"`{kind.__name__}`: {prose(kind.__doc__)}", ""]
        lines += ["| setting | default | what it does |", "| --- | --- | --- |", *_rows(kind, described), ""]
    return "\n".join(lines)


def _told(page: str) -> dict[str, str]:
    """The descriptions of settings in the tables of a page."""
    return {row["name"]: LINK.sub(r"\1", row["what"]) for row in ROW.finditer((DOCS / page).read_text())}


def _rows(kind: type[Group], page: str, prefix: str = "") -> Iterator[str]:
    words, values = {**(_told(page) if page else {}), **field_words(kind)}, kind()
    for name in kind.__struct_fields__:
        value = getattr(values, name)
        if isinstance(value, Group) and kind is tl.Settings:
            yield from _rows(type(value), page, f"{prefix}{name}.")
        else:
            what = words.get(prefix + name) or words.get(name, "")
            yield f"| `{prefix}{name}` | `{cell(str(value)) or ' '}` | {cell(prose(what))} |"
