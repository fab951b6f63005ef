"""Schemas and payloads made to hang or crash a checker: each is answered, or refused when it is registered.

They run in a process of their own, with a deadline: if one of them gets through, the process hangs or dies, not the
test run.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trunkline.errors import MissingExtra, ProtocolError, UsageError
from trunkline.registry.schemas import KeptSchema, KeptVersion, SchemaRegistry
from trunkline.schema import Checker
from trunkline.schema.library import require

DEADLINE_S = 120
"""Without the bounds the first of them takes years; with them, all take seconds on a busy machine."""


def answers(code: str) -> list[str]:
    """The output of the code, run in its own process."""
    done = subprocess.run([sys.executable, "-c", PREFACE + code], capture_output=True, timeout=DEADLINE_S, text=True)
    assert done.returncode == 0, f"{done.returncode} after {done.stdout}: {done.stderr}"
    return done.stdout.splitlines()


PREFACE = """
from trunkline.schema import Checker
from trunkline.errors import UsageError

def say(schema, *values):
    try:
        checker = Checker(schema)
    except UsageError as error:
        print("refused:", error, flush=True)
        return
    print(*[checker(value) is None for value in values], flush=True)

def deep(levels, value, wrap=lambda value: [value]):
    for _ in range(levels):
        value = wrap(value)
    return value
"""


def test_regular_expressions_answer_or_are_refused() -> None:
    said = answers("""
many = "a" * 1_000_000
say({"pattern": "^(a+)+$"}, many, many + "!")
say({"pattern": "(a|a)*b"}, many, many + "b")
say({"pattern": "^(.*a){20}$"}, many, many + "b")
say({"pattern": "[ab]*a[ab]{300}c"}, "ab" * 50_000 + "dc")
say({"propertyNames": {"pattern": "^(a+)+$"}}, {many + "!": 1})
say({"properties": {"a": {"pattern": "(a{0,1000}){0,100}b"}}})
say({"pattern": "^a{1000}{1000}$"})
say({"items": {"pattern": r"^(a)\\1$"}})
say({"pattern": "^(?=.*b)a"})
say({"pattern": "a" * 2000})
""")
    assert said[:5] == ["True False", "False True", "True False", "False", "False"]
    assert [each.partition(" cannot")[0] for each in said[5:9]] == [
        "refused: $.a: pattern",
        "refused: $: pattern",
        "refused: $[]: pattern",
        "refused: $: pattern",
    ]
    assert "look-around or back-references" in said[7]
    assert said[9] == "refused: $: a pattern may have 1000 characters, not 2000"


def test_parts_that_lead_to_each_other_in_many_ways_are_refused() -> None:
    said = answers("""
def chain(levels, join):
    parts = {"d0": {"type": "null"}}
    for n in range(1, levels):
        parts[f"d{n}"] = join({"$ref": f"#/$defs/d{n - 1}"})
    return {"$ref": f"#/$defs/d{levels - 1}", "$defs": parts}

