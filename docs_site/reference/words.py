"""Docstrings as Markdown, and what the source says of fields."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

CODE = re.compile(r"(`[^`]*`)")


def prose(text: str | None) -> str:
    """A docstring as Markdown: what is not code shows its angle brackets."""
    if not text:
        return ""
    parts = CODE.split(inspect.cleandoc(text))
    return "".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def field_words(kind: type) -> dict[str, str]:
    """What the strings below the fields of a class say, those of its bases too."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("trunkline"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[node.target.id] = inspect.cleandoc(after.value.value)
    return found
