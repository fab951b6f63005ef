"""The last batches of a hub: every message in them is found by its id, large or small, until newer ones displace it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trunkline import Message, columns
from trunkline.hub import recent
from trunkline.hub.recent import Recent


def remember(known: Recent, first: int, count: int, size: int) -> None:
    messages = [Message(id=f"id-{number}", topic="t", payload=bytes(size)) for number in range(first, first + count)]
    known.remember(first, count, "t", columns.pack_batch(messages))


@pytest.mark.parametrize(("count", "size"), [(1, 10), (1, 100_000), (20, 10), (20, 100_000)])
def test_each_is_found(count: int, size: int) -> None:
    known = Recent()
    for first in range(1, 200, count + 3):
        remember(known, first, count, size)
    for first in range(1, 200, count + 3):
        for number in range(first, first + count):
            for asked in (0, number, 1):
                message = known.find(f"id-{number}", asked)
                assert message is not None
                assert (message.id, message.topic, message.seq) == (f"id-{number}", "t", number)
                if size < 100:
                    assert message.payload == bytes(size)
    assert known.find("id-") is None
    assert known.find("nonsense", 1) is None


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_BYTES", 10_000)
    known = Recent()
    for first in range(1, 1000):
        remember(known, first, 1, 100)
    assert known.find("id-1", 1) is None
    assert known.find("id-999") is not None
    assert known._bytes <= 10_000


def test_what_cannot_be_read_is_not_found() -> None:
    known = Recent()
    for body in (b"", b"\xff" * 10, b"\x93" * 10_000, b"\x82" * 10_000):
        known.remember(1, 1, "t", body)
    assert known.find("id-1") is None


@pytest.mark.parametrize("sizes", [-1, 2**40, 3, b"", b"\xff" * 8])
@pytest.mark.parametrize("size", [10, 10_000])
def test_ids_that_are_no_ids_are_not_found(sizes: int | bytes, size: int) -> None:
    """A hub passes batches on without opening them, so the ids in them are whatever a client has sent."""
    known = Recent()
    body = columns.Body(columns.Strings(b"id-1id-2", sizes), bytes(16), columns.Strings(bytes(2 * size), size), {})
    known.remember(1, 2, "t", msgspec.msgpack.encode(body))
    assert known.find("id-1") is None


def test_what_is_asked_for_costs_no_more_if_every_payload_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Recent()
    for first in range(1, 100, 10):
        remember(known, first, 10, 10)
    opened: list[str] = []
    read = columns.read

    def counted(topic: str, *rest: Any) -> list[Message]:
        opened.append(topic)
        return read(topic, *rest)

    monkeypatch.setattr(columns, "read", counted)
    for text in ("", "i", "id-", "\0"):
        assert known.find(text) is None
    assert not opened
