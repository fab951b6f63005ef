"""Layouts: the hash covers everything that affects the bytes, and a mismatch names the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trunkline.errors import InvalidSettings
from trunkline.memory.about import MAX_CHUNKS, ChannelAbout, unpack
from trunkline.memory.layout import differences, layout_from, layout_of
from trunkline.memory.settings import ChannelSettings
from trunkline.wire.control import Config

POSE = [("x", "f4"), ("y", "f4")]
RECORD = np.dtype([("t", "f8"), ("image", "u2", (4, 4)), ("pose", POSE)])
SCHEMAS: list[Any] = [
    bytes,
    "u1",
    np.dtype(("f4", (3, 2))),
    RECORD,
    np.dtype((RECORD, (2,))),
    np.dtype({"names": ["a", "b"], "formats": ["u1", "<M8[ns]"], "offsets": [3, 8], "itemsize": 32}),
    np.dtype([("a", "u1"), ("b", "f8")], align=True),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_layout_is_made_again_from_its_description(schema: Any) -> None:
    layout = layout_of(schema)
    again = layout_from(layout.description)
    assert (again.hash, again.fixed_bytes) == (layout.hash, layout.fixed_bytes)
    assert differences(layout.description, again.description) == []


def test_an_arrow_layout_is_made_again_from_its_description() -> None:
    layout = layout_of(
        pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.dictionary(pa.int8(), pa.utf8()))])
    )
    assert layout_from(layout.description).hash == layout.hash


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (np.dtype([("t", "f4"), ("image", "u2", (4, 4)), ("pose", POSE)]), "'t'"),
        (np.dtype([("t", ">f8"), ("image", "u2", (4, 4)), ("pose", POSE)]), "'t'"),
        (np.dtype([("t", "f8"), ("image", "u2", (2, 8)), ("pose", POSE)]), "'image'"),
        (np.dtype([("t", "f8"), ("image", "u2", (4, 4)), ("pose", [("x", "f4"), ("z", "f4")])]), "'pose.z'"),
        (np.dtype([("t", "f8"), ("image", "u2", (4, 4)), ("pose", POSE), ("n", "u1")]), "'n'"),
        (np.dtype((RECORD, (1,))), "'(record)'"),
        (bytes, "bytes frames"),
        (pa.schema([("t", pa.float64())]), "arrow frames"),
    ],
    ids=str,
)
def test_what_differs_has_another_hash_and_is_named(other: Any, field: str) -> None:
    ours, theirs = layout_of(RECORD), layout_of(other)
    assert ours.hash != theirs.hash
    assert any(field in text for text in differences(ours.description, theirs.description))


def test_packing_counts() -> None:
    fields = [("a", "u1"), ("b", "f8")]
    packed, padded = layout_of(np.dtype(fields)), layout_of(np.dtype(fields, align=True))
    assert packed.hash != padded.hash
    assert "at byte 1" in differences(packed.description, padded.description)[0]


def test_columns_of_arrow_are_named() -> None:
    ours, theirs = (layout_of(pa.schema([("n", kind), ("s", pa.utf8())])) for kind in (pa.int64(), pa.int32()))
    assert differences(ours.description, theirs.description) == ["field 'n': expected is int64, the channel has int32"]


@pytest.mark.parametrize(
    "schema", [object, np.dtype([("a", "O")]), "no such type", np.dtype([]), pa.schema([("a", pa.int8())] * 2)]
)
def test_what_cannot_be_in_shared_memory(schema: Any) -> None:
    with pytest.raises(InvalidSettings):
        layout_of(schema)


@pytest.mark.parametrize(
    ("schema", "page_size", "slot_bytes"),
    [(bytes, 4096, 4096), (bytes, 16, 64), ("u1", 4096, 4096), (np.dtype(("u1", 5000)), 4096, 8192), (RECORD, 32, 64)],
)
def test_a_slot_has_whole_pages(schema: Any, page_size: int, slot_bytes: int) -> None:
    about = ChannelAbout.of("camera", layout_of(schema), Config(page_size=page_size), ChannelSettings())
    assert about.slot_bytes == slot_bytes


@pytest.mark.parametrize(("policy", "queue"), [("Single", 1), ("DoubleBuffer", 2), ("RingBuffer", 7)])
def test_policies_say_how_many_frames_wait(policy: str, queue: int) -> None:
    config = Config(policy=policy, capacity=7)
    about = ChannelAbout.of("camera", layout_of("u1"), config, ChannelSettings(consumers=3, held=2))
    assert (about.queue, about.slots) == (queue, queue + 1 + 6 + 2)


@pytest.mark.parametrize("config", [Config(policy="Triple"), Config(capacity=0), Config(page_size=1000)])
def test_what_cannot_be_is_refused(config: Config) -> None:
    with pytest.raises(InvalidSettings):
        ChannelAbout.of("camera", layout_of("u1"), config, ChannelSettings())


def test_too_many_consumers_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="at most 32"):
        ChannelSettings(consumers=33)


def test_what_a_channel_says_of_itself_fits_or_leaves_the_schema_out() -> None:
    few = ChannelAbout.of("camera", layout_of(RECORD), Config(), ChannelSettings(version="1.0.0"))
    assert unpack(few.pack()) == few
    rng = np.random.default_rng(7)
    wide = np.dtype([(f"field_{rng.integers(1 << 60)}", "f8") for _ in range(500)])
    many = ChannelAbout.of("camera", layout_of(wide), Config(), ChannelSettings())
    assert len(many.pack()) <= MAX_CHUNKS
    found = unpack(many.pack())
    assert (found.hash, found.layout) == (many.hash, None)
    with pytest.raises(ValueError, match=r".+"):
        unpack(["bm90aGluZw=="])
