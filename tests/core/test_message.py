"""The message: checked when built, immutable, small, and unchanged by encoding and decoding."""

from __future__ import annotations

import contextlib
import enum
import math
import sys
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trunkline import codec
from trunkline.errors import (
    EncodeError,
    InvalidMessage,
    InvalidPayload,
    InvalidPriority,
    InvalidTopic,
    InvalidTtl,
    MessageTooLarge,
    MissingCorrelationId,
    TrunklineError,
)
from trunkline.message import Message, MessageType, Priority

ANSWERS = [MessageType.RESPONSE, MessageType.ACK]


def build(**fields: Any) -> Message:
    """A message from any fields, right or wrong."""
    return Message(**{"topic": "orders.placed", **fields})


# Fields


def test_a_message_has_all_its_fields() -> None:
    message = Message(
        id="m1",
        topic="orders.placed",
        payload={"sku": "a1"},
        timestamp_ns=1_700_000_000_000_000_000,
        sender="shop",
        content_type=codec.JSON,
        type=MessageType.REQUEST,
        recipient="billing",
        priority=75,
        ttl_s=2.5,
        request_id="r1",
        correlation_id="c1",
        reply_to="_reply.shop",
        attempts=2,
        requires_ack=True,
        encoding="",
        schema="order/1",
        trace="00-abc-01",
        headers={"tenant": "acme"},
    )
    assert message.id == "m1"
    assert message.topic == "orders.placed"
    assert message.payload == b'{"sku":"a1"}'
    assert message.timestamp_ns == 1_700_000_000_000_000_000
    assert message.seq == 0
    assert message.sender == "shop"
    assert message.content_type == codec.JSON
    assert message.type is MessageType.REQUEST
    assert message.recipient == "billing"
    assert message.priority == 75
    assert message.ttl_s == 2.5
    assert message.request_id == "r1"
    assert message.correlation_id == "c1"
    assert message.reply_to == "_reply.shop"
    assert message.attempts == 2
    assert message.requires_ack is True
    assert message.encoding == ""
    assert message.schema == "order/1"
    assert message.trace == "00-abc-01"
    assert message.headers == {"tenant": "acme"}


def test_only_a_topic_is_needed() -> None:
    message = Message(topic="a")
    assert message == Message(
        id="",
        topic="a",
        payload=b"",
        timestamp_ns=0,
        seq=0,
        sender="",
        content_type=codec.RAW,
        type=MessageType.PUBLISH,
        recipient=None,
        priority=50,
        ttl_s=None,
        request_id=None,
        correlation_id=None,
        reply_to=None,
        attempts=0,
        requires_ack=False,
        encoding="",
        schema=None,
        trace=None,
        headers=None,
    )


def test_there_are_ten_types() -> None:
    assert [type.name for type in MessageType] == [
        "PUBLISH",
        "DIRECT",
        "REQUEST",
        "RESPONSE",
        "ERROR",
        "ACK",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "HEARTBEAT",
        "CONTROL",
    ]
    assert [int(type) for type in MessageType] == list(range(1, 11))


@pytest.mark.parametrize("type", MessageType)
def test_each_type_can_be_built_and_sent(type: MessageType) -> None:
    message = build(type=type, request_id="r1" if type in ANSWERS else None)
    assert message.type is type
    assert Message.from_bytes(message.to_bytes()) == message


def test_the_named_priorities() -> None:
    assert [(level.name, int(level)) for level in Priority] == [
        ("LOW", 25),
        ("NORMAL", 50),
        ("HIGH", 75),
        ("CRITICAL", 100),
    ]


# Validation


@pytest.mark.parametrize("priority", [0, 1, 50, 99, 100, *Priority])
def test_a_priority_is_a_whole_number_from_0_to_100(priority: int) -> None:
    message = build(priority=priority)
    assert message.priority == priority
    assert message.priority.__class__ is int


