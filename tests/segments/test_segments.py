"""Segments: others read in place what one process writes; read data is never overwritten; nothing is trusted."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.errors import ProtocolError
from trunkline.segments import Lease, Segment, SegmentPool
from trunkline.segments.pool import MAX_SEGMENTS
from trunkline.segments.segment import HEADER_BYTES, SEALS

SECRET = "0123456789abcdef0123456789abcdef"
PAYLOAD = bytes(range(256)) * 1024


def _pool(max_bytes: int = 4 * 1024 * 1024) -> SegmentPool:
    return SegmentPool(max_bytes, SECRET)


def _put(pool: SegmentPool, payload: bytes = PAYLOAD) -> Lease:
    lease = pool.put(payload)
    assert lease is not None
    return lease


def _open(lease: Lease) -> Segment:
    return Segment.open(os.getpid(), lease.descriptor, lease.size, lease.token)


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_payload_is_read_in_place_and_as_a_copy() -> None:
    pool = _pool()
    segment = _open(_put(pool))
    assert segment.read() == PAYLOAD
    view = segment.map().payload
    assert view == PAYLOAD
    assert view.readonly
    assert _open(_put(pool, b"")).read() == b""


def test_a_segment_is_not_written_again_while_somebody_holds_it() -> None:
    pool = _pool(400_000)
    lease = _put(pool)
    assert pool.put(PAYLOAD) is None, "it is on its way"
    segment = _open(lease)
    del lease
    assert pool.put(PAYLOAD) is None, "it is open"
    view = segment.map().payload[10:20]
    del segment
    assert pool.put(PAYLOAD) is None, "a view is left"
    assert view == PAYLOAD[10:20]
    del view
    assert _open(_put(pool, PAYLOAD[::-1])).read() == PAYLOAD[::-1]


def test_what_is_written_again_has_another_token() -> None:
    pool = _pool()
    lease = _put(pool)
    descriptor, token = lease.descriptor, lease.token
    del lease
    again = _put(pool)
    assert again.descriptor == descriptor
    with pytest.raises(ProtocolError, match="another segment"):
        Segment.open(os.getpid(), descriptor, len(PAYLOAD), token)


def test_the_pool_is_bounded_and_forgets_sizes_that_are_not_used() -> None:
    pool = _pool(1024 * 1024)
    held = [pool.put(PAYLOAD) for _ in range(8)]
    assert [lease is None for lease in held] == [False] * 3 + [True] * 5
    assert pool.put(bytes(2 * 1024 * 1024)) is None
    held.clear()
    large = _put(pool, bytes(900_000))
    assert pool.size <= 1024 * 1024
    assert pool.put(PAYLOAD) is None
    del large
    assert _put(pool).size == len(PAYLOAD)
    many = SegmentPool(2**30, SECRET)
    leases = [many.put(b"x") for _ in range(MAX_SEGMENTS + 1)]
    assert leases.pop() is None
    assert None not in leases


def test_a_larger_payload_fits_a_segment_that_was_written_in_part() -> None:
    pool = _pool()
    for size in (300_000, 310_000, 305_000, 311_000):
        payload = os.urandom(size)
        lease = _put(pool, payload)
        assert _open(lease).read() == payload
        del lease
    assert pool.size < 400_000


def test_nothing_is_left_open() -> None:
    before = _descriptors()
    pool = _pool()
    for _ in range(300):
        lease = _put(pool)
        view = _open(lease).map().payload
        assert view[0] == 0
        del lease, view
    pool.close()
    assert _descriptors() == before


HOLDER = """
import sys
from trunkline.segments import Segment
pid, descriptor, size, token = sys.argv[1:]
view = Segment.open(int(pid), int(descriptor), int(size), token).map().payload
print(sum(view[:256]), flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_reader_that_is_killed_is_gone() -> None:
    pool = _pool(400_000)
    lease = _put(pool)
    arguments = [str(os.getpid()), str(lease.descriptor), str(lease.size), lease.token]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == sum(range(256))
        del lease
        assert pool.put(PAYLOAD) is None
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert pool.put(PAYLOAD) is not None


def test_what_a_reader_holds_outlives_its_owner() -> None:
    owner = (
        "import sys; from trunkline.segments import SegmentPool; pool = SegmentPool(2**22, '1' * 32);"
        "lease = pool.put(b'abc' * 100_000); print(lease.descriptor, lease.token, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        descriptor, token = process.stdout.readline().split()
        segment = Segment.open(process.pid, int(descriptor), 300_000, token)
    finally:
        process.kill()
        process.communicate()
    assert segment.map().payload == b"abc" * 100_000
    with pytest.raises(ProtocolError, match="is not a segment"):
        Segment.open(process.pid, int(descriptor), 300_000, token)


def test_a_child_does_not_write_to_the_segments_of_its_parent() -> None:
    pool = _pool()
    _put(pool)
    child = os.fork()
    if not child:
        os._exit(0 if pool.put(PAYLOAD) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _memfd(size: int, seals: int, flags: int = os.MFD_ALLOW_SEALING) -> int:
    descriptor = os.memfd_create("hostile", flags)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, SECRET.encode(), 0)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_only_a_sealed_memfd_that_is_long_enough_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(SECRET.encode() + bytes(1000))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading, writing = os.pipe()
    opened = {
        "not a memfd, a file": os.open(file, os.O_RDWR),
        "not a memfd, a pipe": reading,
        "not a memfd, the other end": writing,
        "not a memfd, a pipe with a name": os.open(fifo, os.O_RDWR),
        "not a memfd, a device": os.open("/dev/zero", os.O_RDWR),
        "not a memfd, a folder": os.open(tmp_path, os.O_RDONLY),
        "bytes, and": _memfd(HEADER_BYTES + 99, SEALS),
        "not sealed": _memfd(HEADER_BYTES + 100, 0),
        "not sealed against shrinking": _memfd(HEADER_BYTES + 100, fcntl.F_SEAL_GROW),
    }
    before = _descriptors()
    try:
        for why, descriptor in opened.items():
            with pytest.raises(ProtocolError, match=why.partition(",")[0].partition(" against")[0]):
                Segment.open(os.getpid(), descriptor, 100, SECRET)
        locked = opened["locked"] = _memfd(HEADER_BYTES + 100, SEALS)
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(ProtocolError):
            Segment.open(os.getpid(), locked, 100, SECRET)
        for pid, descriptor, size in (
            (os.getpid(), 9999, 1),
            (0, 3, 1),
            (os.getpid(), -1, 1),
            (os.getpid(), locked, -1),
        ):
            with pytest.raises(ProtocolError):
                Segment.open(pid, descriptor, size, SECRET)
        assert _descriptors() == before + 1
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
