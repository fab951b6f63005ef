"""Logs each publish at TRACE level: id, topic, sender, recipient. Log lines of a handler get the id of its message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trunkline.hooks.hook import Batch, Forward, Hook, Stage
from trunkline.message import Message
from trunkline.message_log import TRACE as TRACE
from trunkline.message_log import about, handled


class Log(Hook):
    stage = Stage.LOG

    def __init__(self, logger: logging.Logger | None = None, level: int = TRACE) -> None:
        self._logger = logger or logging.getLogger("trunkline.publish")
        self._level = level
        if logging.getLevelName(TRACE) == f"Level {TRACE}":
            logging.addLevelName(TRACE, "TRACE")

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        if self._logger.isEnabledFor(self._level):
            for message in batch:
                self._logger.log(
                    self._level,
                    "publish id=%s topic=%s sender=%s recipient=%s",
                    message.id,
                    message.topic,
                    message.sender,
                    message.recipient,
                    extra=about(message),
                )
        await forward(batch)

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        """With the formatters of `message_log`, log lines inside have the ids of the message and its trace."""
        token = handled.set(message)
        try:
            yield
        finally:
            handled.reset(token)
