"""The adapter of the engine, iceoryx2: nodes, services and ports of one end of a channel.

No other module uses its types. This module enforces some rules: sending never blocks (`DiscardData`), segments are
reserved when they are created, and objects of the engine are never destroyed in a forked child, nor by `delete()` while
a slot may be viewed.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple
from weakref import WeakSet, ref

from trunkline.errors import DuplicateName, MissingExtra
from trunkline.memory.about import LINE, ChannelAbout, unpack
from trunkline.memory.errors import (
    NoProducer,
    SharedMemoryError,
    SharedMemoryFull,
    SlotsHeld,
    TooManyConsumers,
    WrongProcess,
)
from trunkline.memory.header import ConsumerReport, FrameHeader
from trunkline.memory.place import SHM, engine_prefix, engine_root
from trunkline.memory.settings import MAX_CONSUMERS
from trunkline.topic import logical_name

try:
    import iceoryx2 as iox
except ImportError as error:
    raise MissingExtra("memory", "shared memory") from error

log = logging.getLogger("trunkline.memory")

OPENED: Final = 1
CLOSED: Final = 2
"""Events of a channel: the producer opened or closed it. Event 0 is a new frame."""
RESERVE_BYTES: Final = 1 << 20
"""The space that must be free in /dev/shm in addition to the frames, for small files of the engine."""
KEYS: Final = "about"
_HEADER_BYTES: Final = ctypes.sizeof(FrameHeader)
_memmove: Final = ctypes.memmove
_address: Final = ctypes.addressof
_SIDE_NODES: Final = MAX_CONSUMERS + 8
_FAILURES: Final = tuple(each for each in vars(iox).values() if isinstance(each, type) and issubclass(each, Exception))
_living: WeakSet[Ports] = WeakSet()
"""All ports that are open, or have viewed slots."""


class _Line(ctypes.Structure):
    """The element type of payloads. The engine pads each element to the alignment, so an element has that size."""

    _fields_ = (("bytes", ctypes.c_ubyte * LINE),)


Loaned = Any
"""The engine's sample, for sending. The memory of the slot is separate, because sending must not keep it."""


class Received(NamedTuple):
    memory: ctypes.Array[ctypes.c_ubyte]
    header: FrameHeader


class Borrowed(NamedTuple):
    seq: int
    """The number of the frame; 0 while it is written."""
    since_ns: int
    memory: ref[ctypes.Array[ctypes.c_ubyte]]


class Ports:
    """One end of a channel. It is used only in the process that opened it. Closing it several times is allowed."""

    about: ChannelAbout
    _slot_type: type[ctypes.Array[ctypes.c_ubyte]]
    _held: ClassVar[tuple[str, ...]]
    """The attributes with objects of the engine. They are dropped, never deleted by the engine's `delete`."""

    def __init__(self, channel: str, name: str = "") -> None:
        self.channel = channel
        self.pid = os.getpid()
        self.foreign = False
        """Whether this is a forked child, in which the object must not be used."""
        self.borrowed: dict[int, Borrowed] = {}
        """Slots that may be viewed, oldest first."""
        self._borrows = 0
        self._service_name = name or logical_name(channel)
        _reserve(channel, RESERVE_BYTES)
        _at_first()
        with _translated():
            self._node = iox.NodeBuilder.new().config(_config()).create(iox.ServiceType.Ipc)
        self._objects: list[Any] = [self._node]
        _living.add(self)

    def check(self) -> None:
        """Raises WrongProcess in a forked child."""
        if self.foreign:
            raise WrongProcess(self.channel, self.pid)

    def reap(self) -> None:
        """Remove leftovers of dead processes, as far as the engine can."""
        self._node.try_cleanup_dead_nodes()

    def close(self) -> None:
        """Close the ports. Borrowed slots stay valid until their views are gone."""
        if not self.foreign:
            self._objects.clear()
            for name in self._held:
                self.__dict__.pop(name, None)

    def leak(self) -> None:
        """In a forked child, objects of the parent must never be destroyed, not even at exit."""
        self.foreign = True
        memories = (each.memory() for each in self.borrowed.values())
        for each in [*self._objects, *memories]:
            if each is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))

    def _keep(self, made: Any) -> Any:
        self._objects.append(made)
        return made

    def _builder(self, suffix: str = "") -> Any:
        return self._node.service_builder(iox.ServiceName.new(self._service_name + suffix))

    def _frames_builder(self) -> Any:
        return (
            self._builder()
            .publish_subscribe(iox.Slice[_Line])
            .user_header(FrameHeader)
            .payload_alignment(iox.Alignment.new(LINE))
        )

    def _wake_builder(self) -> Any:
        return (
            self._builder()
            .event()
            .max_listeners(MAX_CONSUMERS + 2)
            .max_notifiers(2)
            .max_nodes(_SIDE_NODES)
            .notifier_created_event(iox.EventId.new(OPENED))
            .notifier_dropped_event(iox.EventId.new(CLOSED))
        )

    def _credit_builder(self) -> Any:
        return self._builder("/credit").event().max_listeners(2).max_notifiers(MAX_CONSUMERS + 2).max_nodes(_SIDE_NODES)

    def _report_builder(self) -> Any:
        return (
            self._builder("/report")
            .publish_subscribe(ConsumerReport)
            .max_publishers(MAX_CONSUMERS + 2)
            .max_subscribers(2)
            .max_nodes(_SIDE_NODES)
            .history_size(0)
            .subscriber_max_buffer_size(1)
            .subscriber_max_borrowed_samples(1)
            .enable_safe_overflow(True)
        )

    def _borrow(self, sample: Any, port: Any, seq: int, now_ns: int) -> ctypes.Array[ctypes.c_ubyte]:
        """The memory of a slot. Views keep it alive, and it keeps the sample: the slot is free after the last view."""
        memory = self._slot_type.from_address(sample.payload_ptr)
        # It also keeps the port, without which the producer would reuse the slot, and this object, which handles forks.
        memory.owner = (sample, port, self)  # type: ignore[attr-defined]
        self._borrows = number = self._borrows + 1
        borrowed = self.borrowed
        borrowed[number] = Borrowed(seq, now_ns, ref(memory, lambda _: borrowed.pop(number, None)))
        return memory