say(chain(15, lambda ref: {"allOf": [ref, ref]}), None)
say(chain(10, lambda ref: {"allOf": [ref, {"allOf": [ref]}, {"allOf": [ref], "minLength": 0}]}), None)
say(chain(8, lambda ref: {"anyOf": [{**ref, "maxLength": n} for n in range(5)]}), 1)
say(chain(30, lambda ref: {"properties": {"a": {"allOf": [ref, ref]}}}), deep(29, 1, lambda v: {"a": v}))
say(chain(30, lambda ref: {"allOf": [{"properties": {"a": ref}}, {"additionalProperties": ref}]}))
say(chain(30, lambda ref: {"allOf": [{"items": ref}, {"prefixItems": [ref]}]}))
say({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]})
say({"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}, {"properties": {"a": {"$ref": "#"}}}]})
say(chain(1000, lambda ref: {"allOf": [ref]}))
say(chain(400, lambda ref: {"items": {"anyOf": [{"type": "null"}, ref]}}), deep(190, None), deep(450, 1))
say({"$ref": "#"})
say(chain(900, lambda ref: {"items": ref}), deep(199, None), deep(899, None), deep(899, 1), deep(5000, 1))
""")
    told = [each[:70] for each in said[:8]]
    assert told == ["refused: the schema can look at one value more than 10,000 times: allOf"[:70]] * 8
    assert said[8].startswith("refused: the schema combines more than 32 parts")
    assert said[9] == "True False"
    assert said[10].startswith("refused: the schema refers to itself")
    assert said[11] == "True True False False"


def test_what_is_deep_is_refused() -> None:
    said = answers("""
deepest = deep(100_000, 1)
say({"type": "array", "items": {"$ref": "#"}}, deepest, deep(150, []), deep(200, []), deep(201, []))
say({"uniqueItems": True}, [deepest, deepest], [deepest, 1])
say({"type": "integer"}, deepest)
say({"type": "array"}, deepest)
say({"enum": [[[1]]]}, deepest)
say({"items": {"type": "string"}}, [b"", deepest])
say(deep(100_000, {}, lambda schema: {"allOf": [schema]}))
say(deep(100_000, {}, lambda schema: {"items": schema}))
say({"properties": {"a": deep(40, {}, lambda schema: {"items": schema})}})
say({"enum": [deepest]})
import os
os._exit(0)  # the interpreter would recurse to take them apart
""")
    assert said[:6] == ["False True True False", "False False", "False", "True", "False", "False"]
    assert all(each.startswith("refused: ") for each in said[6:])
    assert said[8].startswith("refused: $.a[][]")
    assert len(said) == 10


def test_large_enums_in_many_alternatives_are_not_compared_for_long() -> None:
    said = answers("""
from trunkline.registry.compatibility import Side, breaks

many = {"enum": list(range(10_000))}
writer = {"properties": {f"f{n}": {"enum": [n]} for n in range(1900)}}
reader = {"properties": {f"f{n}": {"$ref": "#/$defs/many"} for n in range(1900)}, "$defs": {"many": many}}
try:
    breaks(Side(writer, "old"), Side(reader, "new"))
except UsageError as error:
    print(error)
""")
    assert said == ["the schema is too complicated to be compared with another one"]


def test_recursive_types_told_apart_by_a_field_stay_cheap() -> None:
    said = answers("""
parts = {
    name: {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "op": {"const": name}},
        "required": ["left", "op", "right"],
    }
    for name in ("add", "sub", "mul", "div")
}
tree = {"anyOf": [*({"$ref": f"#/$defs/{name}"} for name in parts), {"type": "integer"}], "$defs": parts}
say(tree, deep(190, 1, lambda v: {"left": v, "op": "div", "right": 1}))
print(Checker(tree)(deep(20, "x", lambda v: {"left": 1, "op": "div", "right": v})))
""")
    assert said == ["True", f"('${'.right' * 20}', 'string instead of integer or object')"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "file:///etc/hostname", "urn:x", "x.json", "#/properties/a"])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$id", "$schema"])
def test_nothing_is_fetched(url: str, keyword: str) -> None:
    schema = {keyword: url, "properties": {"a": {"type": "integer"}}}
    if keyword in ("$ref", "$dynamicRef"):
        with pytest.raises(UsageError, match=r"refers to an unknown definition|is not supported"):
            Checker(schema)
    else:
        assert Checker(schema)({"a": "x"}) == ("$.a", "string instead of integer")


def test_the_hub_names_the_field_of_a_pattern_that_it_refuses() -> None:
    schema: dict[str, Any] = {"properties": {"name": {"type": "string", "pattern": r"^(\w+)\s\1$"}}}
    with pytest.raises(ProtocolError) as caught:
        SchemaRegistry().put("people", schema)
    assert caught.value.code == "invalid_schema"
    assert caught.value.text.startswith("$.name: pattern cannot be")


def test_a_kept_schema_that_cannot_be_used_any_more_lets_nothing_through(caplog: pytest.LogCaptureFixture) -> None:
    schemas = SchemaRegistry()
    kept = KeptVersion(version="1.0.0", hash="abc", schema={"pattern": "(?=a)"})
    schemas.restore([KeptSchema(name="old", compatibility="none", versions=[kept])])
    checker = schemas.checker("abc")
    assert checker is not None
    field, why = checker("a") or ("", "")
    assert (field, why[:52]) == ("$", "the hub cannot use the schema of this channel: $: pa")
    assert "old 1.0.0 cannot be used" in caplog.text


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    for fails in (require, lambda: Checker({"type": "integer"})):
        with pytest.raises(MissingExtra) as caught:
            fails()
        assert caught.value.extra == "hub"
    with pytest.raises(ProtocolError, match=r"pip install 'trunkline\[hub\]'"):
        SchemaRegistry().put("a", {"type": "integer"})
    with pytest.raises(MissingExtra):
        SchemaRegistry().restore([KeptSchema(name="a", compatibility="none", versions=[])])
    SchemaRegistry().restore([])
