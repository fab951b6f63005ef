"""Settings: the documented defaults, refusals and their texts, and the precedence of sources."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from trunkline.errors import InvalidSettings
from trunkline.settings import Backpressure, Group, History, Orphans, Settings, build

GROUPS: list[type[Group]] = [Settings, Backpressure, History, Orphans]


def numbers(group: type[Group]) -> list[str]:
    default = group()
    return [
        name
        for name in group.__struct_fields__
        if isinstance(getattr(default, name), (int, float)) and not isinstance(getattr(default, name), bool)
    ]


BAD = [
    (group, name, bad)
    for group in GROUPS
    for name in numbers(group)
    for bad in ([0, -1] if isinstance(getattr(group(), name), int) else [0, -1, -0.5, math.nan, -math.inf])
    if bad != 0 or name not in group.may_be_zero
]


def write(path: Path, text: str) -> Path:
    file = path / "trunkline.toml"
    file.write_text(text)
    return file


# Defaults


def test_the_defaults_are_the_documented_ones() -> None:
    settings = Settings()
    assert settings.max_message_bytes == 10 * 1024 * 1024
    assert settings.request_timeout_s == 30
    assert settings.max_dead_letters == 1000
    assert settings.content_type == "application/msgpack"
    assert settings.backpressure.max_pending == 10_000
    assert settings.backpressure.wait_s == 0.1
    assert settings.backpressure.timeout_s == 30
    assert settings.history.enabled is True
    assert settings.history.max_messages == 10_000
    assert settings.orphans.max_messages == 1000
    assert settings.orphans.max_age_s == 60


def test_nothing_said_is_the_defaults() -> None:
    assert Settings.load(environ={}) == Settings()
    assert build(Settings, {}) == Settings()


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_frozen(group: type[Group]) -> None:
    value = group()
    for name in group.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, getattr(value, name))


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_takes_keywords_only(group: type[Any]) -> None:
    with pytest.raises(TypeError):
        group(1)


# Numbers


@pytest.mark.parametrize(("group", "name", "bad"), BAD)
def test_a_number_that_is_not_positive_is_refused(group: type[Any], name: str, bad: float) -> None:
    with pytest.raises(InvalidSettings, match=f"{group.__name__}.{name} must be above 0, not {bad!r}"):
        group(**{name: bad})


@pytest.mark.parametrize("text", ["0", "-1", "nan", "-0.0"])
@pytest.mark.parametrize("name", ["REQUEST_TIMEOUT_S", "BACKPRESSURE__WAIT_S", "ORPHANS__MAX_AGE_S"])
def test_a_number_that_is_not_positive_is_refused_from_the_environment(name: str, text: str) -> None:
    with pytest.raises(InvalidSettings, match="must be above 0"):
        Settings.load(environ={f"TRUNKLINE_{name}": text})


@pytest.mark.parametrize("text", ["0", "-1", "nan"])
def test_a_number_that_is_not_positive_is_refused_from_a_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSettings, match=r"Backpressure\.timeout_s must be above 0"):
        Settings.load(write(tmp_path, f"[bus.backpressure]\ntimeout_s = {text}"), {})


def test_nobody_needs_to_wait_for_the_end() -> None:
    assert Settings(drain_s=0).drain_s == 0
    with pytest.raises(InvalidSettings, match="drain_s"):
        Settings(drain_s=-1)


@pytest.mark.parametrize("content_type", ["application/jsn", "", "application/octet-stream"])
def test_a_format_nobody_can_write_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidSettings, match="content_type must be application/msgpack or application/json"):
        Settings(content_type=content_type)


# Keys


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"request_timeout": 5}, "unknown setting 'request_timeout': did you mean 'request_timeout_s'?"),
        ({"max_topic": 5}, "'max_topic': did you mean 'max_topics'?"),
        ({"backpresure": {}}, "'backpresure': did you mean 'backpressure'?"),
        ({"backpressure": {"max_pendng": 5}}, "'backpressure.max_pendng': did you mean 'backpressure.max_pending'?"),
        ({"orphans": {"max_age": 5}}, "'orphans.max_age': did you mean 'orphans.max_age_s'?"),
        ({"history": {"on": True}}, "'history.on': known: enabled, max_messages, max_payload_bytes"),
        ({"zzz": 1}, "'zzz': known: max_message_bytes, max_topics,"),
        ({"": 1}, "unknown setting ''"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        build(Settings, values)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TRUNKLINE_REQUEST_TIMEOUT", "'request_timeout_s'"),
        ("TRUNKLINE_BACKPRESSURE__TIMEOUT", "'backpressure.timeout_s'"),
        ("TRUNKLINE_BACKPRESSURE_TIMEOUT_S", "'request_timeout_s'"),
        ("TRUNKLINE_", "known:"),
        ("TRUNKLINE___TIMEOUT_S", "known:"),
    ],
)
def test_an_unknown_variable_names_the_nearest_setting(name: str, near: str) -> None:
    with pytest.raises(InvalidSettings, match="unknown setting") as caught:
        Settings.load(environ={name: "5"})
    assert near in str(caught.value)


def test_an_unknown_key_of_a_file_names_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"did you mean 'history\.max_messages'"):
        Settings.load(write(tmp_path, "[bus.history]\nmax_message = 5"), {})


# Types


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"max_topics": "many"}, "max_topics"),
        ({"max_topics": 1.5}, "max_topics"),
        ({"max_topics": [1]}, "max_topics"),
        ({"request_timeout_s": "soon"}, "request_timeout_s"),
        ({"request_timeout_s": None}, "request_timeout_s"),
        ({"content_type": 5}, "content_type"),
        ({"backpressure": 5}, "backpressure"),
        ({"backpressure": {"wait_s": "x"}}, "backpressure.wait_s"),
        ({"history": {"enabled": "perhaps"}}, "history.enabled"),
    ],
)
def test_a_value_of_a_wrong_type_names_its_place(values: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidSettings, match=f"bad settings: .*{where}"):
        build(Settings, values)


@pytest.mark.parametrize(
    ("group", "values"),
    [
        (Backpressure, {"max_pending": "10"}),
        (Backpressure, {"max_pending": 1.5}),
        (Backpressure, {"max_pending": None}),
        (Backpressure, {"timeout_s": "30"}),
        (History, {"enabled": "no"}),
        (Settings, {"request_timeout_s": None}),
        (Settings, {"content_type": 5}),
        (Settings, {"backpressure": {"max_pending": 5}}),
        (Settings, {"backpressure": None}),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_when_a_group_is_built_in_code(
    group: type[Any], values: dict[str, Any]
) -> None:
    (name,) = values
    with pytest.raises(InvalidSettings, match=name):
        group(**values)


def test_a_whole_number_is_a_fine_number_of_seconds() -> None:
    assert Settings(request_timeout_s=5).request_timeout_s == 5
    assert build(Settings, {"request_timeout_s": 5}).request_timeout_s == 5


# Sources


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [bus]
        max_message_bytes = 1024
        request_timeout_s = 2
        [bus.backpressure]
        max_pending = 7
        [bus.history]
        enabled = false
        [hub]
        is = "somebody else's"
        """,
    )
    settings = Settings.load(file, {})
    assert settings == Settings(
        max_message_bytes=1024,
        request_timeout_s=2.0,
        backpressure=Backpressure(max_pending=7),
        history=History(enabled=False),
    )
    assert Settings.load(str(file), {}) == settings


