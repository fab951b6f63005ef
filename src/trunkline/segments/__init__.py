"""Segments: memory for large payloads that other processes of the same user on this host read in place.

A segment is a memfd: it has no name, and disappears with the last process that has it open. A reader opens
`/proc/PID/fd/N`, which gives it a separate open file description, and takes a shared `flock` on that. The owner
reuses a segment when it gets the exclusive lock. The kernel drops the locks of a process that dies, so there are no
reference counts, nothing is left behind after `kill -9`, and there is nothing to clean up.
"""

from __future__ import annotations

from trunkline.segments.pool import Lease, SegmentPool, probe
from trunkline.segments.segment import MappedSegment, Segment, available

__all__ = ["Lease", "MappedSegment", "Segment", "SegmentPool", "available", "probe"]
