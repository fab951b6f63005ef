"""From a parsed filter to one Python function without builtins: the grammar, and the generated code.

Python's operators are used where the types of header fields make them safe; everything else calls values.py. Parsing
and the public interface are in filter.py.
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, cast

from trunkline.errors import InvalidExpression
from trunkline.expression.values import SCOPE

MAX_INTEGER: Final = 2**64 - 1
MAX_PATTERN_CHARACTERS: Final = 255

Test = Callable[[object, Callable[[], object]], bool]


class ValueKind(IntEnum):
    """What is known about a value at compile time. A higher kind is less specific: max() joins two kinds."""

    FLAG = 0
    NUMBER = 1
    PLAIN = 2  # text, a number or None: equality and truth are safe, order is not
    ANY = 3  # anything, MISSING included


class Term(NamedTuple):
    code: ast.expr
    kind: ValueKind


_FIELDS: Final[Mapping[str, ValueKind]] = {
    **dict.fromkeys(("priority", "attempts", "size", "timestamp"), ValueKind.NUMBER),
    **dict.fromkeys(("id", "sender", "recipient", "topic", "ttl_s", "schema", "content_type"), ValueKind.PLAIN),
    **dict.fromkeys(("correlation_id", "request_id", "reply_to"), ValueKind.PLAIN),
    "requires_ack": ValueKind.FLAG,
    **dict.fromkeys(("type", "headers", "payload"), ValueKind.ANY),
}
_LITERALS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}
# The function in SCOPE, and the highest kind for which Python's own operator can be used instead.
_COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[str, ValueKind]]] = {
    ast.Eq: ("same", ValueKind.PLAIN),
    ast.NotEq: ("differs", ValueKind.PLAIN),
    ast.Is: ("is_", ValueKind.PLAIN),
    ast.IsNot: ("is_not", ValueKind.PLAIN),
    ast.In: ("within", ValueKind.PLAIN),
    ast.NotIn: ("not_within", ValueKind.PLAIN),
    ast.Lt: ("lt", ValueKind.NUMBER),
    ast.LtE: ("le", ValueKind.NUMBER),
    ast.Gt: ("gt", ValueKind.NUMBER),
    ast.GtE: ("ge", ValueKind.NUMBER),
}
_ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
# The number of arguments of each function, and the kind of its result.
_FUNCTIONS: Final[Mapping[str, tuple[int, ValueKind]]] = {
    "len": (1, ValueKind.ANY),
    "lower": (1, ValueKind.ANY),
    "upper": (1, ValueKind.ANY),
    "exists": (1, ValueKind.FLAG),
    "startswith": (2, ValueKind.FLAG),
    "endswith": (2, ValueKind.FLAG),
    "contains": (2, ValueKind.FLAG),
    "matches": (2, ValueKind.FLAG),
}


class Translation:
    """Generates new code from the parsed expression. Only the operators are copied from the input."""

    def __init__(self, expression: str, source: str) -> None:
        self._expression = expression
        self._source = source
        self._scope = dict(SCOPE)
        self._kept = 0

    def function(self, term: Term) -> Test:
        result = term.code if term.kind is ValueKind.FLAG else _negate(_negate(_settle(term)))
        arguments = ast.arguments(
            posonlyargs=[],
            args=[ast.arg("header"), ast.arg("payload"), ast.arg("decoded")],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[_name("UNREAD")],
        )
        code = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, result)))
        return cast(Test, eval(compile(code, "<filter>", "eval"), self._scope))

    def term(self, node: ast.expr) -> Term:
        match node:
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.Name(id=name):
                return self._field(name)
            case ast.BoolOp(op=operator, values=values):
                terms = [self.term(value) for value in values]
                return Term(ast.BoolOp(operator, [_settle(term) for term in terms]), max(term.kind for term in terms))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Term(_negate(_settle(self.term(operand))), ValueKind.FLAG)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._negative(node, self.term(operand))
            case ast.BinOp(left=left, op=operation, right=right):
                return self._arithmetic(node, self.term(left), operation, self.term(right))
            case ast.Compare():
                return self._comparison(node)
            case ast.Attribute() | ast.Subscript():
                return self._path(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _FUNCTIONS:
                raise self._error(f"{self._text(node)} calls a method; write {name}(value, …) instead")
            case ast.Call():
                raise self._error(f"{self._text(node)} is not a plain call of one of {', '.join(_FUNCTIONS)}")
            case ast.Tuple() | ast.List():
                raise self._error(f"{self._text(node)} is a list, which may only follow `in` and end its comparison")
        raise self._error(f"{self._text(node)} is not part of the filter language")

    def _constant(self, node: ast.expr, value: object) -> Term:
        match value:
            case bool():
                return Term(ast.Constant(value), ValueKind.FLAG)
            case int() if value > MAX_INTEGER:
                raise self._error(f"{self._text(node)} does not fit in 64 bits")
            case int() | float():
                return Term(ast.Constant(value), ValueKind.NUMBER)
            case str() | None:
                return Term(ast.Constant(value), ValueKind.PLAIN)
        raise self._error(f"{self._text(node)} is not text, a number, true, false or null")

    def _field(self, name: str) -> Term:
        if name in _LITERALS:
            return self._constant(_name(name), _LITERALS[name])
        if name not in _FIELDS:
            raise self._unknown("name", name, [*_FIELDS, *_LITERALS])
        if name != "payload":
            return Term(ast.Attribute(_name("header"), name, ast.Load()), _FIELDS[name])
        is_read = ast.Compare(_name("decoded"), [ast.IsNot()], [_name("UNREAD")])
        read = _assign("decoded", _invoke("decode", _name("payload")))
        return Term(ast.IfExp(is_read, _name("decoded"), read), _FIELDS[name])

    def _path(self, node: ast.expr) -> Term:
        steps: list[str | int] = []
        root = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            steps.append(self._key(root.slice) if isinstance(root, ast.Subscript) else self._attribute(root.attr))
            root = root.value
        if not isinstance(root, ast.Name):
            raise self._error(f"{self._text(node)} looks into a result; only payload and headers have fields")
        start = self._field(root.id)
        if root.id not in ("payload", "headers"):
            raise self._error(f"{root.id!r} has no fields; only payload and headers have")
        return Term(_invoke("walk", start.code, *(ast.Constant(step) for step in reversed(steps))), ValueKind.ANY)

    def _attribute(self, name: str) -> str:
        if name.startswith("_"):
            raise self._error(f"{name!r} is private; for the key of a mapping write [{name!r}]")
        return name

    def _key(self, node: ast.expr) -> str | int:
        if isinstance(node, ast.Constant | ast.UnaryOp):
            code = self.term(node).code
            if isinstance(code, ast.Constant) and type(code.value) in (str, int):
                return cast("str | int", code.value)
        raise self._error(f"[{self._text(node)}] must be a text or a whole number")

    def _negative(self, node: ast.expr, term: Term) -> Term:
        if isinstance(term.code, ast.Constant) and term.kind is ValueKind.NUMBER:
            return Term(ast.Constant(-cast(float, term.code.value)), ValueKind.NUMBER)
        return self._arithmetic(node, Term(ast.Constant(-1), ValueKind.NUMBER), ast.Mult(), term)

    def _arithmetic(self, node: ast.expr, left: Term, operation: ast.operator, right: Term) -> Term:
        function = _ARITHMETIC.get(type(operation))
        if function is None:
            raise self._error(f"{self._text(node)} is not part of the filter language; numbers have + - * / // %")
        if any(isinstance(term.code, ast.Constant) and term.kind is ValueKind.PLAIN for term in (left, right)):
            raise self._error(f"{self._text(node)} computes with something that is not a number")
        return Term(_invoke("compute", _name(function), left.code, right.code), ValueKind.ANY)

    def _comparison(self, node: ast.Compare) -> Term:
        tests: list[ast.expr] = []
        left = self.term(node.left)
        for position, (operation, right_node) in enumerate(zip(node.ops, node.comparators, strict=True), 1):
            is_last = position == len(node.ops)
            if is_last and isinstance(operation, ast.In | ast.NotIn) and isinstance(right_node, ast.Tuple | ast.List):
                right, again = self._choices(right_node), left
            else:
                right, again = self._twice(self.term(right_node), is_last)
                if isinstance(operation, ast.In | ast.NotIn):
                    right = right._replace(
                        kind=ValueKind.ANY
                    )  # text is safe to compare, but None is not safe to search
            if isinstance(operation, ast.Is | ast.IsNot):
                self._check_is(node, left, right)
            tests.append(_compare(left, operation, right))
            left = again
        return Term(tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests), ValueKind.FLAG)

    def _choices(self, node: ast.Tuple | ast.List) -> Term:
        values: list[object] = []
        for element in node.elts:
            code = self.term(element).code
            if not isinstance(code, ast.Constant):
                raise self._error(f"{self._text(element)} is not a constant; the list after `in` holds only constants")
            values.append(code.value)
        return Term(ast.Constant(cast(str, tuple(values))), ValueKind.FLAG)  # typeshed does not know constant tuples

    def _twice(self, term: Term, is_last: bool) -> tuple[Term, Term]:
        """The middle of `1 < x < 9`, evaluated once and used twice. Copies would double with every nested chain."""
        if is_last or isinstance(term.code, ast.Constant):
            return term, term
        name = f"kept_{self._kept}"
        self._kept += 1
        return Term(_assign(name, term.code), term.kind), Term(_name(name), term.kind)

    def _check_is(self, node: ast.Compare, left: Term, right: Term) -> None:
        if isinstance(left.code, ast.Constant) or not (
            isinstance(right.code, ast.Constant) and right.code.value is None
        ):
            raise self._error(f"{self._text(node)}: `is` asks whether a value is None; use == and != to compare")

    def _call(self, node: ast.expr, name: str, args: list[ast.expr]) -> Term:
        if name not in _FUNCTIONS:
            raise self._unknown("function", name, _FUNCTIONS)
        count, kind = _FUNCTIONS[name]
        if len(args) != count:
            raise self._error(f"{name}() takes {count} value{'s' * (count > 1)}, not {len(args)}")
        if name == "exists":
            return Term(self._exists(args[0]), kind)
        if name == "matches":
            return Term(_invoke("matches", self.term(args[0]).code, self._pattern(args[1])), kind)
        return Term(_invoke("length" if name == "len" else name, *(self.term(arg).code for arg in args)), kind)

    def _exists(self, node: ast.expr) -> ast.expr:
        """Translate `exists`. A header field that was not set is None; a None in a payload is an actual value."""
        is_literal = isinstance(node, ast.Name) and node.id in _LITERALS
        if is_literal or not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            raise self._error(f"exists() asks for a field, which {self._text(node)} is not")
        is_set_unless = _name("MISSING")
        if isinstance(node, ast.Name) and node.id != "payload":
            is_set_unless = ast.Constant(None)
        return ast.Compare(self.term(node).code, [ast.IsNot()], [is_set_unless])

    def _pattern(self, node: ast.expr) -> ast.expr:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            raise self._error(f"matches() takes a constant pattern such as 'agent-*', not {self._text(node)}")
        if len(node.value) > MAX_PATTERN_CHARACTERS:
            raise self._error(f"a pattern has at most {MAX_PATTERN_CHARACTERS} characters, not {len(node.value)}")
        name = f"pattern_{len(self._scope)}"
        self._scope[name] = re.compile(fnmatch.translate(node.value))
        return _name(name)

    def _text(self, node: ast.expr) -> str:
        return ast.get_source_segment(self._source, node) or type(node).__name__

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> InvalidExpression:
        known = list(known)
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        return self._error(f"unknown {what} {name!r}: {hint}")

    def _error(self, why: str) -> InvalidExpression:
        return InvalidExpression(self._expression, why)


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.expr:
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)


def _invoke(function: str, *args: ast.expr) -> ast.expr:
    return ast.Call(_name(function), list(args), [])


def _negate(code: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), code)


def _settle(term: Term) -> ast.expr:
    return _invoke("settled", term.code) if term.kind is ValueKind.ANY else term.code


def _compare(left: Term, operation: ast.cmpop, right: Term) -> ast.expr:
    function, safe_up_to = _COMPARISONS[type(operation)]
    if max(left.kind, right.kind) <= safe_up_to:
        return ast.Compare(left.code, [operation], [right.code])
    return _invoke("compare", _name(function), left.code, right.code)
