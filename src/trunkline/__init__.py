"""One message bus for Python agents, actors, notebooks and instruments.

Importing it is cheap: each name is imported from its module when it is first used.
"""

import importlib
import sys
import types
import typing

from trunkline.errors import *  # noqa: F403

if typing.TYPE_CHECKING:
    from trunkline import actors as actors
    from trunkline import hooks as hooks
    from trunkline import journal as journal
    from trunkline import jupyter as jupyter
    from trunkline import memory as memory
    from trunkline import spark as spark
    from trunkline.actors.errors import ActorError as ActorError
    from trunkline.actors.errors import ActorFailed as ActorFailed
    from trunkline.actors.errors import ActorProcessFailed as ActorProcessFailed
    from trunkline.actors.errors import ActorStopped as ActorStopped
    from trunkline.actors.errors import StashFull as StashFull
    from trunkline.actors.errors import SystemStopped as SystemStopped
    from trunkline.actors.errors import UnknownActor as UnknownActor
    from trunkline.brokers.broker import Broker as Broker
    from trunkline.brokers.broker import Feature as Feature
    from trunkline.brokers.engine.settings import EngineSettings as EngineSettings
    from trunkline.brokers.hub.broker import HubBroker as HubBroker
    from trunkline.brokers.hub.settings import ConnectionSettings as ConnectionSettings
    from trunkline.brokers.memory import MemoryBroker as MemoryBroker
    from trunkline.brokers.nats.broker import NatsBroker as NatsBroker
    from trunkline.brokers.recording import RecordingBroker as RecordingBroker
    from trunkline.brokers.redis.broker import RedisBroker as RedisBroker
    from trunkline.bus.blocking import BlockingBus as BlockingBus
    from trunkline.bus.blocking import BlockingStream as BlockingStream
    from trunkline.bus.bus import Bus as Bus
    from trunkline.bus.closing import Unfinished as Unfinished
    from trunkline.bus.control import BusCommand as BusCommand
    from trunkline.bus.control import Health as Health
    from trunkline.bus.dispatcher import Handler as Handler
    from trunkline.bus.explain import Explanation as Explanation
    from trunkline.bus.lifecycle import BusState as BusState
    from trunkline.bus.observe import Stats as Stats
    from trunkline.bus.pipeline import Pipeline as Pipeline
    from trunkline.bus.replay import Replayed as Replayed
    from trunkline.bus.router import Rule as Rule
    from trunkline.bus.subscription import Subscription as Subscription
    from trunkline.bus.threads import ThreadDoor as ThreadDoor
    from trunkline.clock import World as World
    from trunkline.connect import connect as connect
    from trunkline.connect import connect_blocking as connect_blocking
    from trunkline.dashboard.metrics import serve_metrics as serve_metrics
    from trunkline.delivery.dead_letters import Attempt as Attempt
    from trunkline.delivery.dead_letters import Cause as Cause
    from trunkline.delivery.dead_letters import DeadLetter as DeadLetter
    from trunkline.delivery.fates import Account as Account
    from trunkline.delivery.fates import Fate as Fate
    from trunkline.delivery.fates import Outcome as Outcome
    from trunkline.delivery.options import Delivery as Delivery
    from trunkline.delivery.requests import Orphan as Orphan
    from trunkline.delivery.retry import Retry as Retry
    from trunkline.delivery.stream import Stream as Stream
    from trunkline.delivery.subscriber import Overflow as Overflow
    from trunkline.journal.errors import JournalLocked as JournalLocked
    from trunkline.journal.errors import JournalUnusable as JournalUnusable
    from trunkline.journal.errors import WrongJournal as WrongJournal
    from trunkline.jupyter.errors import ExecutionFailed as ExecutionFailed
    from trunkline.jupyter.errors import ExecutionTimeout as ExecutionTimeout
    from trunkline.jupyter.errors import KernelClosed as KernelClosed
    from trunkline.jupyter.errors import KernelDied as KernelDied
    from trunkline.jupyter.errors import KernelError as KernelError
    from trunkline.jupyter.errors import KernelNotStarted as KernelNotStarted
    from trunkline.jupyter.errors import KernelRestarted as KernelRestarted
    from trunkline.jupyter.errors import WrongKernelKey as WrongKernelKey
    from trunkline.memory.errors import CutOff as CutOff
    from trunkline.memory.errors import FrameDamaged as FrameDamaged
    from trunkline.memory.errors import LayoutMismatch as LayoutMismatch
    from trunkline.memory.errors import NoProducer as NoProducer
    from trunkline.memory.errors import ProducerGone as ProducerGone
    from trunkline.memory.errors import SharedMemoryError as SharedMemoryError
    from trunkline.memory.errors import SharedMemoryFull as SharedMemoryFull
    from trunkline.memory.errors import SlotsHeld as SlotsHeld
    from trunkline.memory.errors import TooManyConsumers as TooManyConsumers
    from trunkline.memory.errors import WrongProcess as WrongProcess
    from trunkline.message import Fields as Fields
    from trunkline.message import Message as Message
    from trunkline.message import MessageType as MessageType
    from trunkline.message import Priority as Priority
    from trunkline.program import run as run
    from trunkline.settings import Backpressure as Backpressure
    from trunkline.settings import History as History
    from trunkline.settings import Orphans as Orphans
    from trunkline.settings import Settings as Settings
    from trunkline.spark.errors import JavaMissing as JavaMissing
    from trunkline.spark.errors import PipelineError as PipelineError
    from trunkline.spark.errors import UnknownJournal as UnknownJournal
    from trunkline.spark.errors import WarehouseLocked as WarehouseLocked
    from trunkline.spark.errors import WarehouseUnusable as WarehouseUnusable
    from trunkline.topic import endpoint as endpoint
    from trunkline.wire.control import Qos as Qos

