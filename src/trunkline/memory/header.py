"""Data besides the payload: the header of a frame, and the reports of a consumer to its producer."""

from __future__ import annotations

import ctypes
import enum

from trunkline.memory.settings import MAX_CONSUMERS


class FrameHeader(ctypes.Structure):
    _fields_ = (
        ("seq", ctypes.c_uint64),
        # Distinguishes its frames from those of an earlier producer, which also counted from 1.
        ("run", ctypes.c_uint64),
        ("pid", ctypes.c_uint64),
        ("time_ns", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("checksum", ctypes.c_uint64),
        # The ids of the consumers that the producer waits for, and then of those that it has stopped waiting for.
        ("gates", ctypes.c_uint32),
        ("cuts", ctypes.c_uint32),
        ("gate", ctypes.c_uint32 * MAX_CONSUMERS),
    )


class ReportKind(enum.IntEnum):
    PRESENT = 0
    LEFT = 1


class ConsumerReport(ctypes.Structure):
    """The state of a consumer. Only its last report counts."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("gates", ctypes.c_uint8),
        ("held", ctypes.c_uint16),
        # The last frame it took, of this run of the producer.
        ("run", ctypes.c_uint64),
        ("position", ctypes.c_uint64),
        ("reads", ctypes.c_uint64),
        ("overruns", ctypes.c_uint64),
        ("oldest_held", ctypes.c_uint64),
        ("oldest_held_ns", ctypes.c_uint64),
        ("name", ctypes.c_char * 64),
    )
