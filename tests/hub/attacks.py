"""Attacks on the protocol: conversations of a real client, and seeded mutations of them."""

from __future__ import annotations

import base64
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from trunkline import Cause, DeadLetter, Fate, Message, columns
from trunkline.wire import control, frames
from trunkline.wire.frames import LENGTH, Kind, PublishHead

TOPICS = ("attack.a", "attack.b", "attack.b.c", "attack.group", "attack.full")
PATTERNS = (*TOPICS, "attack.>", "attack.*", ">", "*", "_to.me", "")
POLICIES = ("block", "reject", "drop_oldest", "drop_newest", "nonsense")
WEIRD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, 1e308),
    *("", "x" * 300, "a\nb", "\ud800", "attack.a", "ä.ö", "*", ">", "HELLO", "end"),
    *([], {}, [[]], [[1, 2, 3]], [1] * 50, {"a": {"b": []}}),
)

_tokens = itertools.count(1)


def framed(frame: bytes) -> bytes:
    return LENGTH.pack(len(frame)) + frame


def said(message: control.Control) -> bytes:
    return frames.control(control.write(message))


class Attacker:
    """Makes frames: valid, nearly valid, and invalid."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seqs: deque[int] = deque([1, 2], maxlen=50)
        """Of messages that were delivered to it."""
        self._numbers = itertools.count(1)
        self._batches = itertools.count(1)
        self._sane = (
            self._topic,
            self._subscribe,
            self._join,
            self._credit,
            self._publish,
            self._publish,
            self._ack,
            self._nack,
            self._fates,
            self._small_talk,
            self._link,
            self._registry,
        )
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._flip_bits,
            self._flip_bits,
            self._cut_short,
            self._extend,
            self._splice,
            self._other_kind,
            self._other_value,
            self._other_value,
            self._other_value,
            self._other_head,
            self._other_body,
            self._break_text,
            self._nest,
        )

    # The protocol

    def hello(self) -> bytes:
        token = f"{next(_tokens)}-{self.chance.random()}"
        number, origin = next(self._numbers), self._origin()
        return said(
            control.Hello(id=number, versions=[1], name="attacker", origin=origin, token=token, at_ns=time.time_ns())
        )

    def _origin(self) -> int:
        # Sometimes that of another client: a reconnecting client replaces its old connection.
        return 7 if self.chance.random() < 0.05 else self.chance.getrandbits(53)

    def sane(self) -> bytes:
        """A frame that a client might send."""
        return self.chance.choice(self._sane)()

    def _topic(self) -> bytes:
        return said(control.Topic(id=next(self._numbers), topic=self.chance.choice(TOPICS)))

    def _subscription(self) -> int:
        return self.chance.randrange(8)

    def _subscribe(self) -> bytes:
        return said(
            control.Subscribe(
                id=next(self._numbers),
                subscription=self._subscription(),
                pattern=self.chance.choice(PATTERNS),
                name=self.chance.choice(("a", "b", "")),
                credit=self.chance.choice((-1, 0, 1, 5, 10_000)),
                capacity=self.chance.choice((1, 5, 10_000)),
                overflow=self.chance.choice(POLICIES),
                tap=self.chance.random() < 0.2,
                hears=self.chance.random() < 0.8,
            )
        )

    def _join(self) -> bytes:
        return said(
            control.Subscribe(
                id=next(self._numbers),
                subscription=self._subscription(),
                pattern=self.chance.choice(("attack.group", "attack.>")),
                name=self.chance.choice(("a", "b")),
                credit=self.chance.choice((0, 3, 1000)),
                capacity=self.chance.choice((1, 5, 1000)),
                overflow=self.chance.choice(("block", "drop_newest")),
                group=self.chance.choice(("g", "h", None)),
                durable=self.chance.random() < 0.2,
                start=self.chance.choice(("end", "beginning", 5, -1, "yesterday")),
            )
        )

    def _credit(self) -> bytes:
        return said(
            control.Credit(subscription=self._subscription(), messages=self.chance.choice((0, 1, 100, -1, 2**62)))
        )

    def batch(self, count: int) -> bytes:
        """The body of a valid batch."""
        messages = [
            Message(
                id=f"m{number}",
                topic="t",
                payload=self.chance.randbytes(self.chance.choice((0, 5, 100))),
                timestamp_ns=number,
                headers={"a": "b"} if self.chance.random() < 0.2 else None,
                ttl_s=5 if self.chance.random() < 0.1 else None,
                priority=self.chance.choice((50, 50, 50, 90)),
            )
            for number in range(count)
        ]
        return columns.encode(messages, [message.timestamp_ns for message in messages])

    def _publish(self) -> bytes:
        count = self.chance.choice((1, 2, 3, 20))
        head = PublishHead(next(self._batches), self.chance.choice(TOPICS), count, self.chance.choice((50, 0, 100)))
        return frames.publish(head, self.batch(count))

    def _ack(self) -> bytes:
        ranges = [tuple(sorted((self._seq(), self._seq()))) for _ in range(self.chance.randrange(4))]
        return said(control.Ack(subscription=self._subscription(), ranges=ranges))  # type: ignore[arg-type]  # pairs

    def _seq(self) -> int:
        return self.chance.choice((*self.seqs, *self.seqs, 0, 50, 10_000, 2**62))

    def _letter(self) -> str:
        letter = DeadLetter(
            message=Message(topic="attack.group", seq=self._seq()),
            subscriber="someone",
            cause=Cause.REJECTED,
            reason="because",
            error_type="Reject",
            traceback="",
            attempts=(),
            at_ns=self.chance.choice((1, -1, 2**64 - 1)),
        )
        data = letter.to_bytes() if self.chance.random() < 0.5 else self._flip_bits(letter.to_bytes())
        return base64.b64encode(data).decode()

    def _nack(self) -> bytes:
        fate = self.chance.choice((*Fate, "returned", "nonsense"))
        letter = self._letter() if self.chance.random() < 0.3 else None
        return said(control.Nack(subscription=self._subscription(), seq=self._seq(), fate=fate, letter=letter))

    def _fates(self) -> bytes:
        rows = [
            control.FateRow(
                fate=self.chance.choice((*Fate, "nonsense")),
                first=first,
                last=first + self.chance.choice((0, 0, 3, -1)),
                count=self.chance.choice((1, 1, 2, 0, 2**63)),
            )
            for first in (self._seq() for _ in range(self.chance.randrange(3)))
        ]
        letters = [self._letter() for _ in range(self.chance.randrange(2))]
        return said(control.Fates(subscription=self._subscription(), rows=rows, letters=letters))

    def _small_talk(self) -> bytes:
        number = next(self._numbers)
        kinds: list[control.Control] = [
            control.Heartbeat(),
            control.Heartbeat(id=number),
            control.Stats(id=number),
            control.Trace(id=number, on=self.chance.random() < 0.5, client=self.chance.choice(("*", "attack*", "["))),
            control.Withdraw(batch=self.chance.randrange(30), reason="enough"),
            control.Stop(subscription=self._subscription()),
            control.Unsubscribe(id=number, subscription=self._subscription()),
        ]
        return said(self.chance.choice(kinds))

    def _link(self) -> bytes:
        kind = self.chance.choice((control.Link, control.Unlink))
        topics = (*TOPICS, "_to.me", "*")
        pattern, topic = self.chance.choice(PATTERNS), self.chance.choice(topics)
        return said(kind(id=next(self._numbers), pattern=pattern, topic=topic))

    def _registry(self) -> bytes:
        number, channel = next(self._numbers), self.chance.choice(TOPICS)
        kinds: list[control.Control] = [
            control.ProducerRegister(id=number, channel=channel, metadata={"a": [1]}),
            control.ProducerUnregister(id=number, channel=channel),
            control.ConsumerRegister(id=number, channel=channel, consumer_id="c"),
            control.ConsumerUnregister(id=number, channel=channel, consumer_id="c"),
            control.DiscoveryRequest(id=number, channel=channel),
            control.ChannelCreate(id=number, channel=channel, qos=control.Qos(priority=80)),
            control.ChannelDestroy(id=number, channel=channel),
            control.ChannelList(id=number),
            control.ChannelDescribe(id=number, channel=channel),
            control.SchemaPut(id=number, name="s", schema={"type": "object", "properties": {"a": {"type": "integer"}}}),
            control.SchemaGet(id=number, name="s"),
            control.SchemaList(id=number),
        ]
        return said(self.chance.choice(kinds))

    # What can be made of it

    def frame(self) -> bytes:
        """Some are valid, most are not."""
        luck = self.chance.random()
        if luck < 0.04:
            return self.chance.randbytes(self.chance.randrange(1, 200))
        if luck < 0.05:
            return self.hello()
        frame = self.sane()
        if luck < 0.5:
            return frame
        for _ in range(self.chance.choice((1, 1, 1, 2, 3))):
            frame = self.chance.choice(self._ways)(frame) or b"\0"
        return frame

    def frames(self, count: int) -> list[bytes]:
        """This many, some of them twice, some in another order."""
        made = [self.frame() for _ in range(count)]
        for index in range(1, count):
            luck = self.chance.random()
            if luck < 0.05:
                made[index] = made[index - 1]
            elif luck < 0.1:
                made[index - 1], made[index] = made[index], made[index - 1]
        return made

    def last_words(self) -> bytes:
        """Bytes after which frames can no longer be separated: an impossible length, or half a frame."""
        frame = framed(self.sane())
        length = self.chance.choice((0, 2**32 - 1, 2**31, 64 * 1024 * 1024 + 1))
        return self.chance.choice((LENGTH.pack(length) + frame, frame[: len(frame) // 2], frame[:3], b""))

    def _flip_bits(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self.chance.choice((1, 1, 2, 8))):
            changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)

    def _cut_short(self, frame: bytes) -> bytes:
        return frame[: self.chance.randrange(len(frame))]

    def _extend(self, frame: bytes) -> bytes:
        return frame + self.chance.randbytes(self.chance.randrange(1, 20))

    def _splice(self, frame: bytes) -> bytes:
        other = self.sane()
        return frame[: self.chance.randrange(len(frame))] + other[self.chance.randrange(len(other)) :]

    def _other_kind(self, frame: bytes) -> bytes:
        return bytes([self.chance.choice((0, 1, 2, 3, 4, 255))]) + frame[1:]

    def _weird(self) -> Any:
        return self.chance.choice(WEIRD)

    def _other_value(self, frame: bytes) -> bytes:
        """A control message with a changed, a missing or an additional value."""
        try:
            value = json.loads(frame[1:])
        except (ValueError, RecursionError):
            return self._flip_bits(frame)
        if not isinstance(value, dict) or not value:
            return frame
        name = self.chance.choice(list(value))
        luck = self.chance.random()
        if luck < 0.7:
            value[name] = self._weird()
        elif luck < 0.85:
            del value[name]
        else:
            value[self.chance.choice(("id", "re", "nonsense", "group", "letter", "reason"))] = self._weird()
        return frames.control(json.dumps(value).encode())

    def _other_head(self, frame: bytes) -> bytes:
        """A batch with a false head."""
        head: list[Any] = [next(self._batches), "attack.a", 2, 50, False, None, False, 0]
        head[self.chance.randrange(len(head))] = self.chance.choice((-1, 0, 3, 2**62, 2**64 - 1, "x", None, 1.5, True))
        data = msgspec.msgpack.encode(head[: self.chance.randrange(len(head) + 1)])
        return frames.PREFIX.pack(Kind.PUBLISH, len(data)) + data + self.batch(2)

    def _other_body(self, frame: bytes) -> bytes:
        """A batch with another body: most of the hub never reads it."""
        body = self._flip_bits(self.batch(2)) if self.chance.random() < 0.7 else self.chance.randbytes(40)
        return frames.publish(PublishHead(next(self._batches), self.chance.choice(TOPICS), 2), body)

    def _break_text(self, frame: bytes) -> bytes:
        return frame.replace(b"a", self.chance.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0")), 1)

    def _nest(self, frame: bytes) -> bytes:
        depth = self.chance.choice((10, 500, 5000))
        opened, closed = self.chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return frames.control(b'{"type":"STATS","id":1,"deep":' + opened * depth + b"1" + closed * depth + b"}")
