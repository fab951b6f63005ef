"""`explain` reads files of fates outside the event loop, which continues meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import trunkline as tl
from trunkline.journal import Journal, Reader

PATIENCE_S = 60.0


async def one_sealed_fate(directory: Path) -> str:
    """The id of a message whose fate is sealed."""
    async with tl.connect("memory:", journal=directory) as bus, bus.subscribe("a") as stream:
        message_id = await bus.publish("a", b"1")
        assert await stream.recv() is not None
    with Journal(directory) as journal:
        journal.seal(everything=True)
    return message_id


def test_the_event_loop_goes_on_while_a_file_of_fates_cannot_be_read(tmp_path: Path) -> None:
    # With threads, so not on virtual time.
    asyncio.run(explain_beside(tmp_path))


async def explain_beside(tmp_path: Path) -> None:
    message_id = await one_sealed_fate(tmp_path)
    with Reader(tmp_path) as reader:
        (file,) = reader.files("fates")
    path = tmp_path / file.path
    path.unlink()
    # A reader that opens it waits until a writer opens it.
    os.mkfifo(path)
    late = threading.Timer(PATIENCE_S, _let_read, [path])
    late.start()
    try:
        async with tl.connect("memory:", journal=tmp_path) as bus:
            explaining = asyncio.create_task(bus.explain(message_id))
            # Other work of the event loop, with the disk too: more than enough for a reader that is in its way.
            for _ in range(100):
                await asyncio.sleep(0)
            await bus.publish("b", b"2")
            assert not explaining.done()
            assert late.is_alive(), "the event loop waited for the file"
            await asyncio.to_thread(_let_read, path)
            told = await explaining
            # The file was not Parquet: that is reported, and other facts are kept.
            assert told.message is not None
    finally:
        late.cancel()
        late.join()


def _let_read(path: Path) -> None:
    """Wait until a reader opens it, and send nothing."""
    os.close(os.open(path, os.O_WRONLY))
