"""Jupyter's frames: jupyter_client and our client read each other's messages, and all other bytes are refused."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from trunkline.errors import UsageError
from trunkline.jupyter.wire import DELIMITER, REMEMBERED, Fault, Header, KernelMessage, KernelWire, Unreadable
from trunkline.message import MessageType
from trunkline.topic import validate_topic

KEY = b"a key"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
CONTENT = st.dictionaries(st.text(), JSON, max_size=4)


def wire(key: bytes = KEY) -> KernelWire:
    return KernelWire("k1", lambda: 1, key)


def frames(header: Any = None, parent: Any = None, content: Any = None, *, key: bytes = KEY) -> list[bytes]:
    head = {"msg_id": "m1", "msg_type": "stream", "session": "s"} if header is None else header
    parts = [json.dumps(each).encode() for each in (head, parent or {}, {}, content or {})]
    return [DELIMITER, wire(key).sign(parts), *parts]


@given(content=CONTENT, buffers=st.lists(st.binary(max_size=20), max_size=3))
def test_what_jupyter_client_writes_is_read(content: dict[str, Any], buffers: list[bytes]) -> None:
    session = Session(key=KEY)
    parent = session.msg("execute_request")
    sent = session.msg("stream", content, parent=parent)
    got = wire().unpack("iopub", [b"topic", *session.serialize(sent), *buffers])
    assert got.content == json.loads(json.dumps(content))
    assert got.header.msg_id == got.id == sent["header"]["msg_id"]
    assert got.request_id == got.correlation_id == parent["header"]["msg_id"]
    assert got.parent.session == session.session
    assert got.topic == "kernel.k1.iopub.stream"
    assert list(got.buffers) == buffers
    assert got.type is MessageType.PUBLISH
    again = wire().read("iopub", got.payload)
    assert (again.content, again.buffers, again.parent, again.header) == (
        got.content,
        got.buffers,
        got.parent,
        got.header,
    )
    whole = json.loads(got.payload)
    assert whole["content"] == got.content
    assert whole["parent_header"]["msg_id"] == got.request_id


@given(content=CONTENT)
def test_what_we_write_jupyter_client_reads(content: dict[str, Any]) -> None:
    ours = wire()
    header = Header("m1", "execute_request", "s", "ada", "2026-11-16T10:00:00Z", "5.4")
    message = ours.compose("shell", header, content)
    assert message.type is MessageType.REQUEST
    assert message.request_id == "m1"
    session = Session(key=KEY)
    _, parts = session.feed_identities(ours.pack(message))
    read = session.deserialize(parts)
    assert read["content"] == json.loads(json.dumps(content))
    assert read["header"]["msg_id"] == "m1"


def test_replies_are_answers_and_input_is_none() -> None:
    parent = {"msg_id": "r1", "session": "s", "msg_type": "execute_request"}
    reply = wire().unpack("shell", frames({"msg_id": "a", "msg_type": "execute_reply"}, parent))
    assert (reply.type, reply.request_id) == (MessageType.RESPONSE, "r1")
    asked = wire().unpack("stdin", frames({"msg_id": "b", "msg_type": "input_request"}, parent))
    assert (asked.type, asked.request_id) == (MessageType.PUBLISH, "r1")


@pytest.mark.parametrize("digest", ["sha256", "sha1", "sha512"])
@given(key=st.binary(min_size=1, max_size=200), parts=st.lists(st.binary(max_size=100), min_size=4, max_size=4))
def test_the_signature_is_an_hmac(digest: str, key: bytes, parts: list[bytes]) -> None:
    expected = hmac.digest(key, b"".join(parts), digest).hex().encode()
    assert KernelWire("k1", lambda: 1, key, f"hmac-{digest}").sign(parts) == expected


def test_an_unknown_signature_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="hmac-rot13, which is not supported"):
        KernelWire("k1", lambda: 1, KEY, "hmac-rot13")


@pytest.mark.parametrize("key", [b"another key", b""])
def test_a_wrong_signature_is_refused(key: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        wire().unpack("iopub", frames(key=key))
    assert caught.value.fault is Fault.BAD_SIGNATURE


def test_without_a_key_nothing_is_signed() -> None:
    assert wire(b"").unpack("iopub", frames(key=b"")).id == "m1"


@pytest.mark.parametrize("key", [KEY, b""], ids=["signed", "unsigned"])
def test_what_comes_twice_is_one_message(key: bytes) -> None:
    ours = wire(key)
    first = frames(key=key)
    ours.unpack("iopub", first)
    with pytest.raises(Unreadable) as caught:
        ours.unpack("iopub", first)
    assert caught.value.fault is Fault.DUPLICATE
    ours.unpack("iopub", frames({"msg_id": "m2", "msg_type": "stream"}, key=key))


def test_what_is_remembered_is_bounded() -> None:
    ours = wire(b"")
    for number in range(REMEMBERED + 10):
        ours.unpack("iopub", frames({"msg_id": str(number), "msg_type": "stream"}, key=b""))
    assert len(ours._seen) == REMEMBERED
    assert ours.unpack("iopub", frames({"msg_id": "0", "msg_type": "stream"}, key=b"")).id == "0"


@given(st.lists(st.binary(max_size=30) | st.just(DELIMITER) | st.just(b"{}"), max_size=9))
def test_garbage_is_unreadable_and_nothing_else(parts: list[bytes]) -> None:
    for each in (wire(), wire(b"")):
        with pytest.raises(Unreadable):
            each.unpack("iopub", parts)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_garbage_on_the_bus_is_unreadable_and_nothing_else(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        wire().read("iopub", payload)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"x": NaN, "y": [Infinity]}', {"x": None, "y": [None]}),
        (b'{"text": "\xff"}', {"text": "�"}),
        (b"null", {}),
        (b"", {}),
    ],
    ids=["nan", "not utf-8", "null", "nothing"],
)
def test_what_other_kernels_write_is_understood(content: bytes, expected: dict[str, Any]) -> None:
    ours = wire()
    parts = [b'{"msg_id": "m1", "msg_type": "stream", "date": null}', b"null", b"{}", content]
    got = ours.unpack("iopub", [DELIMITER, ours.sign(parts), *parts])
    assert got.content == expected
    assert got.request_id is None
    # What is published is readable everywhere.
    assert json.loads(got.payload)["content"] == expected


@given(st.text(max_size=200))
def test_whatever_the_type_it_has_a_topic(kind: str) -> None:
    header = {"msg_id": "m1", "msg_type": kind or "x"}
    ours = wire(b"")
    parts = [json.dumps(each).encode() for each in (header, {}, {}, {})]
    validate_topic(ours.unpack("iopub", [DELIMITER, b"", *parts]).topic)


def test_as_it_is_published_it_is_a_plain_message() -> None:
    got = wire().unpack("iopub", frames(parent={"msg_id": "r1"}))
    plain = got.plain("gateway", {"a": "b"}, "00-trace")
    assert type(plain) is not KernelMessage
    assert (plain.id, plain.topic, plain.payload, plain.trace) == (got.id, got.topic, got.payload, "00-trace")
    plain.check()
