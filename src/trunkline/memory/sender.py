"""A producer without waiting: slots, numbers, and gating consumers. frame_producer.py adds the waiting."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

import msgspec

from trunkline.clock import World
from trunkline.errors import Closed
from trunkline.memory.about import ChannelAbout
from trunkline.memory.adapter import Loaned, ProducerPorts
from trunkline.memory.errors import LayoutMismatch
from trunkline.memory.frame import Loan, write
from trunkline.memory.gate import Gate
from trunkline.memory.header import ConsumerReport, FrameHeader, ReportKind
from trunkline.memory.layout import Layout, differences
from trunkline.memory.metrics import ChannelMetrics, ConsumerMetrics, HeldSlot
from trunkline.memory.settings import MAX_CONSUMERS, Checksum
from trunkline.memory.watch import RECHECK_S, Watch
from trunkline.topic import logical_name
from trunkline.transports.descriptors import Descriptor, Descriptors

log = logging.getLogger("trunkline.memory")


class FrameSender:
    """The sending end of a channel. The constructor raises DuplicateName, LayoutMismatch, SharedMemoryFull."""

    def __init__(self, about: ChannelAbout, layout: Layout, world: World) -> None:
        self.about = about
        self.layout = layout
        self._world = world
        self._ports = ProducerPorts(about)
        if (other := self._ports.about) != about:
            # Consumers keep the channel of an earlier producer alive.
            self._ports.close()
            raise _mismatch(about, other)
        self._watch = Watch()
        self._watch.add(self._ports.credit_descriptor)
        self._gate = Gate(about.queue, int(about.settings.stuck_s * 1e9))
        self._consumers: dict[int, ConsumerReport] = {}
        self._header = FrameHeader(run=world.time_ns(), pid=os.getpid())
        self._files = Descriptors()
        self._open = True
        self._checksums = about.settings.checksum is not Checksum.NONE
        self._loans = 0
        self._bytes = 0
        self._given_up = 0
        self._cut_off = 0
        self._cut: list[int] = []
        """Attached consumers that are cut off. Every frame contains their ids."""
        self._announce()

    @property
    def metadata(self) -> dict[str, Any]:
        """Additional information about the channel for the directory and the descriptor file."""
        return {"plane": "memory", "layout": self.layout.description, "pid": os.getpid()}

    def _announce(self) -> None:
        """Write the descriptor file, for consumers on this machine. With a bus, they ask the hub first."""
        descriptor = Descriptor(
            channel=self.about.channel,
            shm_name=logical_name(self.about.channel),
            schema_hash=self.about.hash,
            schema_version=self.about.settings.version,
            config=self.about.config,
            metadata=self.metadata,
        )
        try:
            self._files.announce(descriptor)
        except OSError as error:
            log.warning(
                "other processes cannot find the channel %s, because its descriptor file was not written: %s",
                self.about.channel,
                error,
            )
        # Consumers that this wakes must find the file.
        self._ports.announce()

    def fileno(self) -> int:
        return self._watch.fileno()

    # Frames

    def loan(self) -> Loan:
        """A slot, if `ready`. Raises SharedMemoryError if two are loaned already."""
        memory, loaned = self._ports.loan(self._world.time_ns())
        self._loans += 1
        return Loan(
            self.layout,
            memory,
            partial(self._send, loaned),
            checksums=self._checksums,
        )

    def end(self, loan: Loan, error: type[BaseException] | None) -> None:
        """Commit after a block that ended normally; otherwise give up the slot."""
        self._loans -= 1
        self._given_up += 1
        if error is not None:
            loan.give_up()
            return
        loan.commit()
        self._given_up -= 1

    def send(self, value: Any) -> None:
        """Copy a value into a slot, if `ready`, and send it.

        Cheaper than a loan, because no view leaves this function.
        """
        memory, loaned = self._ports.loan_unseen()
        try:
            length, checksum = write(self.layout, memory, value, checksums=self._checksums)
        except BaseException:
            self._given_up += 1
            del loaned
            raise
        self._send(loaned, length, checksum)

    def _send(self, loaned: Loaned, length: int, checksum: int) -> int:
        self._check()
        header = self._header
        header.seq += 1
        header.time_ns = self._world.time_ns()
        header.length = length
        header.checksum = checksum
        self._bytes += length
        return self._ports.send(loaned, header)

    # Consumers

    def ready(self) -> bool:
        """Whether every consumer that wants every frame has room for one more."""
        self._check()
        self._take_reports()
        return not self._gate or not self._gate.full(self._ahead)

    @property
    def _ahead(self) -> int:
        return int(self._header.seq) + self._loans

    def patience_s(self, since_ns: int) -> float:
        """The time to wait for consumers until one counts as stuck."""
        return self._gate.patience_ns(self._ahead, since_ns, self._world.time_ns()) / 1e9

    def wait(self, timeout_s: float) -> bool:
        """Wait for a report or the end of a consumer, for at most `RECHECK_S`; False if there was none."""
        self._check()
        ready = self._watch.wait(min(timeout_s, RECHECK_S))
        # Also without a wake-up: see RECHECK_S.
        self._ports.drain()
        self._take_reports()
        self._forget_dead(ready)
        return bool(ready)

    def _forget_dead(self, ready: set[int]) -> None:
        for pid in self._watch.ended(ready):
            for report in [each for each in self._consumers.values() if each.pid == pid]:
                self._forget(report, "died")
            self._ports.reap()

    def cut_off(self, since_ns: int) -> None:
        """Stop waiting for consumers that have taken nothing for too long."""
        for id in self._gate.stuck(self._ahead, since_ns, self._world.time_ns()):
            self._cut_off += 1
            self._cut.append(id)
            self._leave_gate(id)
            log.error(
                "the consumer %s of %s (pid %d) took no frame for %g s: the producer no longer waits for it",
                self._consumers[id].name.decode(errors="replace"),
                self.about.channel,
                self._consumers[id].pid,
                self.about.settings.stuck_s,
            )

    def _take_reports(self) -> None:
        while (report := self._ports.report()) is not None:
            if report.kind == ReportKind.LEFT:
                self._forget(report, "")
            else:
                self._take(report)

    def _take(self, report: ConsumerReport) -> None:
        known = report.id in self._consumers
        self._consumers[report.id] = report
        if not known:
            # Otherwise a producer that never waits would keep them for ever.
            self._forget_dead(self._watch.wait(0))
            # The consumer gets all frames from now on, and first the last one, if it has requested that.
            self._ports.connect()
            if not self._watch.add_process(report.pid):
                self._forget(report, "died")
                return
            if report.gates:
                self._gate.join(report.id, int(self._header.seq), self._world.time_ns())
                self._set_gate()
        elif report.id in self._gate and report.run == self._header.run:
            self._gate.move(report.id, report.position, self._world.time_ns())

    def _forget(self, report: ConsumerReport, why: str) -> None:
        self._consumers.pop(report.id, None)
        if report.id in self._cut:
            self._cut.remove(report.id)
            self._set_gate()
        if self._leave_gate(report.id) and why:
            self._cut_off += 1
            log.warning(
                "the consumer %s of %s (pid %d) %s: the producer no longer waits for it",
                report.name.decode(errors="replace"),
                self.about.channel,
                report.pid,
                why,
            )
        if not any(each.pid == report.pid for each in self._consumers.values()):
            self._watch.remove_process(report.pid)

    def _leave_gate(self, id: int) -> bool:
        left = self._gate.leave(id)
        if left:
            self._set_gate()
        return left

    def _set_gate(self) -> None:
        ids = (*self._gate.ids, *self._cut)[:MAX_CONSUMERS]
        self._header.gates, self._header.cuts = len(self._gate.ids), len(ids) - len(self._gate.ids)
        self._header.gate[: len(ids)] = ids

    # Numbers

    def metrics(self) -> ChannelMetrics:
        self.wait(0)
        return self.counted()

    def counted(self) -> ChannelMetrics:
        """As `metrics`, from the last frame or the last call.

        Can be called in any thread, because it does not use the engine.
        """
        now_ns = self._world.time_ns()
        consumers = [self._metrics_of(each, now_ns) for each in list(self._consumers.values())]
        queue = self.about.queue
        return ChannelMetrics(
            channel=self.about.channel,
            writes=self._header.seq,
            written_bytes=self._bytes,
            given_up=self._given_up,
            cut_off=self._cut_off,
            queue=queue,
            slots=self.about.slots,
            occupancy=max((min(each.waiting, queue) / queue for each in consumers), default=0.0),
            last_frame_s=(now_ns - self._header.time_ns) / 1e9 if self._header.seq else None,
            consumers=consumers,
        )

    def _metrics_of(self, report: ConsumerReport, now_ns: int) -> ConsumerMetrics:
        held_s = (now_ns - report.oldest_held_ns) / 1e9
        return ConsumerMetrics(
            channel=self.about.channel,
            name=report.name.decode(errors="replace"),
            pid=report.pid,
            wants_every=bool(report.gates),
            reads=report.reads,
            overruns=report.overruns,
            waiting=self._header.seq - report.position if report.run == self._header.run else self._header.seq,
            held=report.held,
            oldest_held=HeldSlot(seq=report.oldest_held, held_s=held_s) if report.held else None,
        )

    # The end

    def _check(self) -> None:
        if not self._open:
            raise Closed(f"the producer of {self.about.channel!r} is closed")
        if self._ports.foreign:
            self._ports.check()

    def close(self) -> None:
        """Close the channel. Does nothing in a forked child."""
        if not self._open or self._ports.foreign:
            return
        self._open = False
        self._files.withdraw(self.about.channel)
        self._watch.close(self._ports.credit_descriptor)
        self._ports.close()


def _mismatch(ours: ChannelAbout, theirs: ChannelAbout) -> LayoutMismatch:
    texts = [] if ours.layout is None or theirs.layout is None else differences(ours.layout, theirs.layout)
    for name in ("config", "settings", "slot_bytes"):
        mine, other = (msgspec.to_builtins(getattr(about, name)) for about in (ours, theirs))
        if mine != other:
            texts.append(f"{name}: expected is {mine}, the channel has {other}")
    return LayoutMismatch(ours.channel, ours.title, theirs.title, texts)
