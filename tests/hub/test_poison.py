"""Poison: input that is bad in one way, while two clients who behave go on. They get what they are owed, in order.

After each attack the hub serves them as before, and has not grown by more than the attack may cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trunkline as tl
from tests.hub.attacks import Attacker, framed, said
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.lines import RULES, Line, healthy, listen, stats_of
from trunkline import Message, columns
from trunkline.columns import Body, Strings
from trunkline.wire import control, frames
from trunkline.wire.frames import LENGTH, PREFIX, Kind, PublishHead

DEADLINE_S = 90.0
MAX_GROWTH_BYTES = 120 * 1024 * 1024
MEBIBYTE = 1024 * 1024
GOOD = 50

Attack = Callable[[RunningHub, Line], Coroutine[Any, Any, None]]


def under(tmp_path: Path, attack: Attack, *, journal: bool = False, **settings: Any) -> None:
    """Run an attack. The honest subscriber also gets messages on `attack.shared`, in a group and by itself."""

    async def run(hub: RunningHub) -> None:
        how = tl.ConnectionSettings(connect_s=30.0)
        async with (
            asyncio.timeout(DEADLINE_S),
            tl.connect(hub.address, name="giver", connection=how) as giver,
            tl.connect(hub.address, name="taker", connection=tl.ConnectionSettings(connect_s=30.1)) as taker,
            taker.subscribe("good.>", name="good") as good,
            taker.subscribe("good.>", name="member", group="workers") as shared,
            taker.subscribe("attack.shared", name="open", group="victims") as victim,
            taker.subscribe("attack.shared", name="plain") as plain,
        ):
            await stats_of(giver)
            before = hub.rss_bytes()
            taking = [asyncio.create_task(_until_end(stream, giver.name)) for stream in (good, shared, victim, plain)]
            line = await Line.open(hub)
            line.send(Attacker(1).hello())
            await line.hear_answer(1)
            attacking = asyncio.create_task(attack(hub, line))
            rounds = 0
            while not attacking.done():
                await giver.publish_many("good.numbers", range(GOOD))
                await giver.flush()
                rounds += 1
                await asyncio.sleep(0.01)
            await attacking
            await line.close()
            await giver.publish("good.end", "end")
            await giver.publish("attack.shared", "end")
            numbers = [*(list(range(GOOD)) * rounds), "end"]
            assert await asyncio.gather(*taking) == [numbers, numbers, ["end"], ["end"]]
            await healthy(hub, giver)
            assert hub.rss_bytes() - before < MAX_GROWTH_BYTES

    folder = tmp_path / "journal" if journal else None
    with running_hub(tmp_path, listen=listen(tmp_path), rules=RULES, settings=settings, journal=folder) as hub:
        asyncio.run(run(hub))
        hub.end()


async def _until_end(stream: tl.Stream, sender: str) -> list[Any]:
    """The messages of the honest publisher, up to its last one."""
    got: list[Any] = []
    while not got or got[-1] != "end":
        message = await stream.recv()
        assert message is not None
        if message.sender == sender:
            got.append(message.decode())
    return got


async def settled(line: Line, number: int) -> list[dict[str, Any]]:
    """The frames of the hub until it has handled everything before."""
    line.send(said(control.Heartbeat(id=number)))
    found: list[dict[str, Any]] = []
    while True:
        each = await line.hear()
        if each.get("re") == number:
            return found
        if each["type"] != "HEARTBEAT":
            found.append(each)


def codes(found: list[dict[str, Any]]) -> list[str]:
    """Codes of errors, and of failures in TAKEN."""
    return [each["code"] for each in found if "code" in each] + [
        failure["code"] for each in found for failure in each.get("failures", ())
    ]


def raw_publish(head: Any, body: bytes) -> bytes:
    data = head if isinstance(head, bytes) else msgspec.msgpack.encode(head)
    return PREFIX.pack(Kind.PUBLISH, len(data)) + data + body


def body_of(count: int, *, ids: bytes | None = None, **rest: Any) -> bytes:
    texts = ids if ids is not None else b"".join(b"%04d" % index for index in range(count))
    parts = Body(Strings(texts, len(texts) // count), bytes(8 * count), Strings(b"x" * count, 1), rest)
    return msgspec.msgpack.encode(parts)


@pytest.mark.parametrize("journal", [False, True])
def test_huge_header_fields(tmp_path: Path, journal: bool) -> None:
    """Our own client refuses to send them. Here they are sent to the hub anyway."""

    async def attack(hub: RunningHub, line: Line) -> None:
        huge = {"x": "x" * (8 * MEBIBYTE)}
        poison: list[dict[str, Any]] = [{"headers": huge}, {"sender": "s" * MEBIBYTE}, {"trace": "t" * MEBIBYTE}]
        for number, fields in enumerate(poison, 1):
            for count in (1, 2):
                head = PublishHead(2 * number + count, "attack.shared", count)
                line.send(frames.publish(head, body_of(count, **fields)))
        await settled(line, 50)

    under(tmp_path, attack, journal=journal)


def test_deep_nesting_in_control(tmp_path: Path) -> None:
    async def attack(hub: RunningHub, line: Line) -> None:
        for number, depth in enumerate((200, 900, 100_000, 5_000_000), 100):
            for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
                if depth * (len(opened) + 1) > 15 * MEBIBYTE:
                    continue
                deep = opened * depth + b"1" + closed * depth
                register = b'{"type":"PRODUCER_REGISTER","channel":"attack.deep","metadata":{"d":%s},"id":%d}'
                schema = b'{"type":"SCHEMA_PUT","name":"attack.deep","schema":{"d":%s},"id":%d}'
                for text in (register, schema, b'{"type":"STATS","d":%s,"id":%d}'):
                    line.send(frames.control(text % (deep, number)))
                line.send(said(control.DiscoveryRequest(id=number, channel="attack.deep")))
                await settled(line, 1000 + number)

    under(tmp_path, attack)


def test_control_frames_of_sixteen_mebibytes(tmp_path: Path) -> None:
    """A larger one is refused. One of that size may hold a million ranges: it must not delay the others for long."""

    async def attack(hub: RunningHub, line: Line) -> None:
        limit = 16 * MEBIBYTE
        empty = len(said(control.Withdraw(batch=1, reason="r")))
        for size, expected in ((limit, []), (limit + 1, ["too_large"])):
            line.send(said(control.Withdraw(batch=1, reason="r" * (1 + size - empty))))
            assert codes(await settled(line, 60)) == expected
        wanted = control.Subscribe(
            id=5, subscription=1, pattern="attack.>", name="m", credit=5, group="g", reports=True
        )
        plain = control.Subscribe(id=6, subscription=2, pattern="attack.x", name="p", credit=5, reports=True)
        line.send(said(wanted), said(plain))
        await line.hear_answer(5)
        row = control.FateRow(fate="delivered", first=1, last=1, count=1)
        loop = asyncio.get_running_loop()
        for message in (
            control.Ack(subscription=1, ranges=[(number, number + 5) for number in range(0, 1_500_000, 2)]),
            control.Ack(subscription=1, ranges=[(0, 2**62)] * 500_000),
            control.Fates(subscription=2, rows=[row] * 200_000),
            control.Fates(subscription=2, letters=["AAAA"] * 500_000),
            control.LetterRemove(id=9, letters=[("x", number + 1) for number in range(500_000)]),
            control.Subscribe(id=10, subscription=3, pattern="a." * 4_000_000 + "b", name="n", credit=1),
            control.Topic(id=11, topic="t" * 10_000_000),
            control.Hello(id=12, versions=list(range(1_000_000)), name="x" * 5_000_000),
            control.ChannelCreate(id=13, channel="attack.long", description="d" * 10_000_000),
        ):
            frame = said(message)
            assert len(frame) <= limit
            began = loop.time()
            line.send(frame)
            await settled(line, 70)
            assert loop.time() - began < 10.0, type(message)

    under(tmp_path, attack)


MANY = 4000


def test_thousands_of_subscriptions_links_and_topics(tmp_path: Path) -> None:
    """The cost of each does not depend on their number. They are removed with their client."""

    async def attack(hub: RunningHub, line: Line) -> None:
        loop = asyncio.get_running_loop()
        kinds: tuple[Callable[[int], control.Control], ...] = (
            lambda n: control.Subscribe(id=n, subscription=n, pattern=f"attack.{n}", name="s", credit=1),
            lambda n: control.Link(id=n, pattern=f"attack.{n}.*", topic="attack.linked"),
            lambda n: control.Topic(id=n, topic=f"attack.{n}"),
            lambda n: control.Subscribe(
                id=n, subscription=n + MANY, pattern=f"attack.g.{n}", name=f"m{n}", credit=1, group=f"g{n}"
            ),
        )
        for kind in kinds:
            began = loop.time()
            for start in range(1000, 1000 + MANY, 500):
                line.send(*(said(kind(number)) for number in range(start, start + 500)))
                assert codes(await settled(line, 10)) == []
            assert loop.time() - began < 20.0
        for number in range(100):
            line.send(frames.publish(PublishHead(number, f"attack.{1000 + number}", 1), body_of(1)))
        await settled(line, 11)

    under(tmp_path, attack)


def test_limits_of_one_client_hold_also_while_members_are_opened(tmp_path: Path) -> None:
    async def attack(hub: RunningHub, line: Line) -> None:
        line.send(
            *(
                said(control.Subscribe(id=n, subscription=n, pattern="attack.g", name=f"m{n}", credit=1, group="g"))
                for n in range(100, 200)
            )
        )
        found = await settled(line, 11)
        assert codes(found) == ["too_many"] * 90

    under(tmp_path, attack, limits={"subscriptions": 10})


@pytest.mark.parametrize("overflow", ["block", "reject"])
def test_a_client_that_never_reads(tmp_path: Path, overflow: str) -> None:
    """It subscribes to the honest publishers, and is disconnected, or delays only publishers that wait for it."""

    async def attack(hub: RunningHub, line: Line) -> None:
        wanted = control.Subscribe(
            id=5, subscription=1, pattern="attack.flood", name="all", credit=-1, capacity=2**40, overflow=overflow
        )
        line.send(said(wanted))
        await line.hear_answer(5)
        publisher = await Line.open(hub)
        publisher.send(Attacker(2).hello())
        await publisher.hear_answer(1)
        body = columns.pack_batch([Message(id="m", topic="attack.flood", payload=bytes(500_000))])
        sent = 0
        while sent < 400 * MEBIBYTE:
            try:
                publisher.writer.write(framed(frames.publish(PublishHead(sent, "attack.flood", 1), body)))
                sent += len(body)
                async with asyncio.timeout(0.5):
                    await publisher.writer.drain()
            except (TimeoutError, ConnectionError):
                break
        publisher.writer.transport.abort()
        line.writer.transport.abort()

    under(tmp_path, attack, heartbeat_s=1.0, limits={"pending_bytes": 8 * MEBIBYTE})


def test_half_frames_followed_by_silence(tmp_path: Path) -> None:
    async def attack(hub: RunningHub, line: Line) -> None:
        hello = framed(Attacker(3).hello())
        for greeting, rest in (
            (b"", b""),
            (b"", LENGTH.pack(60_000)),
            (b"", hello[: len(hello) // 2]),
            (None, LENGTH.pack(60 * MEBIBYTE) + b"\2" * 500_000),
            (None, LENGTH.pack(100)[:2]),
            (None, framed(raw_publish([1, "attack.a", 1], bytes(8)))[:-1]),
        ):
            lines = [await Line.open(hub) for _ in range(10)]
            for seed, each in enumerate(lines):
                each.writer.write((framed(Attacker(seed).hello()) if greeting is None else greeting) + rest)
            for each in lines:
                with contextlib.suppress(EOFError):
                    while await each.hear():
                        continue
                await each.close()
            line.send(said(control.Heartbeat()))

    under(tmp_path, attack, heartbeat_s=0.5, hello_s=0.5)


def test_hello_repeated_and_batch_numbers_that_go_back(tmp_path: Path) -> None:
    async def attack(hub: RunningHub, line: Line) -> None:
        line.send(*(Attacker(seed).hello() for seed in range(500)))
        assert set(codes(await settled(line, 600))) == {"out_of_order"}
        for number in (100, 99, 100, 0):
            line.send(frames.publish(PublishHead(number, "attack.shared", 1), body_of(1)))
        assert codes(await settled(line, 601)) == ["out_of_order"] * 3

    under(tmp_path, attack)


@pytest.mark.parametrize("journal", [False, True])
def test_heads_and_bodies_that_contradict_each_other(tmp_path: Path, journal: bool) -> None:
    """Invalid counts, priorities, ttls and texts. Those that the hub reads are refused with an error."""

    async def attack(hub: RunningHub, line: Line) -> None:
        number = 0

        async def refused(head: list[Any] | bytes, body: bytes) -> None:
            nonlocal number
            number += 1
            if isinstance(head, list):
                head = [number, *head]
            line.send(raw_publish(head, body))
            found = codes(await settled(line, 1000 + number))
            assert found, (head, body[:40])
            assert set(found) <= {"malformed", "invalid_topic", "forbidden"}

        topic = "attack.shared"
        for count in (0, -1, 1, 3, 2**62, 2**63):
            await refused([topic, count], body_of(2))
        for head in (
            [topic, 2, 101],
            [topic, 2, -1],
            [topic, 2, 2**40],
            [topic, 2, 50, False, -1.0],
            [topic, 2, 50, False, 0],
            [topic, 2, 50, False, float("nan")],
            [topic, 2, 50, False, 1e300],
            [topic, 2, 50, False, None, False, -1],
            [topic, 2, 50, False, None, False, 2**63],
            ["", 2],
            ["attack.*", 2],
            ["attack.>", 2],
            ["attack." + "x" * 300, 2],
            ["attack.\n", 2],
        ):
            await refused(head, body_of(2))
        for text in (b"\xff\xfe", b"\xed\xa0\x80", b"\xc3"):
            damaged = b"\x93" + msgspec.msgpack.encode(1000 + number) + bytes([0xA0 + len(text)]) + text + b"\x02"
            await refused(damaged, body_of(2))
        for rest in (
            {"priority": 101},
            {"priority": [50, -1]},
            {"ttl_s": -1.0},
            {"ttl_s": float("nan")},
            {"attempts": -1},
            {"type": 99},
            {"headers": {"a": 1}},
            {"requires_ack": 5},
            {"content_type": ""},
            {"nonsense": 1},
            {"sender": ["a"]},
            {"encoding": 7},
        ):
            await refused([topic, 2], body_of(2, **rest))
        await refused([topic, 2], body_of(2, ids=b"\xff\xfe"))
        await refused([topic, 2], body_of(3))
        await refused([topic, 1], msgspec.msgpack.encode({"id": "a", "topic": "another", "payload": b"x" * 8}))
        await refused([topic, 2], msgspec.msgpack.encode({"id": "a", "topic": topic, "payload": b"x" * 16}))
        await refused([topic, 1], b"\x81" * 5000)

    under(tmp_path, attack, journal=journal, max_malformed=1000)


def test_markers_that_lie(tmp_path: Path) -> None:
    """The hub does not check the encoding of payloads. Receivers must handle errors."""

    async def attack(hub: RunningHub, line: Line) -> None:
        number = 0
        for encoding in ("gzip", "zstd", "lz4", "fernet", "aes", "elided", "nonsense", "x" * 10_000):
            for content_type in ("application/json", "application/msgpack", "nonsense"):
                number += 1
                message = Message(
                    id=f"{number}",
                    topic="attack.shared",
                    payload=b"\x1f\x8b not compressed",
                    encoding=encoding,
                    content_type=content_type,
                )
                line.send(frames.publish(PublishHead(number, "attack.shared", 1), columns.pack_batch([message])))
        assert codes(await settled(line, 1000)) == []

    under(tmp_path, attack)


def test_what_the_hub_answers_is_json(tmp_path: Path) -> None:
    """Texts of the attacker appear in errors: they must not break the answer."""

    async def attack(hub: RunningHub, line: Line) -> None:
        for number, text in enumerate(('"', "\\", "\u2028", "\x00", "😀", "{}", "%s", "\x1b[2J"), 100):
            line.send(said(control.Topic(id=number, topic=text)))
            answer = await line.hear_answer(number)
            assert answer["code"] in ("invalid_topic", "forbidden"), answer
            assert json.loads(json.dumps(answer)) == answer

    under(tmp_path, attack)
