"""The parts of JetStream's JSON API that are used here: streams, consumers, single messages."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, NamedTuple

from nats.aio.client import Client
from trunkline.brokers.nats.refusals import NO_CONSUMER, NO_MESSAGE, NO_STREAM, JetStreamRefused, of_answer, translated
from trunkline.topic import covers, overlaps

ASK_S = 5.0


class StoredMessage(NamedTuple):
    seq: int
    subject: str
    data: bytes
    time: str


class PlaceInStream(NamedTuple):
    deliveries: int
    """How often this message was delivered to its consumer, including this time."""
    seq: int
    delivered: int
    """How many messages were delivered to the consumer, including this one."""
    stored_ns: int
    pending: int
    """How many more stored messages match the consumer."""


def place_in_stream(reply: str) -> PlaceInStream | None:
    """The metadata in the subject by which a message is acknowledged; None if it is another subject."""
    tokens = reply.split(".")
    if len(tokens) < 9:
        return None
    # With a domain and an account, two more tokens precede the name of the stream.
    at = 4 if len(tokens) == 9 else 6
    return PlaceInStream(*map(int, tokens[at : at + 5]))


class JetStream:
    """The API on one connection. Raises JetStreamRefused and EngineUnavailable."""

    def __init__(self, connection: Client, url: str) -> None:
        self._connection = connection
        self._url = url

    async def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        body = json.dumps(fields).encode() if fields else b""
        with translated(self._url):
            answer = await self._connection.request(f"$JS.API.{what}", body, timeout=ASK_S)
        found: dict[str, Any] = json.loads(answer.data)
        if (error := of_answer(found)) is not None:
            raise error
        return found

    async def stream(self, name: str, **fields: Any) -> dict[str, Any] | None:
        return await self._or_none(NO_STREAM, f"STREAM.INFO.{name}", **fields)

    async def consumer(self, stream: str, name: str) -> dict[str, Any] | None:
        return await self._or_none(NO_CONSUMER, f"CONSUMER.INFO.{stream}.{name}")

    async def put_consumer(self, stream: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
        return await self.ask(f"CONSUMER.CREATE.{stream}.{name}", stream_name=stream, config=config)

    async def drop_consumer(self, stream: str, name: str) -> bool:
        return await self._or_none(NO_CONSUMER, f"CONSUMER.DELETE.{stream}.{name}") is not None

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = await self.ask(f"CONSUMER.LIST.{stream}", offset=len(found))
            found += page.get("consumers") or []
            if len(found) >= int(page.get("total", 0)) or not page.get("consumers"):
                return found

    async def message(self, stream: str, **which: Any) -> StoredMessage | None:
        """A message by `seq`, by `last_by_subj`, or the first one from `seq` on that matches `next_by_subj`."""
        found = await self._or_none(NO_MESSAGE, f"STREAM.MSG.GET.{stream}", **which)
        if found is None:
            return None
        each = found["message"]
        return StoredMessage(each["seq"], each["subject"], b64decode(each.get("data", "")), each["time"])

    async def purge(self, stream: str, subject: str) -> None:
        await self.ask(f"STREAM.PURGE.{stream}", filter=subject)

    async def _or_none(self, missing: int, what: str, **fields: Any) -> dict[str, Any] | None:
        try:
            return await self.ask(what, **fields)
        except JetStreamRefused as error:
            if error.number != missing:
                raise
            return None


def merged(patterns: Sequence[str]) -> list[str]:
    """Patterns that do not overlap, and together match everything that the given ones match.

    The subjects of a stream must not overlap. A pattern that another one covers is omitted. Two patterns that overlap
    in part are replaced by one that matches both, and more.
    """
    found: list[str] = []
    for pattern in patterns:
        while (other := next((each for each in found if overlaps(each, pattern)), None)) is not None:
            found.remove(other)
            pattern = (
                other if covers(other, pattern) else pattern if covers(pattern, other) else _widened(other, pattern)
            )
        found.append(pattern)
    return sorted(found)


def _widened(one: str, other: str) -> str:
    left, right = one.split("."), other.split(".")
    tokens: list[str] = []
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return ".".join([*tokens, ">"])
        tokens.append(a if a == b else "*")
    return ".".join(tokens)


def intersection(one: str, other: str) -> str | None:
    """The pattern of the topics that match both; None if there are none."""
    if not overlaps(one, other):
        return None
    left, right = one.split("."), other.split(".")
    tokens: list[str] = []
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if ">" in (a, b):
            return ".".join([*tokens, *(right if a == ">" else left)[at:]])
        tokens.append(b if a == "*" else a)
    return ".".join(tokens)
