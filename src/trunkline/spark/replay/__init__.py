"""Replay of messages that SQL selects: they are published again, or passed through changed handlers."""

from trunkline.spark.replay.replay import replay as replay
