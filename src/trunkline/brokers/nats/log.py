"""Reads the entries that JetStream stores, with a consumer that acknowledges nothing and is removed afterwards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from trunkline.brokers.engine.driver import Entry
from trunkline.brokers.engine.log import LogBeginning, LogPage, LogState, RemovedEntries
from trunkline.brokers.engine.settings import EngineUrl
from trunkline.brokers.nats.address import login_of, servers_of
from trunkline.brokers.nats.jetstream import JetStream, place_in_stream
from trunkline.brokers.nats.refusals import NAME, translated
from trunkline.errors import EngineUnavailable, HubRefused, StoreUnusable

PAGE_ENTRIES = 1000
PAGE_BYTES = 8 * 1024 * 1024
IDLE_S = 300
"""How long the server keeps the consumer of a reader that died."""
ANSWER_S = 30.0
_NANOS = 1_000_000_000


class NatsLog:
    name = NAME

    def __init__(self, where: EngineUrl, client: str) -> None:
        self._where = where
        self._client = client
        self._servers = servers_of(where.address)
        self.url = ",".join(self._servers)
        self._prefix = f"{where.settings.namespace}."
        self._stream = f"{where.settings.namespace}-messages"
        self._connection = Client()
        self._js = JetStream(self._connection, self.url)
        self._why = ""

    async def connect(self) -> None:
        with translated(self.url):
            try:
                await self._connection.connect(
                    self._servers,
                    name=self._client,
                    error_cb=self._error,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=self._where.settings.connect_s,  # type: ignore[arg-type]  # accepts any number
                    **login_of(self._where),
                )
            except Exception as error:
                await self._connection.close()
                if self._why and not isinstance(error, OSError):
                    raise OSError(self._why) from error
                raise

    async def _error(self, error: Exception) -> None:
        self._why = str(error) or type(error).__name__

    async def aclose(self) -> None:
        await self._connection.close()

    async def _info(self, **fields: Any) -> dict[str, Any]:
        if not self._connection._server_info.get("jetstream"):
            raise StoreUnusable(NAME, self.url, "JetStream is not enabled: enable it, and publish on a durable topic")
        found = await self._js.stream(self._stream, **fields)
        if found is None:
            raise StoreUnusable(
                NAME,
                self.url,
                f"it has no stream {self._stream}: publish on a durable topic first, or correct ?namespace= in the URL",
            )
        return found

    async def state(self) -> LogState:
        found = await self._info()
        return LogState(self._stream, found["created"], int(found["state"]["last_seq"]))

    async def beginning(self, pattern: str) -> LogBeginning:
        first = await self._first()
        return LogBeginning(first, max([first - 1, *await self._deleted()]))

    async def _first(self) -> int:
        state = (await self._info())["state"]
        # `first_seq` of an empty stream is 0 or the next number.
        return max(int(state["first_seq"]), 1) if state["messages"] else int(state["last_seq"]) + 1

    async def _deleted(self) -> list[int]:
        """Entries that were removed individually, between others that still exist."""
        if not (await self._info())["state"].get("num_deleted"):
            return []
        found = await self._info(deleted_details=True)
        return sorted(map(int, found["state"].get("deleted") or ()))

    async def pages(self, pattern: str, first: int, last: int) -> AsyncIterator[LogPage]:
        gone = [RemovedEntries(each, each) for each in await self._deleted() if first <= each <= last]
        if gone:
            yield LogPage([], gone)
        inbox = self._connection.new_inbox()
        consumer = f"read-{inbox.rpartition('.')[2]}"
        config = {
            "name": consumer,
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "filter_subjects": [self._prefix + pattern],
            "inactive_threshold": IDLE_S * _NANOS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        with translated(self.url):
            answers = await self._connection.subscribe(f"{inbox}.*")
        await self._js.put_consumer(self._stream, consumer, config)
        try:
            delivered = 0
            after = first - 1
            while after < last:
                found = await self._pull(consumer, inbox, answers, delivered)
                delivered += len(found)
                entries = [entry for entry in found if entry.number <= last]
                upto = entries[0].number - 1 if entries else last
                there = await self._first()
                removed = [RemovedEntries(after + 1, min(there - 1, upto))] if min(there - 1, upto) > after else []
                after = entries[-1].number if len(entries) == len(found) and entries else last
                yield LogPage(entries, removed)
        finally:
            with translated(self.url):
                await answers.unsubscribe()
            await self._js.drop_consumer(self._stream, consumer)

    async def _pull(self, consumer: str, inbox: str, answers: Subscription, delivered: int) -> list[Entry]:
        """The next entries; none if there are no more."""
        wanted = {
            "batch": PAGE_ENTRIES,
            "no_wait": True,
            "max_bytes": max(PAGE_BYTES, self._connection.max_payload + 64 * 1024),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}"
        found: list[Entry] = []
        with translated(self.url):
            await self._connection.publish(subject, json.dumps(wanted).encode(), reply=f"{inbox}.{delivered}")
            while len(found) < PAGE_ENTRIES:
                message = await answers.next_msg(timeout=ANSWER_S)
                status = (message.headers or {}).get("Status")
                if status is None:
                    found.append(self._entry(message, delivered + len(found) + 1))
                elif status in ("404", "408") or (status == "409" and found):
                    break
                elif status != "100":
                    raise HubRefused("jetstream", f"reading {self._stream} failed: {message.headers}")
        return found

    def _entry(self, message: Msg, expected: int) -> Entry:
        place = place_in_stream(message.reply)
        if place is None or place.delivered != expected:
            raise EngineUnavailable(NAME, self.url, "an entry was lost in transit: the connection is too slow")
        return Entry(place.seq, message.subject[len(self._prefix) :], message.data, place.stored_ns)