def test_a_file_without_our_table_changes_nothing(tmp_path: Path) -> None:
    assert Settings.load(write(tmp_path, "[hub]\nport = 1"), {}) == Settings()
    assert Settings.load(write(tmp_path, ""), {}) == Settings()


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = write(
        tmp_path, "[bus]\nmax_topics = 1\nrequest_timeout_s = 1\n[bus.backpressure]\nwait_s = 1\ntimeout_s = 1"
    )
    environ = {"TRUNKLINE_REQUEST_TIMEOUT_S": "2.5", "TRUNKLINE_BACKPRESSURE__TIMEOUT_S": "3", "PATH": "/bin"}
    settings = Settings.load(file, environ)
    assert settings.max_topics == 1
    assert settings.request_timeout_s == 2.5
    assert settings.backpressure == Backpressure(wait_s=1.0, timeout_s=3.0)


@pytest.mark.parametrize(("text", "enabled"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_a_variable_is_read_as_what_its_setting_is(text: str, enabled: bool) -> None:
    settings = Settings.load(
        environ={
            "TRUNKLINE_HISTORY__ENABLED": text,
            "TRUNKLINE_HISTORY__MAX_MESSAGES": "12",
            "TRUNKLINE_CONTENT_TYPE": "application/json",
        }
    )
    assert settings.history == History(enabled=enabled, max_messages=12)
    assert settings.content_type == "application/json"


def test_a_variable_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[bus]\nmax_topics = 3")
    assert Settings.load(environ={"TRUNKLINE_CONFIG": str(file)}).max_topics == 3


def test_a_path_wins_over_the_variable_that_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[bus]\nmax_topics = 3")
    assert Settings.load(file, {"TRUNKLINE_CONFIG": str(tmp_path / "missing.toml")}).max_topics == 3


def test_the_environment_is_that_of_the_process_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_MAX_TOPICS", "77")
    assert Settings.load().max_topics == 77
    assert Settings.load(environ={}).max_topics == Settings().max_topics


@pytest.mark.parametrize("first", ["TRUNKLINE_BACKPRESSURE", "TRUNKLINE_BACKPRESSURE__TIMEOUT_S"])
def test_a_group_cannot_be_a_value_as_well(first: str) -> None:
    names = ["TRUNKLINE_BACKPRESSURE", "TRUNKLINE_BACKPRESSURE__TIMEOUT_S"]
    names.sort(key=lambda name: name != first)
    with pytest.raises(InvalidSettings, match="backpressure"):
        Settings.load(environ=dict.fromkeys(names, "5"))


@pytest.mark.parametrize("text", ["backpressure = 5", "max_topics = 5"])
def test_a_variable_below_what_is_no_group_is_refused(tmp_path: Path, text: str) -> None:
    name = text.split()[0].upper()
    with pytest.raises(InvalidSettings, match=text.split()[0]):
        Settings.load(write(tmp_path, f"[bus]\n{text}"), {f"TRUNKLINE_{name}__TIMEOUT_S": "5"})


# Files that cannot be read


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"cannot read the settings file .*missing\.toml: No such file"):
        Settings.load(tmp_path / "missing.toml", {})


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot read the settings file"):
        Settings.load(tmp_path, {})


@pytest.mark.parametrize("text", ["[bus", "max_topics", "a = 1\na = 2", "[bus]\nmax_topics = = 5"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSettings, match=r"trunkline\.toml is not TOML: "):
        Settings.load(write(tmp_path, text), {})


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_bytes('[bus]\ncontent_type = "Straße"'.encode("latin-1"))
    with pytest.raises(InvalidSettings, match=r"trunkline\.toml is not TOML"):
        Settings.load(file, {})


@pytest.mark.parametrize("text", ["bus = 5", "bus = [1]", "[[bus]]\nmax_topics = 1"])
def test_our_table_must_be_a_table(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSettings, match=r"\[bus\] must be a table"):
        Settings.load(write(tmp_path, text), {})


names = st.lists(
    st.sampled_from(["BACKPRESSURE", "HISTORY", "MAX_TOPICS", "TIMEOUT_S", "ENABLED", "CONTENT_TYPE", "X", ""]),
    min_size=1,
    max_size=3,
).map(lambda parts: "TRUNKLINE_" + "__".join(parts))


@given(st.dictionaries(names, st.sampled_from(["5", "x", "", "true", "nan", "1e999", "-1"]), max_size=4))
@examples(max_examples=150)
def test_no_environment_raises_anything_but_our_own_error(environ: dict[str, str]) -> None:
    with contextlib.suppress(InvalidSettings):
        Settings.load(environ=environ)
