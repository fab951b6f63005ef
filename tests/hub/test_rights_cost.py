"""What a right costs to check, and what EXPLAIN shows to an identity that may not read."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.guests import Guest, batch_on, make_keys
from tests.hub.test_rights_attacks import bus_of
from trunkline import MemoryBroker, Message, columns
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.topic import reply_topic
from trunkline.wire import control, frames
from trunkline.wire.frames import PublishHead

RULES = [
    {"who": "cert:data", "may": ["publish", "subscribe"], "on": ["data.>"]},
    {"who": "cert:owner", "may": ["publish", "subscribe"], "on": ["orders.>"]},
    {"who": "cert:elsewhere", "may": ["publish"], "on": ["orders.>"]},
]
BODY = columns.encode([Message(id="x", topic="data.x", payload=b"x")], [0])
MAX_S = 1.0
"""A check of a right takes microseconds. Before, this one took more than ten seconds."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("keys"))


def shown(answer: control.Control) -> Message:
    assert isinstance(answer, control.ExplainAnswer), answer
    return Message.from_bytes(base64.b64decode(answer.message))


async def serve(keys: Path) -> Hub:
    hub = Hub(MemoryBroker(), access=Access.load(RULES))
    await hub.listen("tcp://127.0.0.1:0", str(keys))
    return hub


def test_a_topic_that_is_too_long_is_neither_looked_up_nor_remembered(keys: Path) -> None:
    async def main() -> None:
        async with await serve(keys) as hub:
            guest = await Guest.come(hub, keys, "data")
            began = time.process_time()
            for topic in ("_dead." * 800 + "data.x", "_dead." * 100_000 + "data.x", "data." + "x" * 300_000):
                for answer in (
                    await guest.ask(control.Topic, topic=topic),
                    await guest.subscribe(1, topic),
                    await guest.ask(control.Link, pattern=topic, topic=topic),
                    await guest.ask(control.ChannelDescribe, channel=topic),
                ):
                    assert isinstance(answer, control.Error)
                    assert answer.code == "invalid_topic"
                    assert len(answer.text) < 200
            for number, topic in enumerate(("_dead." * 800 + "data.x", "data." + "x" * 60_000), 1):
                guest.send(frames.publish(PublishHead(number, topic, 1, urgent=True), BODY))
                (failure,) = (await guest.hear(control.Taken)).failures
                assert failure.code == "invalid_topic"
                assert len(failure.text) < 200
            assert time.process_time() - began < MAX_S
            assert sum(len(pattern) for _, _, pattern in hub.access._known) < 1000
            assert hub.counts["internal_errors"] == 0

    asyncio.run(main())


def test_who_may_only_publish_sees_what_became_of_a_message_and_not_what_is_in_it(keys: Path) -> None:
    async def main() -> None:
        async with await serve(keys) as hub:
            owner, publisher, stranger = [await Guest.come(hub, keys, name) for name in ("owner", "elsewhere", "data")]
            await owner.subscribe(1, "orders.>", name="billing")
            await owner.publish("orders.placed", 1, b"secret")
            asked = {"message_id": "orders.placed-1-0"}
            answer = await publisher.ask(control.Explain, **asked)
            assert (shown(answer).payload, shown(answer).encoding) == (b"", "elided")
            assert isinstance(answer, control.ExplainAnswer)
            assert [each.subscriber for each in answer.outcomes] == ["billing"]
            assert shown(await owner.ask(control.Explain, **asked)).payload == b"secret"
            assert isinstance(await stranger.ask(control.Explain, **asked), control.Error)

    asyncio.run(main())


def test_an_answer_is_explained_to_who_asked_alone(keys: Path) -> None:
    """Everyone may answer on a reply topic. That is no right to learn of other answers, or of the topic."""

    async def main() -> None:
        async with await serve(keys) as hub:
            owner, stranger = [await Guest.come(hub, keys, name) for name in ("owner", "data")]
            topic = reply_topic("secret")
            await owner.subscribe(1, topic, secret="secret", tap=True, hears=False, reports=False)
            owner.send(batch_on(topic, 1, [b"answer"]))
            await owner.tell()
            asked = {"message_id": f"{topic}-1-0"}
            assert shown(await owner.ask(control.Explain, **asked)).payload == b"answer"
            assert isinstance(await stranger.ask(control.Explain, **asked), control.Error)

    asyncio.run(main())


def test_a_publisher_knows_the_content_of_its_own_message(keys: Path) -> None:
    async def main() -> None:
        async with (
            await serve(keys) as hub,
            bus_of(hub, keys, "owner") as owner,
            bus_of(hub, keys, "elsewhere") as publisher,
            owner.subscribe("orders.>", name="billing"),
        ):
            explained = await publisher.explain(await publisher.publish("orders.placed", b"mine"))
            assert explained.message is not None
            assert explained.message.payload == b"mine"
            assert [each.fate for each in explained.outcomes] == [tl.Fate.IN_FLIGHT]

    asyncio.run(main())
