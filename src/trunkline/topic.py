"""Topics and patterns: their syntax, matching, and the tree that finds subscribers by topic.

A topic is dotted tokens, `orders.eu.placed`. In a pattern `*` stands for one token and a trailing `>` for one token or
more. Names that begin with `_` are reserved for the bus: `_to.NAME` is the topic of the endpoint NAME.
"""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from itertools import zip_longest
from typing import Final, Generic, TypeVar

from trunkline.errors import InvalidTopic

T = TypeVar("T")

MAX_TOPIC_CHARS = 255
ENDPOINT_PREFIX = "_to."
REPLY_PREFIX = "_reply."
DEAD_PREFIX = "_dead."
HEARTBEAT_PREFIX = "_heartbeat."
"""The health of the bus NAME is published on `_heartbeat.NAME`."""
KERNELS_PREFIX = "_kernel."
"""Clients look for shared kernels on `_kernel.ask`; kernels answer on `_kernel.here`."""
CONTROL = "_control"
CONTROL_PREFIX = "_control."
"""Commands for the bus NAME are published on `_control.NAME`."""
STATE_PREFIX = "_state."
"""The states of actors. Only the last message of each actor counts."""
BROADCAST = "_all"
REPLIES = "_reply"
EVERYTHING = ">"
NEVER_DURABLE = (
    REPLIES,
    f"{REPLY_PREFIX}>",
    f"{DEAD_PREFIX}>",
    f"{CONTROL_PREFIX}>",
    f"{HEARTBEAT_PREFIX}>",
    f"{KERNELS_PREFIX}>",
)
"""System topics that a journal records. Publishers never wait for that, even if all topics are durable."""
NEVER_STORED = KERNELS_PREFIX
"""System topics that are not recorded: queries about the current state."""
OWN_PREFIXES = (REPLY_PREFIX, DEAD_PREFIX)
"""System topics that need not be announced before use."""


def endpoint(name: str) -> str:
    """The topic on which the endpoint `name` receives: `bus.request(tl.endpoint("pricing"), …)`."""
    return ENDPOINT_PREFIX + name


def reply_topic(secret: str) -> str:
    """The reply topic that belongs to a secret.

    Other clients can learn the topic and answer on it, but cannot subscribe to it.
    """
    return REPLY_PREFIX + sha256(secret.encode()).hexdigest()[:32]


_MQTT = re.compile(r"[\w/-]+")
_FOREIGN_WILDCARDS = frozenset("#+")
"""Whole tokens that are wildcards in MQTT and RabbitMQ. A subscription to them as plain text would get nothing."""


def validate_topic(topic: str) -> str:
    """Check a topic, and return it. Raises InvalidTopic."""
    if topic.__class__ is not str:
        raise InvalidTopic(str(topic), f"must be text, not {type(topic).__name__}")
    return _validate_topic(topic)


@lru_cache(maxsize=4096)
def _validate_topic(topic: str) -> str:
    # Cached, because most messages use the same few topics.
    for token in _tokens(topic):
        if "*" in token or ">" in token or not _FOREIGN_WILDCARDS.isdisjoint(token.split("/")):
            raise InvalidTopic(topic, "has a wildcard: messages go to one topic, only subscriptions may use * and >")
    return topic


def validate_pattern(pattern: str) -> str:
    tokens = _tokens(pattern)
    if "#" in pattern or "+" in pattern:
        _refuse_habits(pattern)
    for index, token in enumerate(tokens):
        if token == ">" and index != len(tokens) - 1:
            raise InvalidTopic(pattern, "has a > that is not at its end")
        if token not in ("*", ">") and ("*" in token or ">" in token):
            if "/" in token:
                _refuse_habits(pattern)
            raise InvalidTopic(pattern, f"mixes a wildcard with text in {token!r}: * and > stand for whole tokens")
    return pattern


def refuse_slashes(topic: str) -> None:
    """Raises InvalidTopic for words separated by slashes, as in MQTT. Names of endpoints may contain slashes."""
    if not topic.startswith("_") and _MQTT.fullmatch(topic):
        meant = ".".join(token for token in topic.split("/") if token)
        raise InvalidTopic(topic, f"has slashes: dots separate tokens, write {meant!r}")


def _refuse_habits(pattern: str) -> None:
    """Raises InvalidTopic for the wildcards of MQTT and RabbitMQ."""
    tokens = pattern.replace("/", ".").split(".")
    meant = ".".join({"#": ">", "+": "*"}.get(token, token) for token in tokens)
    if not _FOREIGN_WILDCARDS.isdisjoint(tokens):
        raise InvalidTopic(pattern, f"has a wildcard of MQTT or RabbitMQ: write {meant!r}")
    if "/" in pattern and not {"*", ">"}.isdisjoint(tokens):
        raise InvalidTopic(pattern, f"has slashes beside a wildcard: dots separate tokens, write {meant!r}")


