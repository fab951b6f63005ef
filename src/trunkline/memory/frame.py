"""Guarded views of slots: a slot is reused only when no view of it exists.

The memory of a slot is an object that keeps the engine's sample; every view keeps that object. A release drops the
references held here. If the object still exists, a view is in use: that is an error, and the view stays valid.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Self
from weakref import ref

from trunkline.errors import MessageTooLarge, MissingExtra
from trunkline.memory.errors import FrameDamaged
from trunkline.memory.layout import Layout

Memory = ctypes.Array[ctypes.c_ubyte]


def checksum_of(memory: memoryview) -> int:
    try:
        import xxhash
    except ImportError as error:
        raise MissingExtra("memory", "checksums of frames") from error
    digest: int = xxhash.xxh3_64_intdigest(memory)
    return digest


def write(layout: Layout, memory: memoryview, value: Any, *, checksums: bool) -> tuple[int, int]:
    """Copy a value into a slot. Returns its size in bytes, and the checksum or 0. The memory is released."""
    # Also after an error, so that a stored exception does not keep the slot by its traceback.
    with memory:
        length = layout.put(memory, value)
        return length, checksum_of(memory[:length]) if checksums else 0


class Frame:
    """A frame that was received, read in place. Its slot is free when it, and all its views, are released or gone."""

    __slots__ = ("__weakref__", "_channel", "_checksum", "_data", "_layout", "_length", "_memory", "seq", "time_ns")

    def __init__(
        self, channel: str, layout: Layout, memory: Memory, seq: int, time_ns: int, length: int, checksum: int
    ) -> None:
        self.seq = seq
        """1 for the first frame of the producer."""
        self.time_ns = time_ns
        """When it was sent."""
        self._channel = channel
        self._layout = layout
        self._memory: Memory | None = memory
        self._length = length
        self._checksum = checksum
        self._data: Any = None

    @property
    def data(self) -> Any:
        """A read-only view: a numpy array, an Arrow record batch, or a memoryview. Copy what you want to keep."""
        if self._data is None:
            self._data = self._layout.view(self._bytes())
        return self._data

    def verify(self) -> None:
        """Compare with the checksum. Raises FrameDamaged; without a checksum it does nothing."""
        if self._checksum and checksum_of(self._bytes()) != self._checksum:
            raise FrameDamaged(self._channel, self.seq)

    def release(self) -> None:
        """Free the slot. Raises BufferError while a view is in use: the view stays valid, and the slot is not free."""
        if not self.drop():
            raise BufferError(
                f"a view of frame {self.seq} of {self._channel!r} is still in use: its slot is free when the view is "
                "deleted. Copy what you want to keep"
            )

    def drop(self) -> bool:
        """As `release`, but returns False instead of raising an error."""
        if self._memory is None:
            return True
        memory = ref(self._memory)
        self._memory = self._data = None
        return memory() is None

    def _bytes(self) -> memoryview:
        if self._memory is None:
            raise BufferError(f"frame {self.seq} of {self._channel!r} was released")
        return memoryview(self._memory).toreadonly().cast("B")[: self._length]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.release()
        else:
            self.drop()


class Loan:
    """A slot to write to. `data` is the slot itself: use it inside the block only."""

    def __init__(self, layout: Layout, memory: Memory, send: Callable[[int, int], int], *, checksums: bool) -> None:
        self._layout = layout
        self._memory: Memory | None = memory
        self._send = send
        self._checksums = checksums
        self._data: Any = None
        self.length = memory._length_ if layout.fixed_bytes is None else layout.fixed_bytes
        """The size of the frame in bytes. For raw bytes, set it to what you have written."""

    @property
    def data(self) -> Any:
        """A writable numpy array, or a memoryview of the whole slot for raw bytes."""
        if self._data is None:
            self._data = self._layout.target(self._bytes(self.length))
        return self._data

    def put(self, value: Any) -> None:
        """Copy a value into the slot."""
        # Released, so that a stored exception does not keep the slot by its traceback.
        with self._bytes(self._slot_bytes) as memory:
            self.length = self._layout.put(memory, value)

    @property
    def _slot_bytes(self) -> int:
        if self._memory is None:
            raise BufferError("the loan has ended")
        return self._memory._length_

    def _bytes(self, length: int) -> memoryview:
        if self._memory is None:
            raise BufferError("the loan has ended")
        if not 0 <= length <= self._memory._length_:
            raise MessageTooLarge(length, self._memory._length_)
        return memoryview(self._memory).cast("B")[:length]

    def commit(self) -> int:
        """Send the frame; return the number of consumers that got it. Raises BufferError, and sends nothing, if a view
        is in use."""
        self._data = None
        checksum = checksum_of(self._bytes(self.length)) if self._checksums else 0
        length, send = self.length, self._send
        if not self.give_up():
            # Not kept by the traceback, so that the slot is free when the view is gone.
            del send
            raise BufferError(
                "a view of the loaned slot is still in use, and could change a frame that others read: nothing was "
                "sent. Use `loan.data` itself, or delete the variable before the block ends"
            )
        return send(length, checksum)

    def give_up(self) -> bool:
        """End the loan without sending. False if a view is in use: the slot is free when the view is gone."""
        if self._memory is None:
            return True
        memory = ref(self._memory)
        self._memory = self._data = None
        # The function also keeps the slot alive.
        self._send = _send_nothing
        return memory() is None


def _send_nothing(length: int, checksum: int) -> int:
    raise BufferError("the loan has ended")
