"""The settings of a bus, in frozen groups that are checked when built; from code, a TOML file, or the environment."""

from __future__ import annotations

import difflib
import enum
import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import msgspec
from msgspec.structs import force_setattr

from trunkline.codec import JSON, MSGPACK
from trunkline.errors import InvalidSettings

ELSEWHERE = frozenset(
    f"TRUNKLINE_{name}" for name in ("CACHE", "CONFIG", "INSECURE", "KEYS", "PAGE_TOKEN", "RUNTIME", "SPARK_MASTER")
)
"""Environment variables that are not settings of a bus: the places of keys, sockets, caches and Spark."""

G = TypeVar("G", bound=msgspec.Struct)


class GroupMeta(msgspec.StructMeta):
    """Turns a misspelt keyword into InvalidSettings."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except TypeError as error:
            wrong = error
        _refuse_unknown(cls, values, "")
        raise wrong


class Group(msgspec.Struct, metaclass=GroupMeta, frozen=True, kw_only=True):
    """A settings group. Every number in it must be above 0; numbers in `may_be_zero` may also be 0."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            place = f"{type(self).__name__}.{field.name}"
            if _is_group(field.type):
                if not isinstance(value, field.type):
                    raise InvalidSettings(f"{place} must be a {field.type.__name__}, not {value!r}")
                continue
            try:
                # Converts where possible (the text of an enum), and refuses values of a wrong type.
                force_setattr(self, field.name, msgspec.convert(value, field.type))
            except msgspec.ValidationError as error:
                raise InvalidSettings(f"{place} is {value!r}: {error}") from error
            except TypeError:
                # Not a type that msgspec knows (exception classes): checked where the group is used.
                continue
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if field.name in self.may_be_zero and value == 0:
                    continue
                if not value > 0:
                    raise InvalidSettings(f"{place} must be above 0, not {value!r}")


@cache
def _fields(group: type) -> tuple[msgspec.structs.FieldInfo, ...]:
    # Resolving the annotations of a group costs more than all other steps.
    return msgspec.structs.fields(group)


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Group)


class Backpressure(Group, frozen=True, kw_only=True):
    """How publishers are slowed down.

    `max_pending` bounds each inbox by default, and how many publishes may wait for room at once. A publisher that waits
    is woken when there is room, and gets BackpressureTimeout after `timeout_s`. The wait is logged at level DEBUG after
    `wait_s`, and then each time after twice as long.
    """

    max_pending: int = 10_000
    wait_s: float = 0.1
    timeout_s: float = 30.0


class History(Group, frozen=True, kw_only=True):
    """The accepted messages that a bus remembers: the last `max_messages`, with payloads up to `max_payload_bytes`."""

    enabled: bool = True
    max_messages: int = 10_000
    max_payload_bytes: int = 4096


class Orphans(Group, frozen=True, kw_only=True):
    max_messages: int = 1000
    max_age_s: float = 60.0


class Settings(Group, frozen=True, kw_only=True):
    may_be_zero = frozenset({"drain_s"})

    max_message_bytes: int = 10 * 1024 * 1024
    max_topics: int = 100_000
    request_timeout_s: float = 30.0
    max_dead_letters: int = 1000
    drain_s: float = 5.0
    heartbeat_s: float | None = None
    """The interval at which a bus publishes its health; None turns this off."""
    warn_blocked_s: float | None = 1.0
    """A handler that blocks the event loop for this long is logged, with its line; None turns this off."""
    content_type: str = MSGPACK
    backpressure: Backpressure = Backpressure()
    history: History = History()
    orphans: Orphans = Orphans()
    hub: str = ""
    """The default address of `connect()` and of the commands, for example `hub:`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.content_type not in (MSGPACK, JSON):
            raise InvalidSettings(f"content_type must be {MSGPACK} or {JSON}, not {self.content_type!r}")

    @classmethod
    def load(cls, path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the defaults, then the `[bus]` table of a TOML file, then `TRUNKLINE_*` variables.

        Later values take precedence. `TRUNKLINE_BACKPRESSURE__TIMEOUT_S=5` sets `backpressure.timeout_s`; `none` is
        None. The file is `path`, or `TRUNKLINE_CONFIG`.
        """
        environ = os.environ if environ is None else environ
        path = path or environ.get("TRUNKLINE_CONFIG") or None
        values: dict[str, Any] = {}
        if path is not None:
            values = _read_toml(Path(path))
        for name, text in environ.items():
            if name.startswith("TRUNKLINE_") and name not in ELSEWHERE:
                *groups, key = name.removeprefix("TRUNKLINE_").lower().split("__")
                table = values
                for group in groups:
                    table = table.setdefault(group, {})
                    if not isinstance(table, dict):
                        raise InvalidSettings(f"{name} sets a part of {group!r}, which is set as a whole elsewhere")
                if isinstance(table.get(key), dict):
                    raise InvalidSettings(f"{name} sets {key!r} as a whole, and parts of it are set elsewhere")
                table[key] = None if text.lower() == "none" else text
        return build(cls, values)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("bus", {})
    except OSError as error:
        raise InvalidSettings(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} is not TOML: {error}") from error
    if not isinstance(table, dict):
        raise InvalidSettings(f"{path}: [bus] must be a table")
    return table


def build(group: type[G], values: Mapping[str, Any]) -> G:
    """A group from plain values (texts are converted); an unknown key names the nearest known one."""
    _refuse_unknown(group, values, "")
    try:
        return msgspec.convert(values, group, strict=False)
    except InvalidSettings:
        raise
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"bad settings: {_problem(group, values) or error}") from error


def _problem(group: type, values: Mapping[str, Any], prefix: str = "") -> str:
    """The value that is not valid, and what is expected; empty if all values are valid."""
    for field in _fields(group):
        if field.name not in values:
            continue
        name, value, kind = prefix + field.name, values[field.name], _without_none(field.type)
        try:
            msgspec.convert(value, field.type, strict=False)
        except InvalidSettings as error:
            return str(error)
        except msgspec.ValidationError as error:
            if _is_group(kind):
                if isinstance(value, Mapping):
                    return _problem(kind, value, f"{name}.") or f"{name}: {error}"
                first = _fields(kind)[0].name
                return f"{name} must be a {kind.__name__}, for example {kind.__name__}({first}=…), not {value!r}"
            if isinstance(kind, type) and issubclass(kind, enum.Enum):
                return f"{name} must be one of {', '.join(str(each.value) for each in kind)}, not {value!r}"
            return f"{name} is {value!r}: {str(error).partition(' - at ')[0]}"
        except TypeError:
            # Not a type that msgspec knows: checked where the group is used.
            continue
    return ""


def _without_none(kind: Any) -> Any:
    """The type of an optional value."""
    others = [each for each in get_args(kind) if each is not type(None)]
    return others[0] if len(others) == 1 and type(None) in get_args(kind) else kind


def _refuse_unknown(group: type, values: Mapping[str, Any], prefix: str) -> None:
    known = {field.name: field.type for field in _fields(group)}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix + near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise InvalidSettings(f"unknown setting {prefix + key!r}: {hint}")
        inner = known[key]
        if isinstance(value, Mapping) and _is_group(inner):
            _refuse_unknown(inner, value, f"{prefix}{key}.")
