"""Durable open topics: each message is one message of a stream that other programs can read."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from trunkline.brokers.engine.driver import EngineEvents
from trunkline.brokers.engine.open_topics import refusal_of_size
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.nats.ingest import AGAIN_S, LATER, FastIngest, IngestEvents, OpenMessage, answer_of
from trunkline.brokers.nats.jetstream import JetStream, intersection, merged
from trunkline.brokers.nats.link import NatsLink
from trunkline.brokers.nats.names import NatsNames
from trunkline.brokers.nats.owners import Owners
from trunkline.brokers.nats.refusals import JetStreamRefused, of_answer
from trunkline.brokers.nats.store import DUPLICATES_S, MAX_UPDATES, NANOS, STORED_TOPICS
from trunkline.errors import InvalidSettings, NotStored, Refused
from trunkline.topic import covers, matches

log = logging.getLogger("trunkline.connection")

FAST_FROM = (2, 14)
"""The first version of the server with fast ingest."""


class OpenStore:
    def __init__(self, link: NatsLink, names: NatsNames, owners: Owners, settings: EngineSettings) -> None:
        self._link = link
        self._names = names
        self._owners = owners
        self._settings = settings
        self.events: EngineEvents
        self.durable: tuple[str, ...] = ()
        """Patterns of the open topics that are stored."""
        self._wanted = [
            found
            for one in settings.open
            for other in settings.durable
            if (found := intersection(one, other)) is not None
        ]
        self._streams: dict[str, str] = {}
        """The stream of each pattern."""
        self._fast: dict[str, FastIngest] = {}
        """By stream, for streams that offer fast ingest."""
        self._single: dict[tuple[int, int], OpenMessage] = {}
        """Messages that were sent without fast ingest and are not confirmed."""
        self._left: dict[int, int] = {}
        """How many messages of a batch are neither stored nor refused."""
        self._refused: dict[int, dict[int, Refused]] = {}

    # The streams

    async def prepare(self, connection: Client, js: JetStream) -> None:
        """Find the existing streams that store these topics, and create one for the rest."""
        self.ended()
        self._streams.clear()
        own: list[str] = []
        for pattern in self._wanted:
            names = (await js.ask("STREAM.NAMES", subject=pattern)).get("streams") or []
            for name in names:
                found = await js.stream(name)
                if name == self._names.open or found is None:
                    continue
                if not any(covers(each, pattern) for each in found["config"]["subjects"]):
                    raise InvalidSettings(
                        f"the stream {name} at {self._link.url} stores a part of the open topics {pattern}: have it "
                        "store all of them, or name others in open= and durable="
                    )
                self._streams[pattern] = name
                await self._use(connection, name, found["config"].get("allow_batched", False))
                break
            else:
                own.append(pattern)
        if own:
            more: dict[str, object] = {"allow_batched": True} if _version(connection) >= FAST_FROM else {}
            config = await self._own_stream(js, merged(own), more)
            self._streams |= dict.fromkeys(own, self._names.open)
            await self._use(connection, self._names.open, config.get("allow_batched", False))
        self.durable = tuple(self._streams)

    async def _own_stream(self, js: JetStream, patterns: list[str], more: dict[str, object]) -> dict[str, object]:
        found = await js.stream(self._names.open)
        if found is not None and _wanted_of(found["config"], patterns, more) is None:
            config: dict[str, object] = found["config"]
            return config
        async with self._owners.alone(STORED_TOPICS):
            return await self._update(js, patterns, more)

    async def _update(self, js: JetStream, patterns: list[str], more: dict[str, object]) -> dict[str, object]:
        name, settings = self._names.open, self._settings
        for _ in range(MAX_UPDATES):
            found = await js.stream(name)
            if found is None:
                made = await js.ask(
                    f"STREAM.CREATE.{name}",
                    name=name,
                    subjects=patterns,
                    retention="limits",
                    storage="file",
                    discard="old",
                    num_replicas=settings.replicas,
                    max_age=int((settings.max_age_s or 0) * NANOS),
                    max_bytes=settings.max_bytes or -1,
                    duplicate_window=int(min(DUPLICATES_S, settings.max_age_s or DUPLICATES_S) * NANOS),
                    allow_direct=True,
                    **more,
                )
                config: dict[str, object] = made["config"]
                return config
            config = found["config"]
            wanted = _wanted_of(found["config"], patterns, more)
            if wanted is None:
                return config
            await js.ask(f"STREAM.UPDATE.{name}", **wanted)
        raise NotStored(f"{patterns}: other processes keep changing the stream {name}: try again")

    async def _use(self, connection: Client, stream: str, fast: object) -> None:
        if stream in self._fast:
            return
        if not fast:
            log.info(
                "%s: the stream %s has no allow_batched: messages are confirmed one by one", self._link.url, stream
            )
            return
        inbox = connection.new_inbox()
        events = IngestEvents(self._confirmed, self._was_refused, lambda rest: self._disabled(stream, rest))
        self._fast[stream] = ingest = FastIngest(self._link.write, inbox, events)
        self._link.listen(f"{inbox}.>", ingest.answered)

    def ended(self) -> None:
        for ingest in self._fast.values():
            ingest.ended()
        self._fast.clear()
        self._single.clear()
        self._left.clear()
        self._refused.clear()

    # Publishing

    def store(
        self, number: int, topic: str, messages: list[tuple[bytes, dict[str, str]]], name: str, max_bytes: int
    ) -> None:
        self._left[number] = len(messages)
        fitting: list[OpenMessage] = []
        for index, (payload, headers) in enumerate(messages):
            head = header_block({**headers, "Nats-Msg-Id": f"{name}-{index}"})
            message = OpenMessage(number, index, topic, head, payload)
            if len(head) + len(payload) > max_bytes:
                self._refuse(message, NotStored(str(refusal_of_size(topic, len(head) + len(payload), max_bytes))))
            else:
                fitting.append(message)
        ingest = self._fast.get(next(self._streams[each] for each in self.durable if matches(each, topic)))
        if ingest is not None:
            ingest.add(fitting)
        else:
            self._send_single(fitting)

    def _send_single(self, messages: Iterable[OpenMessage]) -> None:
        for message in messages:
            self._single[message.batch, message.place] = message
            self._link.write(message.command(f"{self._link.inbox}.o.{message.batch}-{message.place}"))

    def answered(self, place: str, answer: Msg) -> None:
        """The answer to a message that was sent without fast ingest."""
        batch, _, index = place.partition("-")
        message = self._single.get((int(batch), int(index)))
        if message is None:
            return
        found = answer_of(answer) if not (answer.headers or {}).get("Status") else {}
        if found is None:
            return
        error = of_answer(found)
        if not found or (error is not None and error.number in LATER):
            asyncio.get_running_loop().call_later(AGAIN_S, self._again, message)
            return
        del self._single[message.batch, message.place]
        if error is not None:
            self._was_refused(message, error)
        else:
            self._confirmed([message])

    def _again(self, message: OpenMessage) -> None:
        if self._single.get((message.batch, message.place)) is message:
            self._send_single([message])

    def _disabled(self, stream: str, rest: list[OpenMessage]) -> None:
        log.warning(
            "%s: the stream %s no longer has allow_batched: messages are confirmed one by one", self._link.url, stream
        )
        del self._fast[stream]
        self._send_single(rest)

    # Confirmation

    def _confirmed(self, messages: Iterable[OpenMessage]) -> None:
        for message in messages:
            self._settled(message.batch)

    def _was_refused(self, message: OpenMessage, error: JetStreamRefused) -> None:
        self._refuse(message, NotStored(f"{message.subject}: {error.text}"))

    def _refuse(self, message: OpenMessage, error: Refused) -> None:
        self._refused.setdefault(message.batch, {})[message.place] = error
        self._settled(message.batch)

    def _settled(self, batch: int) -> None:
        left = self._left.get(batch, 0) - 1
        if left > 0:
            self._left[batch] = left
        elif self._left.pop(batch, None) is not None:
            self.events.stored_open(batch, self._refused.pop(batch, {}))


def _wanted_of(config: dict[str, Any], patterns: list[str], more: dict[str, object]) -> dict[str, Any] | None:
    """The configuration of a stream with these patterns and fields; None if it has them already."""
    wanted = {**config, "subjects": merged([*config["subjects"], *patterns]), **more}
    return None if wanted == {**config, "subjects": sorted(config["subjects"])} else wanted


def header_block(headers: Mapping[str, str]) -> bytes:
    """The header block of a NATS message. Line breaks in values are replaced by spaces."""
    text = "\r\n".join([f"{name}: {value}" for name, value in headers.items()])
    if text.count("\n") != len(headers) - 1 or text.count("\r") != len(headers) - 1:
        text = "\r\n".join([re.sub(r"[\r\n]+", " ", f"{name}: {value}") for name, value in headers.items()])
    return f"NATS/1.0\r\n{text}\r\n\r\n".encode()


def _version(connection: Client) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", str(connection._server_info.get("version", "")))
    return (0,) if found is None else (int(found[1]), int(found[2]))
