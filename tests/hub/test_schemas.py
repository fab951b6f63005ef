"""The schema registry: versions are counted by what a change breaks, and everything is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub.shapes import NAMES, SCHEMAS
from trunkline import ProtocolError
from trunkline.registry.schemas import FIRST, MODES, SchemaLimits, SchemaRegistry, Version
from trunkline.schema import hash_of


def code_of(put: Any) -> tuple[str, str]:
    with pytest.raises(ProtocolError) as caught:
        put()
    return caught.value.code, caught.value.text


INT: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
TEXT: dict[str, Any] = {"type": "string"}
ORDER: dict[str, Any] = {"type": "object", "properties": {"price": NUMBER}, "required": ["price"]}


def test_versions_follow_the_change() -> None:
    schemas = SchemaRegistry()
    assert schemas.put("a", INT).version == "1.0.0"
    assert schemas.put("a", {**INT, "description": "the same"}).version == "1.0.0"
    assert schemas.put("a", NUMBER).version == "1.1.0"
    assert schemas.put("a", INT).version == "1.0.0", "a producer that did not change is where it was"
    code, text = code_of(lambda: schemas.put("a", TEXT))
    assert code == "incompatible"
    assert text == "a is not backward compatible with 1.1.0: $: number in 1.1.0, string in the new version"
    assert schemas.put("a", TEXT, compatibility="none").version == "2.0.0"
    assert [info.version for info in schemas.overview("a")] == ["1.0.0", "1.1.0", "2.0.0"]
    assert {info.compatibility for info in schemas.overview("a")} == {"none"}, "the mode is of the name"


def test_versions_that_are_given_must_fit() -> None:
    schemas = SchemaRegistry()
    assert schemas.put("a", INT, "0.3.1", "none").version == "0.3.1"
    assert code_of(lambda: schemas.put("a", NUMBER, "0.3.1"))[0] == "invalid_version"
    assert code_of(lambda: schemas.put("a", NUMBER, "0.3.0"))[0] == "invalid_version"
    assert code_of(lambda: schemas.put("a", INT, "0.4.0"))[1] == "a 0.3.1 is the same schema: it cannot also be 0.4.0"
    assert code_of(lambda: schemas.put("a", TEXT, "0.9.0"))[1].startswith("a 0.9.0 must be at least 1.0.0: $: integer")
    assert schemas.put("a", NUMBER, "0.3.2").version == "0.3.2"
    assert schemas.put("a", TEXT, "3.0.0").version == "3.0.0"
    for wrong in ("1", "1.0", "1.0.0.0", "v1.0.0", "1.0.-1", "01.0.0", "1.0.0-beta", "٣.0.0", "9" * 20 + ".0.0"):
        assert code_of(lambda wrong=wrong: schemas.put("a", TEXT, wrong))[0] == "invalid_version"


@pytest.mark.parametrize(
    ("mode", "first", "then", "goes"),
    [
        ("backward", INT, NUMBER, True),
        ("backward", NUMBER, INT, False),
        ("forward", INT, NUMBER, False),
        ("forward", NUMBER, INT, True),
        ("full", INT, NUMBER, False),
        ("full", NUMBER, INT, False),
        ("full", ORDER, {**ORDER, "properties": {**ORDER["properties"], "note": TEXT}}, True),
        ("none", NUMBER, TEXT, True),
    ],
)
def test_modes(mode: str, first: Any, then: Any, goes: bool) -> None:
    schemas = SchemaRegistry()
    schemas.put("a", first, compatibility=mode)
    if goes:
        assert schemas.put("a", then).version == ("2.0.0" if mode == "none" else "1.1.0")
    else:
        assert code_of(lambda: schemas.put("a", then))[0] == "incompatible"


@given(SCHEMAS, NAMES, SCHEMAS)
def test_an_optional_field_more_is_always_a_minor_version(schema: Any, name: str, more: Any) -> None:
    schemas = SchemaRegistry()
    base = {"type": "object", "properties": {"first": schema}, "required": ["first"]}
    schemas.put("s", base)
    wider = {**base, "properties": {"first": schema, name: more}}
    assert schemas.put("s", wider).version == "1.1.0"


VERSIONS = st.builds(Version, st.integers(0, 999), st.integers(0, 999), st.integers(0, 999))


@given(VERSIONS, st.booleans())
def test_the_next_version_is_above(version: Version, breaking: bool) -> None:
    after = version.after(breaking=breaking)
    assert after > version
    assert (after.major > version.major) == breaking
    assert Version.read(str(version)) == version


@given(st.lists(st.tuples(st.sampled_from([INT, NUMBER, TEXT, {}, ORDER]), st.sampled_from(["", *MODES])), max_size=12))
def test_versions_rise_and_hashes_find_them(puts: list[tuple[Any, str]]) -> None:
    schemas = SchemaRegistry()
    for schema, mode in puts:
        try:
            info = schemas.put("s", schema, compatibility=mode)
        except ProtocolError:
            continue
        assert schemas.get(hash=info.hash).schema == schema
        assert schemas.get("s", info.version).hash == info.hash == hash_of(schema)
    versions = [Version.read(info.version) for info in schemas.overview("s")]
    assert versions == sorted(set(versions))
    assert versions[:1] in ([], [FIRST])


def test_getting_and_listing() -> None:
    schemas = SchemaRegistry()
    first = schemas.put("orders.placed", INT)
    last = schemas.put("orders.placed", NUMBER)
    schemas.put("b", TEXT)
    assert schemas.get("orders.placed").version == last.version
    assert schemas.get("orders.placed", "1.0.0").schema == INT
    assert schemas.get(hash=first.hash).name == "orders.placed"
    assert [(info.name, info.version, info.schema) for info in schemas.overview()] == [
        ("b", "1.0.0", {}),
        ("orders.placed", "1.1.0", {}),
    ]
    assert schemas.overview("nobody") == []
    for wrong in ({"name": "nobody"}, {"name": "b", "version": "7.0.0"}, {"hash": "abc"}, {}):
        assert code_of(lambda wrong=wrong: schemas.get(**wrong))[0] == "unknown_schema"
    assert first.hash in schemas
    assert schemas.checker("abc") is None
    checker = schemas.checker(first.hash)
    assert checker is not None
    assert checker is schemas.checker(first.hash)


def test_it_is_bounded() -> None:
    schemas = SchemaRegistry(SchemaLimits(schemas=2, schema_bytes=100, total_bytes=120))
    assert code_of(lambda: schemas.put("a", {"description": "x" * 100}))[0] == "too_large"
    schemas.put("a", {**INT, "description": "x" * 40})
    assert code_of(lambda: schemas.put("b", {**TEXT, "description": "x" * 40}))[0] == "too_many"
    schemas.put("b", TEXT)
    assert code_of(lambda: schemas.put("c", NUMBER))[1] == "there are already 2 schemas, which is the limit"
    assert len(schemas) == 2
    assert schemas.put("a", INT).version == "1.0.0"


@pytest.mark.parametrize(
    ("name", "schema", "mode", "code"),
    [
        ("a b", INT, "", "invalid_topic"),
        ("a", INT, "sideways", "malformed"),
        ("a", {"minimun": 3}, "", "invalid_schema"),
        ("a", {"$ref": "#"}, "", "invalid_schema"),
    ],
)
def test_refuses_what_makes_no_sense(name: str, schema: Any, mode: str, code: str) -> None:
    schemas = SchemaRegistry()
    assert code_of(lambda: schemas.put(name, schema, compatibility=mode))[0] == code
    assert len(schemas) == 0


def test_what_cannot_be_compared_is_refused_or_a_new_major_version() -> None:
    tangled = {"allOf": [{"anyOf": [{"minimum": n}, {"maximum": n}]} for n in range(60)]}
    schemas = SchemaRegistry()
    schemas.put("a", tangled)
    code, text = code_of(lambda: schemas.put("a", INT))
    assert (code, text) == ("invalid_schema", "the schema is too complicated to be compared with another one")
    assert schemas.put("a", INT, compatibility="none").version == "2.0.0"
