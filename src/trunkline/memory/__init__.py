"""Channels in shared memory: arrays between processes without copies. Needs the extra `memory`, and Linux."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trunkline.memory.frame import Frame as Frame
from trunkline.memory.frame import Loan as Loan
from trunkline.memory.metrics import ChannelMetrics as ChannelMetrics
from trunkline.memory.metrics import ConsumerMetrics as ConsumerMetrics
from trunkline.memory.metrics import MemoryMetrics as MemoryMetrics
from trunkline.memory.prometheus import export_metrics as export_metrics
from trunkline.memory.settings import ChannelSettings as ChannelSettings
from trunkline.memory.settings import Checksum as Checksum
from trunkline.memory.settings import Wants as Wants
from trunkline.wire.control import BufferPolicy as BufferPolicy

if TYPE_CHECKING:
    from trunkline.memory.frame_consumer import BlockingFrameConsumer as BlockingFrameConsumer
    from trunkline.memory.frame_consumer import FrameConsumer as FrameConsumer
    from trunkline.memory.frame_consumer import consumer as consumer
    from trunkline.memory.frame_producer import BlockingFrameProducer as BlockingFrameProducer
    from trunkline.memory.frame_producer import FrameProducer as FrameProducer
    from trunkline.memory.frame_producer import producer as producer

# These import the engine, so they are imported on first use.
_LATER = {
    "BlockingFrameConsumer": "frame_consumer",
    "FrameConsumer": "frame_consumer",
    "consumer": "frame_consumer",
    "BlockingFrameProducer": "frame_producer",
    "FrameProducer": "frame_producer",
    "producer": "frame_producer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