class ProducerPorts(Ports):
    _held = ("_notifier", "_publisher", "_credits", "_reports", "_wake", "_node")

    def __init__(self, about: ChannelAbout) -> None:
        """Open the producer's end. Raises DuplicateName, SharedMemoryFull, SharedMemoryError.

        If consumers keep the channel of an earlier producer alive, `about` describes that one. If it differs, these
        ports can only be closed.
        """
        super().__init__(about.channel)
        _reserve(about.channel, about.needed_bytes + RESERVE_BYTES)
        try:
            with _translated():
                self._open(about)
        except BaseException:
            self.close()
            raise

    def _open(self, about: ChannelAbout) -> None:
        # The service of the frames is created last: a consumer that finds it finds all others.
        self._wake = self._keep(self._wake_builder().open_or_create())
        credit = self._keep(self._credit_builder().open_or_create())
        report = self._keep(self._report_builder().open_or_create())
        self._reports = self._keep(report.subscriber_builder().create())
        self._credits = self._keep(credit.listener_builder().create())
        self.credit_descriptor = _descriptor(self._credits)
        frames, self.about = self._frames(about)
        self._slot_type = _slot_type(self.about.slot_bytes)
        self._slot_lines = self.about.slot_bytes // LINE
        if self.about == about:
            self._publisher = self._publish(frames, about)

    def _frames(self, about: ChannelAbout) -> tuple[Any, ChannelAbout]:
        attributes = iox.AttributeSpecifier.new()
        for number, chunk in enumerate(about.pack()):
            attributes = attributes.define(iox.AttributeKey.new(f"{KEYS}{number}"), iox.AttributeValue.new(chunk))
        builder = (
            self._frames_builder()
            .max_publishers(1)
            .max_subscribers(about.settings.consumers)
            .max_nodes(_SIDE_NODES)
            .history_size(1)
            .subscriber_max_buffer_size(about.queue)
            .subscriber_max_borrowed_samples(about.settings.held)
            .enable_safe_overflow(True)
        )
        try:
            return self._keep(builder.create_with_attributes(attributes)), about
        except iox.PublishSubscribeCreateError as error:
            if _reason(error) != "AlreadyExists":
                raise
        # Kept alive by consumers, or by another producer.
        frames = self._keep(self._frames_builder().open())
        return frames, _about(self.channel, frames)

    def _publish(self, frames: Any, about: ChannelAbout) -> Any:
        def create() -> Any:
            return (
                frames.publisher_builder()
                .backpressure_strategy(iox.BackpressureStrategy.DiscardData)
                .allocation_strategy(iox.AllocationStrategy.Static)
                .initial_max_slice_len(about.slot_bytes // LINE)
                .max_loaned_samples(2)
                .override_sample_preallocation(about.slots)
                .create()
            )

        try:
            publisher = self._keep(create())
        except iox.PublisherCreateError as error:
            if _reason(error) != "ExceedsMaxSupportedPublishers":
                raise
            self.reap()
            try:
                publisher = self._keep(create())
            except iox.PublisherCreateError as again:
                raise DuplicateName("producer of the channel", self.channel) from again
        _allocate(self.channel, publisher.id.value)
        return publisher

    def announce(self) -> None:
        """Wake the consumers that wait for a producer. Call it before the first send."""
        with _translated():
            self._notifier = self._keep(self._wake.notifier_builder().create())

    def loan(self, now_ns: int) -> tuple[ctypes.Array[ctypes.c_ubyte], Loaned]:
        """A free slot. Raises SharedMemoryError if two are loaned already."""
        sample = self._loan()
        return self._borrow(sample, self._publisher, 0, now_ns), sample

    def loan_unseen(self) -> tuple[memoryview, Loaned]:
        """A free slot for internal use: the caller must release its view before the slot."""
        sample = self._loan()
        return memoryview(self._slot_type.from_address(sample.payload_ptr)).cast("B"), sample

    def _loan(self) -> Loaned:
        try:
            return self._publisher.loan_slice_uninit(self._slot_lines)
        except iox.LoanError as error:
            raise SharedMemoryError(
                f"no slot of {self.channel!r} can be loaned ({error}): end loans and delete views first, "
                f"{len(self.borrowed)} are in use"
            ) from error

    def send(self, loaned: Loaned, header: FrameHeader) -> int:
        """Send the frame. Returns the number of consumers that got it."""
        _memmove(loaned.user_header_ptr, _address(header), _HEADER_BYTES)
        try:
            received: int = loaned.assume_init().send()
            self._notifier.notify()
        except (iox.SendError, iox.NotifierNotifyError) as error:
            raise _failed(error) from error
        return received

    def connect(self) -> None:
        """Connect new consumers. They get the last frame, if they have requested it, and all later ones."""
        self._publisher.update_connections()
        self._notifier.notify()

    def report(self) -> ConsumerReport | None:
        """The next report of a consumer."""
        sample = self._reports.receive()
        return None if sample is None else ConsumerReport.from_buffer_copy(sample.payload().contents)

    def drain(self) -> None:
        """Discard the wake-ups on `credit_descriptor`."""
        self._credits.try_wait()


class ConsumerPorts(Ports):
    _held = ("_subscriber", "_listener", "_reporter", "_credit", "_wake", "_service", "_node")

    def __init__(self, channel: str, name: str = "") -> None:
        """Open a consumer's end. Nothing is received before `attach`.

        Raises NoProducer, SharedMemoryFull, SharedMemoryError.
        """
        super().__init__(channel, name)
        try:
            with _translated():
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._service = self._keep(self._frames_builder().open())
            self._wake = self._keep(self._wake_builder().open())
            credit = self._keep(self._credit_builder().open())
            report = self._keep(self._report_builder().open())
        except (iox.PublishSubscribeOpenError, iox.EventOpenError) as error:
            if _reason(error) != "DoesNotExist":
                raise
            raise NoProducer(self.channel) from error
        self.about = _about(self.channel, self._service)
        self._slot_type = _slot_type(self.about.slot_bytes)
        self._credit = self._keep(credit.notifier_builder().create())
        self._reporter = self._keep(
            report.publisher_builder().backpressure_strategy(iox.BackpressureStrategy.DiscardData).create()
        )

    def attach(self, *, queue: int, history: int) -> None:
        """Start to receive frames. Raises TooManyConsumers."""
        with _translated():
            # Before the frames, so that a frame that arrives in between wakes the consumer.
            self._listener = self._keep(self._wake.listener_builder().create())
            self.descriptor = _descriptor(self._listener)
            try:
                self._subscriber = self._keep(self._subscribe(queue, history))
            except iox.SubscriberCreateError as error:
                if _reason(error) != "ExceedsMaxSupportedSubscribers":
                    raise
                self.reap()
                try:
                    self._subscriber = self._keep(self._subscribe(queue, history))
                except iox.SubscriberCreateError as again:
                    raise TooManyConsumers(self.channel, self.about.settings.consumers) from again

    def _subscribe(self, queue: int, history: int) -> Any:
        return self._service.subscriber_builder().buffer_size(queue).history_request(history).create()

    def receive(self, now_ns: int) -> Received | None:
        """The next frame. Raises SlotsHeld if too many are held."""
        try:
            sample = self._subscriber.receive()
        except iox.ReceiveError as error:
            if _reason(error) == "ExceedsMaxBorrows":
                oldest = next(iter(self.borrowed.values()))
                held_s = (now_ns - oldest.since_ns) / 1e9
                raise SlotsHeld(self.channel, len(self.borrowed), oldest.seq, held_s) from error
            raise SharedMemoryError(f"{self.channel!r} cannot be read: {error}") from error
        if sample is None:
            return None
        header = FrameHeader.from_address(sample.user_header_ptr)
        return Received(self._borrow(sample, self._subscriber, header.seq, now_ns), header)

    def connect(self) -> None:
        """Connect to a new producer. Its frames from now on are received, even if it closes at once."""
        with _translated():
            self._subscriber.has_samples()

    def report(self, report: ConsumerReport) -> None:
        """Send a report to the producer, and wake it if it waits."""
        try:
            self._reporter.send_copy(report)
            self._credit.notify()
        except (iox.LoanError, iox.SendError, iox.NotifierNotifyError) as error:
            raise _failed(error) from error

    def drain(self) -> set[int]:
        """The events since the last call: frames (0), OPENED, CLOSED."""
        return {event.id.as_value for event in self._listener.try_wait()}


# Once a process


@cache
def _at_first() -> None:
    iox.set_log_level(iox.LogLevel.Fatal)
    os.register_at_fork(after_in_child=_leak_all)
    # Objects at module level are not destroyed at interpreter exit.
    atexit.register(_close_all)


def _leak_all() -> None:
    for ports in list(_living):
        ports.leak()


def _close_all() -> None:
    for ports in list(_living):
        ports.close()


def has_ports() -> bool:
    """Whether this process has an end of a channel open, or a view of a slot."""
    return any(not ports.foreign and (ports._objects or ports.borrowed) for ports in _living)


# Errors, and missing features of the engine


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise _failed(error) from error


def _failed(error: Exception) -> SharedMemoryError:
    return SharedMemoryError(
        f"the shared-memory engine failed ({type(error).__name__}: {error}): `trunkline doctor` shows what dead "
        "processes left behind"
    )


def _reason(error: Exception) -> str:
    """The name of the variant of an engine error, which is its only distinction."""
    return str(error)


def _config() -> Any:
    root = engine_root()
    config = iox.config.default()
    config.global_cfg.root_path = iox.Path.new(str(root))
    config.global_cfg.prefix = iox.FileName.new(engine_prefix(root))
    return config


@cache
def _slot_type(slot_bytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * slot_bytes


def _about(channel: str, service: Any) -> ChannelAbout:
    found = {each.key.to_string(): each.value.to_string() for each in service.attributes.values}
    try:
        return unpack([found[f"{KEYS}{number}"] for number in range(len(found))])
    except (KeyError, ValueError) as error:
        raise SharedMemoryError(f"{channel!r} was not made by this version of Trunkline: {error}") from error


def _reserve(channel: str, needed_bytes: int) -> None:
    """Check the free space.

    The engine writes its small files unchecked, and a full /dev/shm would end the process by SIGBUS.
    """
    free = os.statvfs(SHM)
    free_bytes = free.f_bavail * free.f_frsize
    if free_bytes < needed_bytes:
        raise SharedMemoryFull(channel, needed_bytes, free_bytes)


def _allocate(channel: str, publisher_id: int) -> None:
    """Reserve all pages of a sparse data segment, so that writing to it cannot fail."""
    (path,) = SHM.glob(f"{engine_prefix(engine_root())}*_{publisher_id}.data")
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            free = os.statvfs(SHM)
            raise SharedMemoryFull(channel, size, free.f_bavail * free.f_frsize) from error


def _descriptor(listener: Any) -> int:
    """The descriptor of a listener's socket. The engine does not expose it, so it is found by the socket's address."""
    name = f"{engine_prefix(engine_root())}{listener.id.value}.event"
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                continue
            duplicate = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            # Closed meanwhile, by another thread.
            continue
        with duplicate:
            address = duplicate.getsockname()
            if isinstance(address, str) and address.endswith(name):
                return int(entry)
    raise SharedMemoryError(f"the socket {name} of the shared-memory engine was not found among the open files")


def reap_nodes(ids: set[str]) -> None:
    """Remove dead nodes, in a process without nodes. Nodes that the engine cannot remove stay."""
    _at_first()
    for state in iox.Node.list(iox.ServiceType.Ipc, _config()):
        if not isinstance(state, iox.NodeState.Dead) or str(state._0.id.value) not in ids:
            continue
        try:
            state._0.try_remove_stale_resources()
        except iox.NodeCleanupFailure as error:
            log.info("the files of the dead node %s could not be removed: %s", state._0.id.value, error)
