"""Messages that SQL selects: published again, or driven through changed handlers."""

from trunkline.spark.replay.replay import replay as replay