__version__ = "0.1.0"

_MODULES = ("actors", "hooks", "journal", "jupyter", "memory", "spark")
_NAMES = {
    "actors.errors": "ActorError ActorFailed ActorProcessFailed ActorStopped StashFull SystemStopped UnknownActor",
    "brokers.broker": "Broker Feature",
    "brokers.engine.settings": "EngineSettings",
    "brokers.hub.broker": "HubBroker",
    "brokers.hub.settings": "ConnectionSettings",
    "brokers.memory": "MemoryBroker",
    "brokers.nats.broker": "NatsBroker",
    "brokers.recording": "RecordingBroker",
    "brokers.redis.broker": "RedisBroker",
    "bus.blocking": "BlockingBus BlockingStream",
    "bus.bus": "Bus",
    "bus.closing": "Unfinished",
    "bus.control": "BusCommand Health",
    "bus.dispatcher": "Handler",
    "bus.explain": "Explanation",
    "bus.lifecycle": "BusState",
    "bus.observe": "Stats",
    "bus.pipeline": "Pipeline",
    "bus.replay": "Replayed",
    "bus.router": "Rule",
    "bus.subscription": "Subscription",
    "bus.threads": "ThreadDoor",
    "clock": "World",
    "connect": "connect connect_blocking",
    "dashboard.metrics": "serve_metrics",
    "delivery.dead_letters": "Attempt Cause DeadLetter",
    "delivery.fates": "Account Fate Outcome",
    "delivery.options": "Delivery",
    "delivery.requests": "Orphan",
    "delivery.retry": "Retry",
    "delivery.stream": "Stream",
    "delivery.subscriber": "Overflow",
    "journal.errors": "JournalLocked JournalUnusable WrongJournal",
    "jupyter.errors": "ExecutionFailed KernelClosed KernelDied KernelError"
    " KernelNotStarted KernelRestarted ExecutionTimeout WrongKernelKey",
    "memory.errors": "CutOff FrameDamaged LayoutMismatch NoProducer ProducerGone"
    " SharedMemoryError SharedMemoryFull SlotsHeld TooManyConsumers WrongProcess",
    "message": "Fields Message MessageType Priority",
    "program": "run",
    "settings": "Backpressure History Orphans Settings",
    "spark.errors": "JavaMissing PipelineError UnknownJournal WarehouseLocked WarehouseUnusable",
    "topic": "endpoint",
    "wire.control": "Qos",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


class _Package(types.ModuleType):
    """Keeps `trunkline.connect` the function, even after the module `trunkline.connect` is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOMES and isinstance(value, types.ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOMES})
