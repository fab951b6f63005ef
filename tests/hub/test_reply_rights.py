"""A responder answers where the request says. With rules, the requester must be allowed to publish there."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from tests.hub.guests import Guest, hub_of, make_keys
from tests.hub.test_rights_attacks import bus_of
from trunkline import InvalidPayload, Message, columns
from trunkline.message import MessageType
from trunkline.wire import control, frames
from trunkline.wire.frames import PublishHead

DEADLINE_S = 60.0
RULES = [
    {"who": "cert:data", "may": ["publish", "subscribe"], "on": ["data.>"]},
    {"who": "cert:owner", "may": ["publish", "subscribe"], "on": ["data.>", "orders.>"]},
]
"""`data` attacks; `owner` answers requests on `data.price`, and may publish orders."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


def asking(reply_to: str | None, payload: bytes = b"1") -> Message:
    return Message(
        id="asked",
        topic="data.price",
        payload=payload,
        type=MessageType.REQUEST,
        reply_to=reply_to,
        content_type="application/json",
    )


def packed_as_columns(messages: list[Message]) -> bytes:
    return columns.encode(messages, [1] * len(messages))


def long_keyed(messages: list[Message]) -> bytes:
    """The same, with the name of the field in an unusually long encoding."""
    return columns.pack_batch(messages).replace(b"\xa8reply_to", b"\xd9\x08reply_to")


PACKINGS: list[Callable[[list[Message]], bytes]] = [columns.pack_batch, packed_as_columns, long_keyed]


@pytest.mark.parametrize("pack", PACKINGS)
def test_nobody_is_made_to_publish_where_the_requester_may_not(
    pack: Callable[[list[Message]], bytes], keys: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with hub_of(tmp_path, keys, RULES) as hub, bus_of(hub, keys, "owner") as responder:
            handled: list[int] = []

            @responder.on("data.price")
            async def price(number: int) -> int:
                handled.append(number)
                return number + 1

            await responder.flush()
            attacker = await Guest.come(hub, keys, "data")
            await attacker.subscribe(1, "data.answers")
            batches = [
                ([asking("orders.placed")], "forbidden"),
                ([asking(None), asking("orders.placed")], "forbidden"),
                ([asking("data.answers"), asking("orders.placed")], "forbidden"),
                ([asking("_to.owner")], "forbidden"),
                ([asking("data.answers", b"2")], None),
                ([asking("_reply.0123")], None),
            ]
            async with responder.subscribe("orders.>") as orders:
                for number, (messages, code) in enumerate(batches, 1):
                    head = PublishHead(number, "data.price", len(messages), urgent=True)
                    attacker.send(frames.publish(head, pack(messages)))
                    taken = await attacker.hear(control.Taken)
                    assert [each.code for each in taken.failures] == ([] if code is None else [code])
                    assert all("reply_to" in each.text for each in taken.failures)
                await attacker.take()
                await responder.publish("orders.end", "end")
                message = await orders.recv()
                assert message is not None
                assert message.topic == "orders.end"
            assert handled[0] == 2
            assert hub.counts["forbidden"] == 4

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_requests_and_payloads_that_only_mention_it_pass(keys: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            hub_of(tmp_path, keys, RULES) as hub,
            bus_of(hub, keys, "owner") as responder,
            bus_of(hub, keys, "data") as asker,
        ):

            @responder.on("data.echo")
            async def echo(text: str) -> str:
                return text

            await responder.flush()
            text = "reply_to: orders.placed"
            assert await asker.request("data.echo", text, timeout_s=30) == text
            with pytest.raises(tl.Refused, match=r"may not name orders\.placed in reply_to"):
                await asker.publish("data.echo", text, reply_to="orders.placed")

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_a_dead_letter_that_is_changed_is_no_way_around(keys: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with hub_of(tmp_path, keys, RULES) as hub:
            guest = await Guest.come(hub, keys, "data")
            await guest.subscribe(1, "data.x", name="mine", durable=True)
            await guest.publish("data.x", 1, b"one")
            seq = await guest.take()
            letter = tl.DeadLetter(
                Message(id="data.x-1-0", topic="data.x", seq=seq), "mine", tl.Cause.REJECTED, "why", "E", "", (), 1
            )
            await guest.tell(control.Nack(subscription=1, seq=seq, fate="dead", letter=_text(letter.to_bytes())))
            for reply_to, done in (("orders.placed", 0), ("data.y", 1)):
                changed = Message(topic="data.x", payload=b"changed", seq=seq, reply_to=reply_to)
                again = control.LetterAgain(subscriber="mine", seq=seq, message=_text(changed.to_bytes()))
                answer = await guest.ask(control.LetterReplay, letters=[again])
                assert isinstance(answer, control.LettersDone)
                assert (answer.done, [each.code for each in answer.failures]) == (done, ["forbidden"][done:])

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Pure

topics = st.one_of(st.none(), st.sampled_from(["a.b", "_reply.x", "orders.placed", ""]))


@given(st.lists(st.tuples(topics, st.binary(max_size=20)), min_size=1, max_size=5))
def test_what_a_batch_names_is_what_its_messages_name(fields: list[tuple[str | None, bytes]]) -> None:
    messages = [Message(topic="t", payload=payload, reply_to=topic) for topic, payload in fields]
    large = [msgspec.structs.replace(each, payload=bytes(columns.MAX_UNPACKED)) for each in messages]
    for data in (pack(some) for some in (messages, large) for pack in (columns.pack_batch, packed_as_columns)):
        read = columns.read("t", data, range(1, len(messages) + 1))
        assert columns.reply_topics(data) == {each.reply_to for each in read if each.reply_to}


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 3))
def test_whatever_the_bytes_it_names_topics_or_is_refused(before: bytes, after: bytes, where: int) -> None:
    whole = columns.pack_batch([asking("a"), asking("b")])
    data = (before + b"reply_to" + after, whole[: len(before)] + after, whole + after, bytes(where) + whole)[where]
    try:
        found = columns.reply_topics(data)
    except InvalidPayload:
        return
    assert all(isinstance(topic, str) for topic in found)


@pytest.mark.parametrize("size", [1, columns.MAX_UNPACKED])
def test_the_last_of_several_counts_as_it_does_for_those_who_read_it(size: int) -> None:
    alone = {"id": "a", "topic": "t", "payload": bytes(size), "content_type": "c", "reply_to": "first"}
    again = msgspec.msgpack.encode({**alone, "sender": "reply_to"}).replace(b"\xa6sender", b"\xa8reply_to")
    (message,) = columns.read("t", again, [1])
    assert columns.reply_topics(again) == {message.reply_to} == {"reply_to"}


@pytest.mark.parametrize("value", [5, [1, 2], {"a": 1}, b"x", True])
def test_a_value_that_is_no_topic_is_refused(value: Any) -> None:
    body = msgspec.msgpack.encode([[b"ab", 1], bytes(16), [b"", 0], {"reply_to": value}])
    with pytest.raises(InvalidPayload):
        columns.reply_topics(body)
