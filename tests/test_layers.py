"""Allowed imports: a layer imports only from lower layers, and brokers do not import each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "trunkline"

# From the bottom up. A module belongs to the longest prefix that fits; it may import its own layer and those below.
LAYERS = [
    [
        "errors",
        "topic",
        "arrays",
        "codec",
        "clock",
        "settings",
        "message",
        "moment",
        "plural",
        "expression",
        "columns",
        "schema",
        "unchecked",
    ],
    ["wire"],
    ["keys", "folders", "program", "scheduling", "segments"],
    ["transports"],
    ["delivery"],
    ["registry"],
    ["hooks", "brokers"],
    ["memory"],
    ["journal"],
    ["hub"],
    ["bus"],
    ["connect"],
    ["bridge", "testing", "spark", "jupyter", "actors", "cli", "dashboard"],
    ["__init__", "__main__"],
]


SHARED = (
    "brokers.announcements",
    "brokers.asked_directory",
    "brokers.broker",
    "brokers.directory",
    "brokers.engine",
    "brokers.forwarding",
    "brokers.remote",
    "brokers.store",
)
"""What all brokers are made of; `remote` is for those that are elsewhere, `engine` for those without a hub."""


def layer_of(module: str) -> int:
    parts = module.split(".")
    for height, names in enumerate(LAYERS):
        if parts[0].partition("_")[0] in names or parts[0] in names:
            return height
    raise AssertionError(f"{module} belongs to no layer: give it one in LAYERS")


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found.append((name.removesuffix(".__init__"), path))
    return found


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
            if node.module == "trunkline":
                names = [f"trunkline.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found += [name.removeprefix("trunkline.") for name in names if name.startswith("trunkline.")]
    return found


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_only_from_below(module: str, path: Path) -> None:
    own = layer_of(module)
    for imported in imports(path):
        assert layer_of(imported) <= own, f"{module} must not import {imported}: that is above it"


def test_brokers_do_not_import_each_other() -> None:
    for module, path in modules():
        if module.startswith("brokers."):
            own = ".".join(module.split(".")[:2])
            strangers = [
                name for name in imports(path) if name.startswith("brokers.") and not name.startswith((own, *SHARED))
            ]
            assert not strangers, f"{module} imports {strangers}"


def test_the_shared_half_of_remote_brokers_knows_no_wire() -> None:
    """It uses an adapter: only the adapter knows frames and control messages."""
    checked = 0
    for module, path in modules():
        if module.startswith("brokers.remote"):
            checked += 1
            found = [name for name in imports(path) if name.split(".")[0] in ("wire", "transports", "hub")]
            assert not found, f"{module} imports {found}"
    assert checked > 5


def test_the_wire_protocol_does_nothing_itself() -> None:
    """wire/ is pure: no event loop, no sockets."""
    for module, path in modules():
        if module.startswith("wire"):
            tree = ast.parse(path.read_text())
            used = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            assert not used & {"asyncio", "socket", "threading"}, f"{module} imports {used}"


def test_only_the_clock_asks_for_time_and_chance() -> None:
    """Time and randomness are injected: only the testing tools read a clock or a random generator themselves."""
    for module, path in modules():
        if module.startswith("testing") or module == "clock":
            continue
        tree = ast.parse(path.read_text())
        used = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        calls = {
            f"{node.func.value.id}.{node.func.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        }
        assert not used & {"time", "uuid", "uuid_utils"}, f"{module} imports a clock or an id source"
        assert not {call for call in calls if call.startswith("random.")}, f"{module} rolls its own dice"


def test_nobody_asks_which_broker_it_has() -> None:
    """Optional abilities of brokers are accessed through features, store and directory."""
    for module, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
                continue
            kinds = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            brokers = {kind for kind in kinds if kind.endswith("Broker") and kind != "Broker"}
            assert not brokers, f"{module}, line {node.lineno}, asks whether something is a {', '.join(brokers)}"


JOURNAL_SQL = re.compile(
    r"\b(FROM|INTO|UPDATE|TABLE)\s+(batches|fates|cursors|files|file_topics|dead_letters|orphans|removals|retries"
    r"|quarantine|attendance|identity|deaths)\b"
)


def test_only_the_journal_knows_its_tables() -> None:
    paths = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "journal"]
    found = [path.name for path in paths if JOURNAL_SQL.search(path.read_text())]
    assert not found, "ask a Reader instead: the tables of the journal may change"