class Index:
    """Like a numpy integer: not an int, but convertible to one."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Rank(enum.IntEnum):
    HIGHEST = 100
    BEYOND = 101


def test_a_priority_may_be_anything_that_stands_for_a_whole_number() -> None:
    assert build(priority=Rank.HIGHEST).priority == 100
    assert build(priority=Index(7)).priority == 7


@pytest.mark.parametrize(
    "priority", [-1, 101, 10**30, True, False, 50.0, math.nan, "50", None, b"5", [50], Rank.BEYOND, Index(101)]
)
def test_other_priorities_are_refused(priority: Any) -> None:
    with pytest.raises(InvalidPriority, match="whole number from 0 to 100"):
        build(priority=priority)


@pytest.mark.parametrize("ttl_s", [None, 0.001, 1, 2.5, 86_400 * 365])
def test_a_ttl_is_a_number_above_0_or_none(ttl_s: float | None) -> None:
    assert build(ttl_s=ttl_s).ttl_s == ttl_s


@pytest.mark.parametrize("ttl_s", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, True, False, "5", b"5", [5]])
def test_other_ttls_are_refused(ttl_s: Any) -> None:
    with pytest.raises(InvalidTtl, match="leave it out for a message that never expires") as caught:
        build(ttl_s=ttl_s)
    assert caught.value.ttl_s is ttl_s


@pytest.mark.parametrize("topic", ["", "a..b", "a b", "orders.*", ">", "x" * 256, None, 5, b"a", ["a"]])
def test_a_malformed_topic_is_refused(topic: Any) -> None:
    with pytest.raises(InvalidTopic):
        build(topic=topic)


@pytest.mark.parametrize("type", [0, 1, 11, "PUBLISH", None, 1.0, Rank.HIGHEST])
def test_a_type_is_a_message_type(type: Any) -> None:
    with pytest.raises(InvalidMessage, match="type must be a MessageType"):
        build(type=type)


@pytest.mark.parametrize("type", ANSWERS)
@pytest.mark.parametrize("request_id", [None, ""])
def test_an_answer_says_what_it_answers(type: MessageType, request_id: str | None) -> None:
    with pytest.raises(MissingCorrelationId, match="request_id"):
        build(type=type, request_id=request_id)
    with pytest.raises(MissingCorrelationId):
        Message(type=type, recipient="shop", reply_to="_reply.shop")


def test_attempts_are_not_negative() -> None:
    with pytest.raises(InvalidMessage, match="attempts must be a whole number of at least 0, not -1"):
        build(attempts=-1)


def test_a_timestamp_is_not_negative() -> None:
    with pytest.raises(InvalidMessage, match="timestamp_ns must be a whole number of at least 0, not -1"):
        build(timestamp_ns=-1)


def test_a_value_in_a_format_nobody_knows_is_refused() -> None:
    with pytest.raises(EncodeError, match="'text/csv'"):
        build(payload={"a": 1}, content_type="text/csv")
    assert build(payload=b"a;1", content_type="text/csv").content_type == "text/csv"


def test_a_payload_nobody_can_write_is_refused() -> None:
    with pytest.raises(EncodeError, match="cannot send a value of type object"):
        build(payload=object())


MALFORMED: list[tuple[str, Any]] = [
    ("id", 5),
    ("id", None),
    ("sender", 5),
    ("sender", None),
    ("recipient", 5),
    ("request_id", 5),
    ("correlation_id", 5),
    ("reply_to", 5),
    ("timestamp_ns", "now"),
    ("timestamp_ns", 1.5),
    ("attempts", "two"),
    ("attempts", None),
    ("requires_ack", "yes"),
    ("encoding", 5),
    ("content_type", 5),
    ("schema", 5),
    ("trace", 5),
    ("headers", "tenant=acme"),
    ("headers", {"n": 1}),
    ("headers", {1: "n"}),
]


@pytest.mark.parametrize(("field", "value"), MALFORMED)
def test_a_field_of_a_wrong_type_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage, match=field):
        build(**{field: value})


@pytest.mark.parametrize("recipient", [5, b"billing"])
def test_a_recipient_that_is_no_text_is_refused_also_where_it_makes_the_topic(recipient: Any) -> None:
    with pytest.raises(InvalidMessage, match="recipient"):
        build(topic="", recipient=recipient)


class Name(str):
    """Like a numpy string: a subclass of str."""


@pytest.mark.parametrize(
    "fields",
    [
        {"sender": "\ud800"},
        {"headers": {"a": "\ud800"}},
        {"topic": Name("orders")},
        {"sender": Name("shop")},
        {"timestamp_ns": 2**70},
        {"timestamp_ns": -(2**70)},
        {"attempts": 2**70},
        {"ttl_s": 10**400},
        {"ttl_s": 2**70},
        {"priority": Index(7)},
    ],
    ids=lambda fields: repr(fields)[:40],
)
def test_what_is_accepted_can_be_written(fields: dict[str, Any]) -> None:
    # Whether such a value is refused or put right is not promised; that nothing fails later is.
    try:
        message = build(**fields)
    except InvalidMessage:
        return
    assert Message.from_bytes(message.to_bytes()) == message


# Where it goes


@pytest.mark.parametrize(
    ("fields", "topic"),
    [
        ({"recipient": "billing"}, "_to.billing"),
        ({"type": MessageType.DIRECT, "recipient": "billing"}, "_to.billing"),
        ({"type": MessageType.REQUEST, "recipient": "pricing"}, "_to.pricing"),
        ({"type": MessageType.RESPONSE, "request_id": "r1", "reply_to": "_reply.shop"}, "_reply.shop"),
        ({"type": MessageType.RESPONSE, "request_id": "r1", "reply_to": "own.topic", "recipient": "s"}, "own.topic"),
        ({"type": MessageType.RESPONSE, "request_id": "r1"}, "_reply"),
        ({"type": MessageType.ERROR, "request_id": "r1", "reply_to": "_reply.shop"}, "_reply.shop"),
        ({"type": MessageType.ERROR}, "_reply"),
        ({"type": MessageType.ACK, "request_id": "r1", "reply_to": "_reply.shop"}, "_reply.shop"),
        ({"type": MessageType.HEARTBEAT, "sender": "shop"}, "_heartbeat.shop"),
        ({"type": MessageType.CONTROL}, "_control"),
        ({"recipient": "billing", "topic": "orders"}, "orders"),
        ({"type": MessageType.RESPONSE, "request_id": "r1", "reply_to": "x", "topic": "orders"}, "orders"),
    ],
)
def test_the_topic_follows_from_the_other_fields_unless_given(fields: dict[str, Any], topic: str) -> None:
    assert Message(**fields).topic == topic


@pytest.mark.parametrize("type", [MessageType.PUBLISH, MessageType.DIRECT, MessageType.REQUEST, MessageType.HEARTBEAT])
def test_a_message_without_topic_and_without_recipient_is_refused(type: MessageType) -> None:
    with pytest.raises(InvalidTopic, match="is empty"):
        Message(type=type)


@pytest.mark.parametrize("recipient", ["a b", "*", "", "a..b", "x" * 256])
def test_a_recipient_that_makes_no_topic_is_refused(recipient: str) -> None:
    with pytest.raises(InvalidTopic):
        Message(recipient=recipient)


# Immutability


def test_no_field_can_be_set() -> None:
    message = build(payload={"a": 1})
    for name in Message.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(message, name, getattr(message, name))
        with pytest.raises(AttributeError):
            delattr(message, name)


def test_what_is_changed_after_publishing_does_not_change_the_message() -> None:
    value = {"items": ["a1"]}
    message = build(payload=value)
    value["items"].append("b2")
    value["more"] = []
    assert message.decode() == {"items": ["a1"]}


def test_changing_a_buffer_does_not_change_the_message() -> None:
    buffer = bytearray(b"abc")
    messages = [build(payload=buffer), build(payload=memoryview(buffer))]
    buffer[:] = b"xyz"
    assert [message.payload for message in messages] == [b"abc", b"abc"]


def test_what_is_decoded_is_a_copy() -> None:
    message = build(payload={"items": ["a1"]})
    message.decode()["items"].append("b2")
    assert message.decode() == {"items": ["a1"]}


def test_changing_the_headers_that_were_given_does_not_change_the_message() -> None:
    headers = {"tenant": "acme"}
    message = build(headers=headers)
    headers["tenant"] = "other"
    assert message.headers == {"tenant": "acme"}


# The payload


@pytest.mark.parametrize(
    ("payload", "content_type", "kept"),
    [
        ({"a": 1}, "", codec.MSGPACK),
        ({"a": 1}, codec.JSON, codec.JSON),
        (b"raw", "", codec.RAW),
        (b'{"a":1}', codec.JSON, codec.JSON),
        (bytearray(b"raw"), "", codec.RAW),
        (bytearray(b'{"a":1}'), codec.JSON, codec.JSON),
        (memoryview(b"\x01"), codec.MSGPACK, codec.MSGPACK),
    ],
)
def test_the_content_type_says_what_the_payload_is(payload: Any, content_type: str, kept: str) -> None:
    message = build(payload=payload, content_type=content_type)
    assert message.payload.__class__ is bytes
    assert message.content_type == kept


def test_what_is_unpacked_is_bounded_by_who_reads_it() -> None:
    plain, content_type = codec.encode("x" * 1000)
    message = build(payload=codec.Zlib().apply(plain), content_type=content_type, encoding="zlib")
    assert message.decode(str, max_bytes=len(plain)) == "x" * 1000
    with pytest.raises(MessageTooLarge):
        message.decode(str, max_bytes=len(plain) - 1)


def test_decode_gives_plain_values_or_a_type() -> None:
    message = build(payload={"n": 1})
    assert message.decode() == {"n": 1}
    assert message.decode(dict[str, int]) == {"n": 1}
    with pytest.raises(InvalidPayload, match=r"\$"):
        message.decode(dict[str, str])


# Size and time


def test_a_message_above_the_ceiling_is_refused_when_built() -> None:
    # Zeroed pages that are never touched take no memory.
    with pytest.raises(MessageTooLarge):
        build(payload=bytes(1024**3 + 1))


@pytest.mark.parametrize(("payload", "size"), [(b"", 0), (b"abc", 3), ("abc", 4), (None, 1)])
def test_the_size_is_that_of_the_payload(payload: Any, size: int) -> None:
    assert build(payload=payload).size == size


def test_the_timestamp_is_in_seconds() -> None:
    assert build(timestamp_ns=1_700_000_000_500_000_000).timestamp == 1_700_000_000.5
    assert build().timestamp == 0.0


@pytest.mark.parametrize(
    ("ttl_s", "expires_ns"), [(None, None), (1, 1_000_000_005), (0.25, 250_000_005), (60, 60_000_000_005)]
)
def test_a_message_expires_its_ttl_after_its_timestamp(ttl_s: float | None, expires_ns: int | None) -> None:
    assert build(timestamp_ns=5, ttl_s=ttl_s).expires_ns == expires_ns


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False))
@example(1e300)
@example(sys.float_info.max)
@example(5e-324)
@settings(max_examples=50)
def test_whatever_ttl_is_accepted_can_be_waited_for(ttl_s: float) -> None:
    # As above: refused at once, or fit for use. A consumer must not fall over it later.
    try:
        message = build(timestamp_ns=5, ttl_s=ttl_s)
    except InvalidTtl:
        assert ttl_s > 1e9
        return
    expires_ns = message.expires_ns
    assert expires_ns is not None
    assert expires_ns >= 5


# Changed copies


def test_a_changed_copy_keeps_everything_else() -> None:
    message = build(id="m1", payload={"a": 1}, sender="shop", timestamp_ns=5, ttl_s=1.0, headers={"h": "1"})
    changed = message.replace(priority=99)
    assert changed.priority == 99
    assert changed.id == "m1"
    assert changed == build(
        id="m1", payload={"a": 1}, sender="shop", timestamp_ns=5, ttl_s=1.0, headers={"h": "1"}, priority=99
    )
    assert message.priority == 50


def test_a_changed_copy_has_no_place_in_the_order_yet() -> None:
    message = msgspec.structs.replace(build(id="m1"), seq=7)
    assert message.seq == 7
    assert message.replace(sender="x").seq == 0
    assert message.replace(sender="x", seq=8).seq == 8


def test_an_empty_id_makes_a_message_of_its_own() -> None:
    assert build(id="m1").replace(id="").id == ""


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"priority": 101}, InvalidPriority),
        ({"priority": 101, "seq": 3}, InvalidPriority),
        ({"ttl_s": 0}, InvalidTtl),
        ({"topic": "a b"}, InvalidTopic),
        ({"topic": "a.*", "seq": 3}, InvalidTopic),
        ({"type": 3}, InvalidMessage),
        ({"type": MessageType.RESPONSE}, MissingCorrelationId),
        ({"payload": object()}, EncodeError),
        ({"attempts": -1}, InvalidMessage),
    ],
)
def test_a_changed_copy_is_checked_again(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        build().replace(**changes)


def test_a_new_payload_brings_its_own_content_type() -> None:
    message = build(payload={"a": 1}, content_type=codec.JSON)
    assert message.replace(payload=b"raw").content_type == codec.RAW
    assert message.replace(payload={"b": 2}).decode() == {"b": 2}
    kept = message.replace(payload={"b": 2}, content_type=codec.JSON)
    assert (kept.payload, kept.content_type) == (b'{"b":2}', codec.JSON)
    assert message.replace(sender="x").content_type == codec.JSON


def test_a_new_payload_is_not_read_with_the_encoding_of_the_old_one() -> None:
    plain, content_type = codec.encode({"a": 1})
    message = build(payload=codec.Zlib().apply(plain), content_type=content_type, encoding="zlib")
    assert message.decode() == {"a": 1}
    assert message.replace(payload={"b": 2}).decode() == {"b": 2}
    assert message.replace(sender="x").decode() == {"a": 1}


def test_a_new_payload_may_name_its_own_encoding() -> None:
    plain, content_type = codec.encode({"a": 1})
    packed = codec.Zlib().apply(plain)
    message = build(payload={"b": 2}).replace(payload=packed, content_type=content_type, encoding="zlib")
    assert message.decode() == {"a": 1}


# Bytes


names = st.text(max_size=8)
maybe = st.none() | names
topics = st.lists(st.text("abcxyz0129_-äß", min_size=1, max_size=4), min_size=1, max_size=4).map(".".join)

messages = st.builds(
    Message,
    id=names,
    topic=topics,
    payload=st.binary(max_size=30),
    timestamp_ns=st.integers(0, 2**63 - 1),
    seq=st.integers(0, 2**63 - 1),
    sender=names,
    content_type=st.sampled_from([codec.MSGPACK, codec.JSON, codec.RAW, "text/plain"]),
    type=st.sampled_from(MessageType),
    recipient=maybe,
    priority=st.integers(0, 100),
    ttl_s=st.none() | st.floats(min_value=1e-6, max_value=1e6),
    request_id=st.text(min_size=1, max_size=8),
    correlation_id=maybe,
    reply_to=maybe,
    attempts=st.integers(0, 1000),
    requires_ack=st.booleans(),
    encoding=st.sampled_from(["", "zlib"]),
    schema=maybe,
    trace=maybe,
    headers=st.none() | st.dictionaries(names, names, max_size=3),
)


@given(messages)
@settings(max_examples=100)
def test_a_message_is_the_same_after_a_trip_through_bytes(message: Message) -> None:
    data = message.to_bytes()
    back = Message.from_bytes(data)
    assert back == message
    assert back.to_bytes() == data
    assert back.type.__class__ is MessageType


def test_what_has_its_default_takes_no_room_in_the_bytes() -> None:
    message = Message(topic="orders.placed", payload=b"x" * 100, id=str(uuid.UUID(int=7)))
    assert len(message.to_bytes()) < 250


def use(message: Message) -> None:
    """Everything that a receiver does with a message."""
    assert message.payload.__class__ is bytes
    assert message.size >= 0
    assert isinstance(message.timestamp, float)
    assert (message.expires_ns is None) is (message.ttl_s is None)
    assert message.topic
    assert Message.from_bytes(message.to_bytes()).id == message.id


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xc0")
@example(b"\x80")
@example(b"\x81\xa5topic\xa1a")
@settings(max_examples=100)
def test_random_bytes_are_a_message_or_refused_with_our_own_error(data: bytes) -> None:
    with contextlib.suppress(TrunklineError):
        use(Message.from_bytes(data))


@given(
    messages,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 20),
    st.binary(max_size=3),
)
@settings(max_examples=150)
def test_damaged_bytes_are_a_message_or_refused_with_our_own_error(
    message: Message, flips: list[tuple[int, int]], cut: int, behind: bytes
) -> None:
    data = bytearray(message.to_bytes())
    for place, value in flips:
        data[place % len(data)] = value
    with contextlib.suppress(TrunklineError):
        use(Message.from_bytes(bytes(data[: len(data) - cut]) + behind))


def packed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"topic": "a", **fields})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidPayload),
        (b"garbage", InvalidPayload),
        (b"\x91" * 100_000, InvalidPayload),
        (b"\x81\xa7payload" + b"\x91" * 100_000, InvalidPayload),
        (msgspec.msgpack.encode([1, 2]), InvalidPayload),
        (packed(topic=""), InvalidTopic),
        (packed(topic="a b"), InvalidTopic),
        (packed(topic="a.>", seq=5), InvalidTopic),
        (packed(topic=5), InvalidPayload),
        (packed(type=0), InvalidPayload),
        (packed(type=99), InvalidPayload),
        (packed(priority=101), InvalidPriority),
        (packed(priority=101, seq=5), InvalidPriority),
        (packed(priority=True), InvalidPayload),
        (packed(ttl_s=0.0), InvalidTtl),
        (packed(ttl_s=math.nan), InvalidTtl),
        (packed(ttl_s=math.inf, seq=5), InvalidTtl),
        (packed(attempts=-1), InvalidMessage),
        (packed(headers={"a": 1}), InvalidPayload),
        (packed(sender=None), InvalidPayload),
    ],
    ids=lambda value: None,
)
def test_bytes_that_are_no_message_are_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        Message.from_bytes(data)


@pytest.mark.parametrize("type", ANSWERS)
@pytest.mark.parametrize("seq", [0, 5])
def test_an_answer_to_nothing_is_refused_as_the_docstring_says(type: MessageType, seq: int) -> None:
    with pytest.raises((InvalidPayload, InvalidMessage)):
        Message.from_bytes(packed(type=int(type), seq=seq))


@pytest.mark.parametrize("payload", ["text", 5, None, {"a": 1}, [1], 1.5])
@pytest.mark.parametrize("seq", [0, 5])
def test_bytes_whose_payload_is_not_bytes_are_refused(payload: Any, seq: int) -> None:
    with pytest.raises(InvalidPayload, match="its payload is not bytes"):
        Message.from_bytes(packed(payload=payload, seq=seq))


@pytest.mark.parametrize("ttl_s", [1e300, sys.float_info.max])
def test_bytes_with_an_absurd_ttl_do_not_fail_later(ttl_s: float) -> None:
    with contextlib.suppress(InvalidTtl):
        use(Message.from_bytes(packed(ttl_s=ttl_s)))


# Memory


def test_a_queued_message_is_small() -> None:
    message = msgspec.structs.replace(
        build(
            id=str(uuid.UUID(int=2**127 + 1)), payload=b"x" * 100, timestamp_ns=1_790_000_000_000_000_000, sender="s"
        ),
        seq=2**40,
    )
    # The payload is the publisher's; topic, sender and content type are shared by all messages of their kind.
    parts = (message, message.id, message.timestamp_ns, message.seq)
    assert sum(sys.getsizeof(part) for part in parts) <= 500
