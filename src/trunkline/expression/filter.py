"""The filter language of `where` and of routing rules: a whitelisted subset of Python's expressions, compiled once.

    payload.total > 100 and priority >= 75
    type == 'request' and not exists(payload.dry_run)
    matches(sender, 'agent-*') and payload.items[0].sku in ('a1', 'b2')

Logic has two values: a comparison with a missing field is False, `!=` and `not in` too, and `not` of it is True.
translation.py has the grammar and the generated code; values.py has the behaviour of values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from trunkline.errors import InvalidExpression
from trunkline.expression.translation import Test, Translation

MAX_CHARACTERS: Final = 1_000
MAX_DEPTH: Final = 50

HABITS = (("&&", "and"), ("||", "or"), ("!", "not"))
"""Operators of other languages, and the equivalents of the filter language."""
_TOO_DEEP: Final = f"it is nested deeper than {MAX_DEPTH} levels; split it"


class Filter:
    """A compiled expression. A call decodes the payload at most once, and never raises."""

    __slots__ = ("_test", "expression")

    def __init__(self, expression: str, test: Test) -> None:
        self.expression = expression
        self._test = test

    def __call__(self, header: object, payload: Callable[[], object]) -> bool:
        return self._test(header, payload)

    def __repr__(self) -> str:
        return f"Filter({self.expression!r})"


def compile_filter(expression: str) -> Filter:
    """Compile an expression. Raises InvalidExpression, which says what to change."""
    if len(expression) > MAX_CHARACTERS:
        shown = expression[:50] + "…"  # an error is for reading
        raise InvalidExpression(shown, f"it has {len(expression)} characters, at most {MAX_CHARACTERS} are allowed")
    source = expression.strip()
    if not source:
        raise InvalidExpression(expression, "it is empty; leave the filter out to receive every message")
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        where = f" at character {error.offset}" if error.offset else ""
        hint = next((f": write `{ours}` instead of `{theirs}`" for theirs, ours in HABITS if theirs in source), "")
        raise InvalidExpression(expression, f"{error.msg}{where}{hint}") from error
    except ValueError as error:  # a null character or half a surrogate pair
        raise InvalidExpression(expression, f"it holds a character that cannot be read: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise InvalidExpression(expression, _TOO_DEEP) from error
    _check_depth(expression, tree)
    translation = Translation(expression, source)
    return Filter(expression, translation.function(translation.term(tree)))


def _check_depth(expression: str, tree: ast.expr) -> None:
    level, depth = [tree], 0
    while level:  # level by level: recursion could exceed the limit that is checked here
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidExpression(expression, _TOO_DEEP)
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
