"""The protocol of fast ingest, against a stream that loses answers, forgets batches and refuses messages, at random.

The stream follows processJetStreamFastBatchMsg of nats-server 2.15, with gaps that end a batch.
"""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from trunkline.brokers.nats.ingest import FastIngest, IngestEvents, OpenMessage
from trunkline.brokers.nats.refusals import JetStreamRefused
from trunkline.testing.loop import VirtualLoop

COUNT = 300
REFUSED = {b"7", b"8", b"150", b"299"}
DISABLED, UNKNOWN, NO_LEADER, TOO_LARGE = 10205, 10208, 10118, 10054


class RandomStream:
    """Stores each message once, by name. Each fault happens once in `odds` times."""

    def __init__(self, seed: int, odds: int) -> None:
        self.random = random.Random(seed)
        self.odds = odds
        self.entries: list[bytes] = []
        self.batches: dict[str, SimpleNamespace] = {}
        self.enabled = True
        self.answer: Any = None

    def fault(self) -> bool:
        return bool(self.odds) and self.random.randrange(self.odds) == 0

    def write(self, commands: bytes) -> None:
        while commands:
            line, _, rest = commands.partition(b"\r\n")
            _, _, reply, headers, size = line.decode().split()
            commands = rest[int(size) + 2 :]
            self.take(reply, rest[int(headers) : int(size)])

    def say(self, reply: str, **answer: Any) -> None:
        if not self.fault():
            headers = {"Status": "503"} if answer.pop("nobody", None) else None
            message = SimpleNamespace(subject=reply, data=json.dumps(answer).encode(), headers=headers)
            loop = asyncio.get_running_loop()
            loop.call_soon(self.answer, message)

    def take(self, reply: str, payload: bytes) -> None:
        _, _, name, flow, gap, number, _, suffix = reply.split(".")
        assert (gap, suffix) == ("fail", "$FI")
        seq = int(number)
        if not self.enabled:
            self.refuse(reply, DISABLED)
        elif self.fault():
            self.say(reply, nobody=True)
        elif self.fault():
            self.refuse(reply, NO_LEADER)
        elif payload in REFUSED:
            self.refuse(reply, TOO_LARGE)
        else:
            if self.fault():
                self.batches.clear()
            batch = self.batches.get(name)
            if batch is None and seq == 1:
                batch = self.batches[name] = SimpleNamespace(last=0, said=0, flow=self.random.randint(1, int(flow)))
            if batch is None:
                self.refuse(reply, UNKNOWN)
            elif batch.last + 1 != seq:
                self.say(reply, type="gap", last_seq=batch.last + 1, seq=seq)
                self.commit(reply, name, batch)
            else:
                batch.last = seq
                self.append(reply, name, batch, payload)

    def append(self, reply: str, name: str, batch: SimpleNamespace, payload: bytes) -> None:
        commits = reply.endswith(".2.$FI")
        if batch.last == 1 and not commits:
            self.say(reply, type="ack", seq=0, msgs=batch.flow)
        if payload not in self.entries:
            self.entries.append(payload)
        if commits:
            self.commit(reply, name, batch)
        elif batch.last >= batch.said + batch.flow:
            batch.said = batch.last
            self.say(reply, type="ack", seq=batch.last, msgs=batch.flow)

    def commit(self, reply: str, name: str, batch: SimpleNamespace) -> None:
        del self.batches[name]
        self.say(reply, stream="s", seq=len(self.entries), batch=name, count=batch.last)

    def refuse(self, reply: str, number: int) -> None:
        self.say(reply, stream="s", seq=0, error={"code": 400, "err_code": number, "description": "no"})


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("odds", [0, 200, 20])
def test_each_message_is_stored_once_in_order_or_refused(seed: int, odds: int) -> None:
    async def test() -> None:
        stream = RandomStream(seed, odds)
        confirmed: list[bytes] = []
        refused: list[bytes] = []
        done = asyncio.Event()

        def count() -> None:
            if len(confirmed) + len(refused) == COUNT:
                done.set()

        def confirm(messages: list[OpenMessage]) -> None:
            for message in messages:
                assert message.payload in stream.entries, "confirmed, and not stored"
            confirmed.extend(message.payload for message in messages)
            count()

        def refuse(message: OpenMessage, error: JetStreamRefused) -> None:
            assert error.number == TOO_LARGE
            refused.append(message.payload)
            count()

        def disabled(rest: list[OpenMessage]) -> None:
            raise AssertionError("it is enabled")

        ingest = FastIngest(stream.write, "_INBOX.x", IngestEvents(confirm, refuse, disabled))  # type: ignore[arg-type]
        stream.answer = ingest.answered
        left = [OpenMessage(1, index, "t", b"NATS/1.0\r\n\r\n", b"%d" % index) for index in range(COUNT)]
        while left:
            burst = stream.random.choice([1, 1, 5, 80])
            ingest.add(left[:burst])
            del left[:burst]
            await asyncio.sleep(stream.random.choice([0, 0, 0.1]))
        async with asyncio.timeout(100_000):
            await done.wait()
        everything = [b"%d" % index for index in range(COUNT)]
        assert set(refused) == REFUSED
        assert len(refused) == len(REFUSED)
        assert stream.entries == confirmed == [each for each in everything if each not in REFUSED]
        ingest.ended()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


def test_what_is_left_when_it_is_disabled_is_given_back() -> None:
    async def test() -> None:
        stream = RandomStream(0, 0)
        confirmed: list[bytes] = []
        rest: list[bytes] = []
        given_back = asyncio.Event()

        def disabled(messages: list[OpenMessage]) -> None:
            rest.extend(message.payload for message in messages)
            given_back.set()

        def confirm(messages: list[OpenMessage]) -> None:
            confirmed.extend(message.payload for message in messages)
            stream.enabled = False

        events = IngestEvents(confirm, lambda message, error: None, disabled)  # type: ignore[arg-type]
        ingest = FastIngest(stream.write, "_INBOX.x", events)
        stream.answer = ingest.answered
        everything = [b"%d" % index for index in range(1000, 2000)]
        ingest.add([OpenMessage(1, 0, "t", b"NATS/1.0\r\n\r\n", each) for each in everything])
        await given_back.wait()
        assert confirmed
        assert confirmed + rest == everything

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())
