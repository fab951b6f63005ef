"""Packets in ZeroMQ messages: packing and splitting, and invalid input."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.transports.wires import MAX_FRAME_BYTES
from trunkline.errors import ProtocolError
from trunkline.transports.zmq import packets

frames = st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=3).map(tuple), max_size=20)


@given(frames)
def test_packets_hold_what_was_packed(sent: list[tuple[bytes, ...]]) -> None:
    whole = [b"".join(frame) for frame in sent]
    whole = [frame for frame in whole if frame]
    got = [
        bytes(frame) for packet in packets.pack([(frame,) for frame in whole]) for frame in packets.unpack(packet, 150)
    ]
    assert got == whole


@given(st.binary(max_size=200))
def test_whatever_comes_is_frames_or_an_error(data: bytes) -> None:
    packet = bytes([packets.FRAMES]) + data
    try:
        found = packets.unpack(packet, 1000)
    except ProtocolError:
        return
    assert sum(len(frame) + 4 for frame in found) == len(data)
    assert all(found)


def test_large_frames_travel_alone_and_small_ones_together() -> None:
    sizes = [[len(frame) for frame in packets.unpack(packet, MAX_FRAME_BYTES)] for packet in packets.pack(
        [(bytes(size),) for size in (1, 1000, packets.PACKET_BYTES * 3, 10, 20)]
    )]  # fmt: skip
    assert sizes == [[1, 1000], [packets.PACKET_BYTES * 3], [10, 20]]
    assert all(len(packet) <= packets.max_bytes(1) for packet in packets.pack([(b"x",)] * 1_000_000))
