"""The options of `format("trunkline")` for writing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from trunkline.connect import SCHEMES
from trunkline.errors import InvalidSettings, UnknownScheme
from trunkline.settings import Group, build
from trunkline.topic import DEAD_PREFIX, validate_topic
from trunkline.transports.schemes import TRANSPORTS, scheme_of

INSIDE = (*SCHEMES, "pair")
"""Schemes that work in one process only."""
OF_SPARK = ("checkpointlocation", "queryname")
"""Options that are meant for Spark itself."""


class Check(StrEnum):
    """When the hub checks whether it already has a batch."""

    AUTO = "auto"
    """When Spark retries a task, in the first epoch after a start, and if `query` is given."""
    ALWAYS = "always"
    NEVER = "never"


class SinkOptions(Group, frozen=True, kw_only=True):
    """`timeout_s` limits how long a task waits for subscribers without room, `connect_s` for an unavailable hub.

    `query` names a batch write. If it is written again under the same name, it adds nothing to durable topics. The
    write fails if more than `max_errors` rows cannot be published.
    """

    may_be_zero = frozenset({"max_errors"})

    bus: str = ""
    topic: str | None = None
    name: str = "spark"
    """The sender, unless a row has its own."""
    content_type: str | None = None
    query: str | None = None
    check: Check = Check.AUTO
    timeout_s: float = 300.0
    connect_s: float = 30.0
    max_errors: int | None = None
    keys: str | None = None
    """The directory of keys on the machines of the executors, for `tcp:` and `zmq+tcp:`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bus:
            raise InvalidSettings('which bus? Give its address: .option("bus", "unix:///run/x.sock")')
        scheme = scheme_of(self.bus) if ":" in self.bus else ""
        if scheme in INSIDE:
            raise InvalidSettings(
                f"bus={self.bus!r} works in one process only, and Spark's workers are other processes: "
                'start a hub with "trunkline up", and give its address'
            )
        if scheme not in TRANSPORTS:
            raise UnknownScheme(self.bus, [f"{known}:" for known in TRANSPORTS if known not in INSIDE])
        if scheme == "unix" and not self.bus.startswith("unix:///"):
            raise InvalidSettings(f"bus={self.bus!r}: give an absolute path, Spark's workers run in other processes")
        if self.topic is not None:
            validate_topic(self.topic)
        if not self.name:
            raise InvalidSettings("name is empty: leave it out, or name the sender")
        if self.content_type == "":
            raise InvalidSettings("content_type is empty: leave it out, or name the format of the payloads")
        validate_topic(self.letters)

    @property
    def letters(self) -> str:
        """The topic for notices of rows that cannot be published."""
        return f"{DEAD_PREFIX}spark.{_token(self.name)}"


def _token(name: str) -> str:
    """A name as one token of a topic."""
    return "".join("-" if sign in ".*> " or not sign.isprintable() else sign for sign in name)[:100]


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises InvalidSettings, which names the nearest known option if one is unknown."""
    values = {name.lower(): value for name, value in options.items()}
    if "path" in values:
        raise InvalidSettings('messages go to a bus, not to a path: .option("bus", "unix:///run/x.sock") and save()')
    name = values.get("queryname")
    if name and "name" not in values:
        values["name"] = name
    return build(SinkOptions, {name: value for name, value in values.items() if name not in OF_SPARK})
