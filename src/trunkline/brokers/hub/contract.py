"""Contracts: messages are checked against the schema of their channel before they are sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trunkline.brokers.directory import sift
from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.remote.adapter import TopicTerms
from trunkline.delivery.pending import Failures
from trunkline.errors import HubRefused, UsageError
from trunkline.message import Message
from trunkline.schema import Checker
from trunkline.wire import control

log = logging.getLogger("trunkline.connection")

MAX_SCHEMAS = 1000
DEAD_LETTER = "dead_letter"
TAKEN_OUT = ("schema", DEAD_LETTER)
"""Codes of failures after which a message does not count in the numbers of its batch."""


class Contracts:
    """The contracts of channels. Each schema is requested once, because a schema with a given hash never changes."""

    def __init__(self, connection: Connection, max_bytes: int) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._checkers: dict[str, Checker | None] = {}

    async def check(self, terms: TopicTerms, messages: Sequence[Message]) -> tuple[list[Message], Failures]:
        """The messages that match the schema of their channel, and those that do not, with the problem."""
        checker = await self._checker(terms.schema or "")
        return sift(checker, terms.channel or terms.topic, messages, self._max_bytes)

    async def _checker(self, hash: str) -> Checker | None:
        if hash not in self._checkers:
            if len(self._checkers) >= MAX_SCHEMAS:
                self._checkers.clear()
            try:
                answer = await self._connection.ask(lambda number: control.SchemaGet(id=number, hash=hash))
                assert isinstance(answer, control.Schemas)
                self._checkers[hash] = Checker(answer.schemas[0].schema)
            except (HubRefused, UsageError) as error:
                # The hub checks the messages as well, and refuses those that do not match.
                log.warning(
                    "this process cannot check messages against the schema %s before it publishes them: %s", hash, error
                )
                self._checkers[hash] = None
        return self._checkers[hash]
