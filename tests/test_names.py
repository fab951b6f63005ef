"""One name, one idea: no two classes of the library share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "trunkline"

SHARED = {"Pipeline", "Stats", "Trace"}
"""Names that two classes have because both are public, or one is public and the other a control message."""


def classes() -> dict[str, list[str]]:
    """Where each class is defined, by its name."""
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_no_two_classes_share_a_name() -> None:
    shared = {name: places for name, places in classes().items() if len(places) > 1 and name not in SHARED}
    assert not shared, f"rename one of each: {shared}"
