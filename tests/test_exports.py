"""What `import trunkline` gives: these names and no others, without heavy imports and without effects."""

from __future__ import annotations

import subprocess
from types import ModuleType

import trunkline as tl
from tests.warm import NEW_PYTHON
from trunkline import hooks, journal

PUBLIC = """
    Account ActorError ActorFailed ActorProcessFailed ActorStopped Attempt Backpressure BackpressureTimeout BlockingBus
    BlockingStream Broker Bus BusClosed BusCommand BusState Cause
    CircuitOpen Closed Congested CutOff DeadLetter Delivery DuplicateName EncodeError EngineSettings
    EngineUnavailable Explanation Fate Feature Fields
    Handler HandlerTimeout Health History HeadersTooLarge HookFailed HubBroker HubError HubRefused HubUnavailable
    InboxFull
    InvalidExpression InvalidMessage InvalidPayload InvalidPriority InvalidSettings InvalidTopic InvalidTtl
    ExecutionFailed ExecutionTimeout JavaMissing WrongKernelKey
    KernelClosed KernelDied KernelError KernelNotStarted KernelRestarted
    JournalDamaged JournalError JournalLocked JournalUnusable ConnectionSettings MemoryBroker Message
    MessageExpired MessageTooLarge MessageType MissingCorrelationId MissingExtra Nacked NatsBroker
    NoResponders NotAcknowledged NotAllowed
    NotConfirmed NotHandled NotRouted NotStored Orphan Orphans Outcome Overflow PartlyRefused PayloadError Pipeline
    PipelineError Priority ProtocolError Qos RateLimited RecordingBroker RedisBroker Refused Reject Replayed
    RequestError RequestFailed RequestTimeout Retry Rule SchemaBroken Settings Stats Stream StreamClosed StreamEmpty
    Subscription
    FrameDamaged LayoutMismatch NoProducer ProducerGone SharedMemoryError SharedMemoryFull SlotsHeld TooManyConsumers
    StashFull StoreUnusable UnknownJournal WrongJournal WrongProcess
    SystemStopped ThreadDoor TopicNotStored TrunklineError Unfinished UnknownActor UnknownHandler UnknownScheme
    Unsupported UsageError WarehouseLocked WarehouseUnusable World connect connect_blocking endpoint run
    serve_metrics
"""

HOOKS = """
    Attachment Batch Breaker CircuitBreaker Compress Encrypt Forward Hook HookChain HookFunction KeyRing Log Metrics
    Persist Rate RateLimit Stage BatchStore
    TRACE Trace each
"""

JOURNAL = "Journal JournalBroker JournalSettings Reader Retention Sync"

HEAVY = "iceoryx2 xxhash zmq pyarrow opentelemetry prometheus_client uvloop numpy pyspark jupyter_client pytest"

LOOK = f"""
import sys, threading
import trunkline
heavy = {HEAVY.split()}
print([name for name in heavy if name in sys.modules], threading.active_count(), "trunkline.testing" in sys.modules)
"""


def names(module: ModuleType) -> set[str]:
    """What a star import or a completion would offer, without submodules."""
    return {
        name for name in dir(module) if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }


def test_public_names() -> None:
    assert names(tl) == set(PUBLIC.split())


def test_public_hooks() -> None:
    assert tl.hooks is hooks
    assert names(hooks) == set(HOOKS.split())


def test_public_names_of_the_journal() -> None:
    assert tl.journal is journal
    assert names(journal) == set(JOURNAL.split())


def test_every_name_says_where_it_is_from() -> None:
    for name in PUBLIC.split():
        assert getattr(tl, name).__module__.startswith("trunkline."), name


def test_version() -> None:
    assert tl.__version__ == "0.1.0"


def test_import_is_light_and_has_no_effects() -> None:
    seen = subprocess.run([*NEW_PYTHON, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout.split("\n")[0] == "[] 1 False"
    assert seen.stderr == ""
