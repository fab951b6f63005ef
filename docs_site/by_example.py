"""By example: one page for each program of examples/, with what its docstring says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def programs(root: Path) -> list[Path]:
    return [path for path in sorted((root / "examples").glob("*.py")) if path.stem != "__init__"]


def title_of(path: Path) -> str:
    return path.stem.replace("_", " ").capitalize()


def about(path: Path) -> str:
    found = ast.get_docstring(ast.parse(path.read_text()))
    assert found, f"{path.name} has no docstring"
    return found


def pages(root: Path) -> Iterator[tuple[str, str]]:
    lines = ["# By example", "", "One task a page. Each is a program that runs by itself, and that the tests run.", ""]
    for path in programs(root):
        first = about(path).split("\n\n")[0].replace("\n", " ")
        lines.append(f"- [{title_of(path)}]({path.stem}.md): {first}")
        code = path.read_text().split('"""', 2)[2].strip()
        yield (
            f"examples/{path.stem}.md",
            f"# {title_of(path)}\n\n{about(path)}\n\n```sh\npython -m examples.{path.stem}\n```\n\n"
            f'```python title="examples/{path.name}"\n{code}\n```\n',
        )
    yield "examples/index.md", "\n".join(lines) + "\n"
