"""docs/protocol matches the code: it is generated from the types, and every code in use is explained."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trunkline.wire.codes import CODES
from trunkline.wire.control import FROM_CLIENT, FROM_HUB, VERSIONS
from trunkline.wire.document import CLIENT_FILE, HUB_FILE, TEXT_FILE, documents, main

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "protocol"
SPEAKERS = ("hub", "registry", "wire", "transports", "delivery")


@pytest.mark.parametrize("name", documents())
def test_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == documents()[name], f"{name} is stale: run `make protocol`"


def test_nothing_else_is_there() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(documents())


def test_writes_the_files(tmp_path: Path) -> None:
    main(str(tmp_path / "new"))
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()} == documents()


@pytest.mark.parametrize(("name", "kinds"), [(CLIENT_FILE, FROM_CLIENT), (HUB_FILE, FROM_HUB)], ids=["client", "hub"])
def test_schema_has_every_message(name: str, kinds: tuple[type, ...]) -> None:
    schema = json.loads(documents()[name])
    assert schema["$id"].split(":")[3] == str(VERSIONS[0])
    assert {each["$ref"] for each in schema["anyOf"]} == {f"#/$defs/{kind.__name__}" for kind in kinds}
    for reference in references(schema):
        assert reference.removeprefix("#/$defs/") in schema["$defs"]
    for title, part in schema["$defs"].items():
        assert part.get("description"), f"{title} has no docstring"


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for each in schema.values():
            yield from references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from references(each)


def test_text_has_every_message_and_code() -> None:
    text = documents()[TEXT_FILE]
    for kind in (*FROM_CLIENT, *FROM_HUB):
        assert f"\n### {kind.__struct_config__.tag}\n" in text
    for code in CODES:
        assert f"| `{code}` | " in text


def test_every_code_that_is_used_is_explained() -> None:
    used = dict(codes())
    unexplained = {code: where for code, where in used.items() if code not in CODES}
    assert not unexplained, f"add these to wire/codes.py: {unexplained}"
    assert set(CODES) <= set(used), f"nobody uses these any more: {set(CODES) - set(used)}"


def codes() -> Iterator[tuple[str, str]]:
    """The literal codes of `ProtocolError("…")`, `Error(code="…")` and `.fail(index, "…")`, and where they are."""
    for room in SPEAKERS:
        for path in sorted((ROOT / "src" / "trunkline" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for code in codes_of(node):
                    yield code, f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]  # calls have lines


def codes_of(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Call):
        return []
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given: list[ast.expr | None] = []
    if name == "ProtocolError":
        given = [*node.args[:1]]
    elif name in ("fail", "Failure"):
        given = [*node.args[1:2]]
    if name in ("ProtocolError", "Error", "fail", "Failure"):
        given += [word.value for word in node.keywords if word.arg == "code"]
    return [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
