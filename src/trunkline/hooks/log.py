"""Log each publish at TRACE level: id, topic, sender, recipient."""

from __future__ import annotations

import logging

from trunkline.hooks.hook import Batch, Forward, Hook, Stage

TRACE = 5


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
                )
        await forward(batch)
