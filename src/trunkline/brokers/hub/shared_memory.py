"""The client's part of shared memory: large payloads that are exchanged with the hub in shared memory."""

from __future__ import annotations

import logging
from weakref import WeakSet

from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.remote.adapter import NEVER_ALONE
from trunkline.clock import World
from trunkline.delivery.shared_body import SharedBody
from trunkline.errors import ProtocolError
from trunkline.segments import Lease, MappedSegment, Segment, SegmentPool, probe
from trunkline.wire import control
from trunkline.wire.frames import MIN_SHARED_BYTES, SharedPayload

log = logging.getLogger("trunkline.connection")


class SharedMemory:
    """The shared memory of one connection. Each new connection checks again whether it can be used."""

    def __init__(self, settings: ConnectionSettings, world: World) -> None:
        self._on = settings.shared_memory
        self._least = max(MIN_SHARED_BYTES, settings.shared_memory_min_bytes)
        self._secret = world.secret
        self._pool = SegmentPool(settings.shared_memory_pool_bytes, world.secret())
        self._probe: Lease | None = None
        self._hub = 0
        """The hub's process, if its memory can be opened."""
        self._mapped: WeakSet[MappedSegment] = WeakSet()
        self.published = 0
        """The number of messages whose payload was sent to the hub in shared memory."""
        self.inline = 0
        """The number of messages that were large enough, but for which there was no free segment."""
        self.delivered = 0
        """The number of received messages whose payload was in shared memory."""

    def offer(self) -> control.Probe | None:
        """The segment with which the hub can test whether it can open memory of this process."""
        self._probe = offered = probe(self._secret()) if self._on else None
        if offered is None:
            return None
        return control.Probe(descriptor=offered.descriptor, size=offered.size, token=offered.token)

    def connected(self, welcome: control.Welcome, process: int) -> bool:
        """Check whether memory of the hub can be opened. `process` is the process of the hub."""
        self._probe = None
        theirs = welcome.memory
        if theirs is None or not self._on:
            return False
        try:
            Segment.open(process, theirs.descriptor, theirs.size, theirs.token)
        except ProtocolError as error:
            log.debug("shared memory of the hub is not used: %s", error.text)
            return False
        self._hub = process
        return True

    def min_bytes(self, welcome: control.Welcome) -> int:
        """The minimum size of a payload that is shared with this hub."""
        return self._least if welcome.shares else NEVER_ALONE

    def disconnected(self) -> None:
        self._probe = None
        self._hub = 0

    def put(self, payload: bytes) -> Lease | None:
        lease = self._pool.put(payload)
        if lease is None:
            self.inline += 1
        else:
            self.published += 1
        return lease

    def take(self, payload: SharedPayload) -> SharedBody:
        """The body of a received batch. If its memory is gone, reading it raises an error."""
        segment: Segment | None = None
        try:
            segment = Segment.open(self._hub, payload.descriptor, payload.size, payload.token)
            self.delivered += 1
        except ProtocolError as error:
            # Reading the payload raises the error.
            log.debug("a payload in the hub's memory could not be opened: %s", error.text)
        return SharedBody(payload.envelope, segment, payload.size, self._mapped)

    def close(self) -> None:
        self.disconnected()
        self._pool.close()
