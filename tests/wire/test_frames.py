"""Frames: a stream gives the same frames however it is split, and any bytes are a frame or raise ProtocolError."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import ProtocolError
from trunkline.wire import control, frames
from trunkline.wire.frames import FIRST_FRAME_BYTES, LENGTH, DeliverHead, Kind, PublishHead, Splitter

payloads = st.lists(st.binary(min_size=1, max_size=60), max_size=12)
cuts = st.lists(st.integers(0, 800), max_size=12)
counts = st.integers(1, 50)
numbers = st.integers(1, 2**53)

publish_heads = st.builds(
    PublishHead,
    number=st.integers(0, 2**63),
    topic=st.text(max_size=40),
    count=counts,
    priority=st.integers(0, 100),
    requires_ack=st.booleans(),
    ttl_s=st.none() | st.floats(1e-6, 1e9),
    again=st.booleans(),
    position=st.integers(0, 2**60),
)
deliver_heads = counts.flatmap(
    lambda count: st.builds(
        DeliverHead,
        subscription=st.integers(-5, 2**63),
        first=numbers,
        topic=st.text(max_size=40),
        count=st.just(count),
        seqs=st.none() | st.lists(numbers, min_size=count, max_size=count),
        origin=st.integers(0, 2**63),
        position=st.integers(0, 2**60),
        priority=st.integers(0, 100),
    )
)


def stream_of(payloads: list[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(payload)) + payload for payload in payloads)


def pieces(stream: bytes, at: list[int]) -> list[bytes]:
    borders = sorted({0, len(stream), *(cut for cut in at if cut < len(stream))})
    return [stream[begin:end] for begin, end in pairwise(borders)]


def fed(splitter: Splitter, parts: list[bytes]) -> list[bytes]:
    return [bytes(frame) for part in parts for frame in splitter.feed(part)]


@given(payloads, cuts)
def test_any_cut_gives_the_same_frames(payloads: list[bytes], at: list[int]) -> None:
    splitter = Splitter()
    assert fed(splitter, pieces(stream_of(payloads), at)) == payloads
    assert splitter.broken is None


@given(payloads, st.integers(101, 2**32 - 1) | st.just(0), st.binary(max_size=50), cuts)
def test_what_comes_before_a_bad_length_is_not_lost(
    payloads: list[bytes], bad: int, rest: bytes, at: list[int]
) -> None:
    splitter = Splitter(max_bytes=100)
    stream = stream_of(payloads) + LENGTH.pack(bad) + rest
    assert fed(splitter, pieces(stream, at)) == payloads
    assert splitter.broken is not None
    assert splitter.broken.code == "too_large"
    assert fed(splitter, [stream_of([b"more"])]) == []


def test_the_first_frame_is_small() -> None:
    """Before HELLO, no large frame is kept."""
    splitter = Splitter()
    splitter.feed(LENGTH.pack(FIRST_FRAME_BYTES + 1))
    assert splitter.broken is not None
    splitter = Splitter()
    large = bytes(FIRST_FRAME_BYTES + 1)
    assert fed(splitter, [stream_of([b"hello", large])]) == [b"hello", large]


def test_byte_by_byte_costs_no_more_than_the_bytes() -> None:
    splitter = Splitter()
    payload = bytes(range(256)) * 40
    parts = [bytes([byte]) for byte in stream_of([payload, payload])]
    for index, part in enumerate(parts[: len(parts) // 2 - 1]):
        assert splitter.feed(part) == []
        assert len(splitter._parts) <= 1025, index
    assert fed(splitter, parts[len(parts) // 2 - 1 :]) == [payload, payload]


@given(st.binary(max_size=300), cuts)
def test_any_stream_is_frames_or_broken(stream: bytes, at: list[int]) -> None:
    splitter = Splitter(max_bytes=100)
    for frame in fed(splitter, pieces(stream, at)):
        assert 0 < len(frame) <= 100


@given(publish_heads, st.binary(max_size=30))
def test_publish_round_trip(head: PublishHead, more: bytes) -> None:
    body = bytes(8 * head.count) + more
    opened, rest = frames.open_publish(memoryview(frames.publish(head, body)))
    assert (opened, bytes(rest)) == (head, body)


@given(deliver_heads, st.binary(max_size=30))
def test_deliver_round_trip(head: DeliverHead, more: bytes) -> None:
    body = bytes(8 * head.count) + more
    opened, rest = frames.open_deliver(memoryview(b"".join(frames.deliver(head, body))))
    assert (opened, bytes(rest)) == (head, body)


@pytest.mark.parametrize("open_frame", [frames.open_publish, frames.open_deliver])
@given(data=st.data())
def test_any_bytes_are_a_frame_or_protocol_error(open_frame: Any, data: st.DataObject) -> None:
    head = data.draw(publish_heads | deliver_heads)
    whole = bytearray(frames._start(data.draw(st.sampled_from(Kind)), head) + bytes(8 * head.count))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)):
        whole[at] = data.draw(st.integers(0, 255))
    del whole[data.draw(st.integers(0, len(whole))) :]
    read(open_frame, bytes(whole))
    read(open_frame, data.draw(st.binary(max_size=200)))


def read(open_frame: Any, frame: bytes) -> None:
    try:
        head, body = open_frame(memoryview(frame))
    except ProtocolError:
        return
    assert 0 < head.count * 8 <= len(body)


@pytest.mark.parametrize(
    "values",
    [
        {"count": 0},
        {"count": -1},
        {"count": 2**63},
        {"count": 5},
        {"number": -1},
        {"priority": -1},
        {"priority": 101},
        {"ttl_s": 0.0},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"position": -1},
        {"position": 2**63},
    ],
    ids=str,
)
def test_heads_of_publish_that_cannot_be(values: dict[str, Any]) -> None:
    head = PublishHead(**{"number": 1, "topic": "t", "count": 4, **values})
    with pytest.raises(ProtocolError):
        frames.open_publish(memoryview(frames.publish(head, bytes(32))))


@pytest.mark.parametrize(
    "values",
    [
        {"count": 0},
        {"count": 2**63},
        {"first": 0},
        {"first": 2**63},
        {"seqs": [1, 2, 3]},
        {"seqs": [1, 2, 3, 0]},
        {"seqs": [1, 2, 3, 2**63]},
    ],
    ids=str,
)
def test_heads_of_deliver_that_cannot_be(values: dict[str, Any]) -> None:
    head = DeliverHead(**{"subscription": 1, "first": 1, "topic": "t", "count": 4, **values})
    with pytest.raises(ProtocolError):
        frames.open_deliver(memoryview(b"".join(frames.deliver(head, bytes(32)))))


def test_a_head_that_is_too_large_is_not_written() -> None:
    with pytest.raises(ProtocolError) as caught:
        frames.publish(PublishHead(1, "t" * 70_000, 1), bytes(8))
    assert caught.value.code == "too_large"


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
tags = st.sampled_from([kind.__struct_config__.tag for kind in (*control.FROM_CLIENT, *control.FROM_HUB)])
names = st.sampled_from(["id", "re", "topic", "pattern", "subscription", "ranges", "versions", "name", "credit", "qos"])


@given(
    st.binary(max_size=100)
    | st.builds(lambda tag, rest: control_bytes({**rest, "type": tag}), tags, st.dictionaries(names, json_values))
)
def test_any_bytes_are_a_control_message_or_protocol_error(data: bytes) -> None:
    for reader, kinds in ((control.read_from_client, control.FROM_CLIENT), (control.read_from_hub, control.FROM_HUB)):
        try:
            said = reader(data)
        except ProtocolError:
            continue
        assert type(said) in kinds


def control_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
def test_deep_nesting_is_malformed(depth: int) -> None:
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
        data = b'{"type":"STATS","id":1,"x":' + opened * depth + b"1" + closed * depth + b"}"
        try:
            control.read_from_client(data)
        except ProtocolError:
            continue
        assert depth == 100