def _tokens(text: str) -> list[str]:
    if not isinstance(text, str):
        raise InvalidTopic(str(text), f"must be text, not {type(text).__name__}")
    if not text:
        raise InvalidTopic(text, "is empty: use dotted words, such as orders.eu.placed")
    if len(text) > MAX_TOPIC_CHARS:
        raise too_long(text)
    if not text.isprintable() or " " in text:
        raise InvalidTopic(text, "has spaces or control characters")
    tokens = text.split(".")
    if "" in tokens:
        raise InvalidTopic(text, "has an empty token: two dots in a row, or one at an end")
    return tokens


def too_long(text: str) -> InvalidTopic:
    return InvalidTopic(text[:40] + "…", f"has {len(text)} characters, more than {MAX_TOPIC_CHARS}")


def is_wild(pattern: str) -> bool:
    """Whether a pattern contains a wildcard."""
    return "*" in pattern or pattern.endswith(">")


def matches(pattern: str, topic: str) -> bool:
    wanted = pattern.split(".")
    given = topic.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def regex(pattern: str) -> str:
    """A pattern as a regular expression that means the same in Arrow, Java and Python."""
    tokens = {"*": "[^.]+", ">": ".+"}
    return f"^{'[.]'.join(tokens.get(token) or re.escape(token) for token in pattern.split('.'))}$"


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that matches the pattern `narrow` also matches `wide`."""
    given = narrow.split(".")
    wanted = wide.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or given[index] == ">" or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def overlaps(one: str, other: str) -> bool:
    """Whether some topic matches both patterns."""
    for left, right in zip_longest(one.split("."), other.split(".")):
        if left is None or right is None:
            return False
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return True


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: list[T] = []


class TopicTree(Generic[T]):
    """Values by pattern. The cost of a lookup depends on the number of matches, not on the number of stored values."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: str, value: T) -> None:
        node = self._root
        for token in pattern.split("."):
            node = node.children.setdefault(token, _Node())
        node.values.append(value)
        self._size += 1

    def remove(self, pattern: str, value: T) -> bool:
        """Remove this very value (by identity); False if it was not there."""
        path = [self._root]
        tokens = pattern.split(".")
        for token in tokens:
            child = path[-1].children.get(token)
            if child is None:
                return False
            path.append(child)
        values = path[-1].values
        for index, present in enumerate(values):
            if present is value:
                del values[index]
                break
        else:
            return False
        self._size -= 1
        for parent, token, node in zip(path[-2::-1], tokens[::-1], path[:0:-1], strict=True):
            if node.values or node.children:
                break
            del parent.children[token]
        return True

    def match(self, topic: str) -> list[T]:
        return list(self._walk(topic.split(".")))

    def _walk(self, tokens: list[str]) -> Iterator[T]:
        nodes = [self._root]
        for token in tokens:
            below: list[_Node[T]] = []
            for node in nodes:
                children = node.children
                if (rest := children.get(">")) is not None:
                    yield from rest.values
                if (exact := children.get(token)) is not None:
                    below.append(exact)
                if (any_one := children.get("*")) is not None:
                    below.append(any_one)
            nodes = below
        for node in nodes:
            yield from node.values

    def patterns(self) -> Iterator[str]:
        """The patterns that have a value, shorter ones first."""
        nodes = deque([("", self._root)])
        while nodes:
            pattern, node = nodes.popleft()
            if node.values:
                yield pattern
            nodes.extend((f"{pattern}.{token}" if pattern else token, child) for token, child in node.children.items())

    def values(self) -> Iterator[T]:
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            yield from node.values
            nodes.extend(node.children.values())


def nearest(topic: str, patterns: Iterable[str]) -> list[str]:
    """Up to three patterns that are most similar to the topic. Reply topics are left out."""
    own = topic.startswith("_")
    known = {each for each in patterns if each.startswith("_") is own and not each.startswith(REPLY_PREFIX)}
    return difflib.get_close_matches(topic, sorted(known), n=3)


MAX_NAME_CHARS: Final = 200


def logical_name(channel: str, prefix: str = "trunkline") -> str:
    """The name of a channel's shared memory: `/trunkline_sensor_data`.

    It is unique for each channel: a character that is not allowed is replaced by its code in hexadecimal, such as
    `=2F`, and a long name ends with its hash.
    """
    validate_topic(channel)
    safe = re.sub(r"[^A-Za-z0-9_.-]", lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), channel)
    if len(safe) > MAX_NAME_CHARS:
        safe = f"{safe[: MAX_NAME_CHARS - 40]}=={sha256(channel.encode()).hexdigest()[:32]}"
    return f"/{prefix}_{safe}"
