"""A consumer without waiting: which frames it gets, and what it reports. frame_consumer.py adds the waiting."""

from __future__ import annotations

import logging
import os
from typing import Any
from weakref import ref

from trunkline.clock import World
from trunkline.errors import StreamClosed
from trunkline.memory.about import ChannelAbout, title_of
from trunkline.memory.adapter import CLOSED, OPENED, ConsumerPorts, Received
from trunkline.memory.errors import CutOff, FrameDamaged, LayoutMismatch, ProducerGone
from trunkline.memory.frame import Frame
from trunkline.memory.header import ConsumerReport, FrameHeader, ReportKind
from trunkline.memory.layout import Layout, differences, layout_from, layout_of
from trunkline.memory.metrics import ConsumerMetrics, HeldSlot
from trunkline.memory.settings import Checksum, Wants
from trunkline.memory.watch import RECHECK_S, Watch
from trunkline.transports.descriptors import Descriptors

log = logging.getLogger("trunkline.memory")

REPORT_NS = 1_000_000_000
"""How often a consumer that does not gate the producer reports its state while it receives."""
_FRAMES = frozenset((0,))


class FrameReceiver:
    """The receiving end of a channel.

    The constructor raises NoProducer, LayoutMismatch, TooManyConsumers, SharedMemoryFull.
    """

    def __init__(
        self, channel: str, shm_name: str, *, schema: Any, version: str, wants: Wants, name: str, world: World
    ) -> None:
        self.channel = channel
        self.name = name or world.program()
        self.wants = wants
        self._world = world
        self._ports = ConsumerPorts(channel, shm_name)
        self._watch = Watch()
        self._open = True
        try:
            self.about = self._ports.about
            self.layout = _agreed(self.about, schema, version)
            self._id = world.random.getrandbits(32) or 1
            queue = 1 if wants is Wants.LATEST else self.about.queue
            self._ports.attach(queue=queue, history=1 if wants is Wants.LATEST else 0)
            self._watch.add(self._ports.descriptor)
        except BaseException:
            self._watch.close()
            self._ports.close()
            raise
        self._verifies = self.about.settings.checksum is Checksum.ENFORCED
        # Less than the queue, so that the producer knows of free room even if the last few frames are not reported yet.
        self._report_every = max(1, self.about.queue // 4)
        self._run = 0
        self._seq = 0
        self._producer = 0
        """The pid of the producer, 0 if it is not known."""
        self._gone: ProducerGone | None = None
        self._restarted = False
        self._gated = False
        """Whether a frame of the producer has announced that it waits for this consumer."""
        self._cut_after: int | None = None
        """The last frame that it got before it was cut off."""
        self._reads = 0
        self._overruns = 0
        self._last_ns = 0
        self._unreported = 0
        self._reported_ns = 0
        self._named = 0
        """The frame that was reported as held for too long."""
        self._last_report = ConsumerReport(id=self._id, pid=os.getpid(), name=self.name.encode()[:63])
        """The last report, which is reused: creating one takes most of the time of a report."""
        self._find_producer()
        self._report()

    def fileno(self) -> int:
        return self._watch.fileno()

    # Frames

    def take(self) -> Frame | None:
        """The next frame, or None. Raises SlotsHeld, CutOff, FrameDamaged."""
        if not self._open:
            raise StreamClosed(self.channel)
        ports = self._ports
        if ports.foreign:
            ports.check()
        now_ns = self._world.time_ns()
        if ports.borrowed:
            self._name_held(now_ns)
        while (received := ports.receive(now_ns)) is not None:
            if self._wanted(received.header):
                frame = self._frame(received, now_ns)
                del received
                if self._verifies:
                    self._verify(frame)
                return frame
            # Released before the next one is received; otherwise it would count as held.
            del received
        if self._cut_after is not None:
            raise CutOff(self.channel, self._cut_after)
        return None

    def gone(self) -> ProducerGone | None:
        """Whether the producer has left and all its frames are received. Reported once."""
        found, self._gone = self._gone, None
        return found

    def _wanted(self, header: FrameHeader) -> bool:
        seq = header.seq
        if header.run != self._run:
            # If the producer started while this consumer was attached, this consumer gets all its frames.
            self._restarted = bool(self._run)
            missed = seq - 1 if self._restarted else 0
            self._run, self._gated = header.run, False
            self._watch_producer(header.pid)
        else:
            missed = seq - self._seq - 1
        self._seq = seq
        if self.wants is Wants.LATEST:
            return True
        if self.wants is Wants.EVERY:
            if self._id not in header.gate[: header.gates]:
                # Sent before the producer waited for this consumer, or after it stopped waiting.
                cut = self._id in header.gate[header.gates : header.gates + header.cuts]
                if cut and self._cut_after is None:
                    self._cut_after = seq - missed - 1
                self._overruns += missed + 1 if cut or self._restarted else 0
                return False
            missed = missed if self._gated or self._restarted else 0
            self._gated = True
        self._overruns += missed
        return True

    def _frame(self, received: Received, now_ns: int) -> Frame:
        memory, header = received
        self._last_ns = sent_ns = header.time_ns
        frame = Frame(self.channel, self.layout, memory, self._seq, sent_ns, header.length, header.checksum)
        memory.frame = ref(frame)  # type: ignore[attr-defined]
        self._reads += 1
        self._unreported += 1
        due = self._unreported >= self._report_every and self.wants is Wants.EVERY
        if due or now_ns - self._reported_ns >= REPORT_NS:
            self._report(now_ns)
        return frame

    def _verify(self, frame: Frame) -> None:
        try:
            frame.verify()
        except FrameDamaged:
            # A stored exception must not keep the slot.
            frame.drop()
            raise

    # The producer

    def wait(self, timeout_s: float | None) -> None:
        """Wait for an event, for at most `RECHECK_S`, and handle it."""
        self.see(RECHECK_S if timeout_s is None else min(timeout_s, RECHECK_S), waited=True)

    def see(self, timeout_s: float = 0, *, waited: bool) -> None:
        """Handle events. If there were none and the caller `waited`, send a pending report to the producer."""
        if not self._open:
            return
        ready = self._watch.wait(timeout_s)
        # Also without a wake-up: see RECHECK_S.
        events = self._ports.drain()
        if events == _FRAMES and len(ready) == 1:
            return
        if waited and self._unreported and not events and not ready:
            self._report()
        if CLOSED in events:
            self._watch.remove_process(self._producer)
            self._producer = 0
            self._gone = ProducerGone(self.channel, died=False)
        if OPENED in events:
            # A producer that has already closed again removed its file before.
            if self._find_producer():
                self._gone = None
            self._ports.connect()
            self._report()
        for pid in self._watch.ended(ready):
            if pid == self._producer:
                self._producer = 0
                self._gone = ProducerGone(self.channel, died=True)

    def _find_producer(self) -> bool:
        found = Descriptors().find(self.channel)
        if found is not None:
            self._watch_producer(found.pid)
        return found is not None

    def _watch_producer(self, pid: int) -> None:
        if pid == self._producer:
            return
        self._watch.remove_process(self._producer)
        self._producer = pid
        if not self._watch.add_process(pid):
            self._producer = 0
            self._gone = ProducerGone(self.channel, died=True)

    # Numbers

    def _name_held(self, now_ns: int) -> None:
        oldest = next(iter(self._ports.borrowed.values()))
        held_s = (now_ns - oldest.since_ns) / 1e9
        if held_s > self.about.settings.held_too_long_s and oldest.seq != self._named:
            self._named = oldest.seq
            log.warning(
                "the consumer %s of %s has held frame %d for %.3g s", self.name, self.channel, oldest.seq, held_s
            )

    def _report(self, now_ns: int = 0, kind: ReportKind = ReportKind.PRESENT) -> None:
        self._unreported = 0
        self._reported_ns = now_ns or self._world.time_ns()
        oldest = next(iter(self._ports.borrowed.values()), None)
        report = self._last_report
        report.kind = kind
        report.gates = self.wants is Wants.EVERY and self._cut_after is None
        report.held = len(self._ports.borrowed)
        report.run, report.position = self._run, self._seq
        report.reads, report.overruns = self._reads, self._overruns
        report.oldest_held, report.oldest_held_ns = (oldest.seq, oldest.since_ns) if oldest else (0, 0)
        self._ports.report(report)

    def metrics(self) -> ConsumerMetrics:
        """The counters. Can be called in any thread."""
        now_ns = self._world.time_ns()
        borrowed = list(self._ports.borrowed.values())
        oldest = borrowed[0] if borrowed else None
        return ConsumerMetrics(
            channel=self.channel,
            name=self.name,
            pid=os.getpid(),
            wants_every=self.wants is Wants.EVERY,
            reads=self._reads,
            overruns=self._overruns,
            waiting=0,
            held=len(borrowed),
            oldest_held=HeldSlot(seq=oldest.seq, held_s=(now_ns - oldest.since_ns) / 1e9) if oldest else None,
            last_frame_s=(now_ns - self._last_ns) / 1e9 if self._last_ns else None,
        )

    # Closing

    def close(self) -> None:
        """Release all frames. Raises BufferError if views are in use: they stay valid."""
        if views := self.shut():
            raise BufferError(
                f"{views} views of frames of {self.channel!r} are still in use. They stay valid, and their slots are "
                "free when they are gone. Copy what you want to keep"
            )

    def shut(self) -> int:
        """As `close`, but returns the number of slots that are still viewed. Does nothing in a forked child."""
        if not self._open or self._ports.foreign:
            return 0
        self._open = False
        self._watch.close(self._ports.descriptor)
        self._report(kind=ReportKind.LEFT)
        for each in list(self._ports.borrowed.values()):
            _drop_frame(each.memory())
        self._ports.close()
        return len(self._ports.borrowed)


def _drop_frame(memory: Any) -> None:
    frame = None if memory is None else memory.frame()
    if frame is not None:
        frame.drop()


def _agreed(about: ChannelAbout, schema: Any, version: str) -> Layout:
    """The layout that both sides have. Raises LayoutMismatch, with the fields that differ."""
    described = about.layout or _announced(about)
    if schema is None:
        if described is None:
            raise LayoutMismatch(
                about.channel, "none", about.title, ["the channel does not hold its schema: pass schema="]
            )
        return layout_from(described)
    layout = layout_of(schema)
    if layout.hash != about.hash:
        texts = [] if described is None else differences(layout.description, described)
        raise LayoutMismatch(about.channel, title_of(version, layout.hash), about.title, texts)
    return layout


def _announced(about: ChannelAbout) -> dict[str, Any] | None:
    """The schema in the producer's file, used if it is too large to be stored with the channel."""
    found = Descriptors().find(about.channel)
    layout = None if found is None or found.schema_hash != about.hash else found.metadata.get("layout")
    return layout if isinstance(layout, dict) else None
