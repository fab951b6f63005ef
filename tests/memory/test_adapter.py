"""The adapter of the engine: reserved space, alignment, forks, exits, and its own directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.memory.children import PREAMBLE, child, line, program, run
from tests.memory.conftest import left
from trunkline import memory
from trunkline.errors import DuplicateName, InvalidSettings
from trunkline.memory.about import ChannelAbout
from trunkline.memory.adapter import ConsumerPorts, ProducerPorts
from trunkline.memory.errors import NoProducer, SharedMemoryFull, TooManyConsumers
from trunkline.memory.header import FrameHeader
from trunkline.memory.layout import layout_of
from trunkline.memory.place import SHM, engine_prefix, engine_root
from trunkline.memory.settings import ChannelSettings
from trunkline.wire.control import Config


def about(channel: str = "camera", *, page_size: int = 4096, consumers: int = 2) -> ChannelAbout:
    config = Config(capacity=3, page_size=page_size)
    return ChannelAbout.of(channel, layout_of(bytes), config, ChannelSettings(consumers=consumers))


def test_a_frame_goes_across_in_place() -> None:
    ports = ProducerPorts(about())
    ports.announce()
    other = ConsumerPorts("camera")
    assert other.about == about()
    other.attach(queue=3, history=0)
    memory, loaned = ports.loan(0)
    memory[:5] = list(b"hello")
    del memory
    assert ports.send(loaned, FrameHeader(seq=1, length=5)) == 1
    received = other.receive(7)
    assert received is not None
    assert bytes(received.memory[:5]) == b"hello"
    assert [(each.seq, each.since_ns) for each in other.borrowed.values()] == [(1, 7)]
    del received
    assert other.borrowed == {}
    assert other.receive(8) is None
    ports.close()
    other.close()
    ports.close()


def test_payloads_are_aligned_and_segments_no_larger_than_they_must_be() -> None:
    ports = ProducerPorts(about())
    (data,) = [path for path in SHM.glob(f"{engine_prefix(engine_root())}*.data") if path.stat().st_size > 4096]
    held = [ports.loan(0) for _ in range(2)]
    assert all(loaned.payload_ptr % 64 == 0 for _, loaned in held)
    status = data.stat()
    assert status.st_size < about().needed_bytes * 1.1
    assert status.st_blocks * 512 >= status.st_size, "not all pages are reserved"
    del held
    ports.close()


def test_nobody_produces() -> None:
    with pytest.raises(NoProducer):
        ConsumerPorts("camera")


def test_one_producer_and_so_many_consumers() -> None:
    ports = ProducerPorts(about())
    with pytest.raises(DuplicateName):
        ProducerPorts(about())
    consumers = [ConsumerPorts("camera") for _ in range(3)]
    for each in consumers[:2]:
        each.attach(queue=1, history=0)
    with pytest.raises(TooManyConsumers):
        consumers[2].attach(queue=1, history=0)
    ports.close()
    for each in consumers:
        each.close()


def test_the_runtime_directory_separates() -> None:
    with child("""
        os.environ["TRUNKLINE_RUNTIME"] += "-other"
        with memory.producer("camera", schema=bytes):
            say("there")
            wait()
    """) as process:
        assert line(process) == "there"
        with pytest.raises(NoProducer):
            ConsumerPorts("camera")
        process.communicate("\n")
    other = Path(os.environ["TRUNKLINE_RUNTIME"] + "-other")
    assert left(other) == []
    for path in SHM.glob(f"{engine_prefix(other.resolve() / 'shm')}*"):
        path.unlink()
    for path in sorted(other.rglob("*"), reverse=True):
        path.rmdir()
    other.rmdir()


def test_a_path_that_is_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(tmp_path / ("x" * 100)))
    with pytest.raises(InvalidSettings, match="too long"):
        ProducerPorts(about())


SMALL = """
mount -t tmpfs -o size={size} none /dev/shm && exec "$@"
"""


def in_small_memory(code: str, size: str = "4m") -> str:
    """Run with a small private /dev/shm."""
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", SMALL.format(size=size), "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here: a small /dev/shm cannot be made")
    done = subprocess.run([*command, *program(code)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def test_a_full_memory_is_an_error_at_creation() -> None:
    assert "SharedMemoryFull" in in_small_memory("""
        try:
            with memory.producer("camera", schema=bytes, page_size=1 << 20, capacity=10):
                say("created")
        except tl.SharedMemoryFull as error:
            say(type(error).__name__, error.needed_bytes, error.free_bytes)
    """)


def test_what_was_created_can_be_written_to_the_last_byte() -> None:
    """Space is reserved: a process that fills the rest gets the error, instead of a SIGBUS in the producer."""
    assert "written 300" in in_small_memory("""
        settings = memory.ChannelSettings(consumers=2, held=1)
        with memory.producer("camera", schema=bytes, page_size=1 << 18, capacity=3, settings=settings) as camera:
            try:
                with open("/dev/shm/filler", "wb") as filler:
                    while True:
                        filler.write(bytes(1 << 16))
                        filler.flush()
            except OSError as error:
                say("full", error.errno)
            try:
                with memory.consumer("camera"):
                    say("attached")
            except tl.SharedMemoryFull:
                say("no room for a consumer")
            for number in range(300):
                camera.send(bytes([number % 256]) * (1 << 18))
            say("written", camera.metrics().writes)
    """)


def test_a_check_of_free_space_alone_would_not_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that check at the same time see the same free bytes: the reservation decides."""

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(SharedMemoryFull):
        ProducerPorts(about())


def test_a_forked_child_harms_nothing_and_is_refused() -> None:
    """The child of a fork ends normally, with all objects of its parent: the parent's channel keeps working."""
    out = run("""
        with memory.producer("camera", schema=bytes) as camera, memory.consumer("camera") as frames:
            camera.send(b"one")
            frame = frames.recv(1)
            view = frame.data
            pid = os.fork()
            if pid == 0:
                camera.close()
                frames.close()
                for use in (lambda: camera.send(b"x"), lambda: frames.recv(0)):
                    try:
                        use()
                        say("no error")
                    except tl.WrongProcess as error:
                        say("refused", error.opened_by == os.getppid())
                with memory.consumer("camera", name="child") as own:
                    say("own consumer")
                del view, frame, camera, frames
                gc.collect()
                sys.exit(0)
            _, status = os.waitpid(pid, 0)
            say("child ended with", status)
            say(bytes(view))
            camera.send(b"two")
            with frames.recv(1) as second:
                say(bytes(second.data))
            del view, second
    """)
    assert out.splitlines() == [
        *["refused True"] * 2,
        "own consumer",
        "child ended with 0",
        "b'one'",
        "b'two'",
    ]


def test_a_forked_child_harms_no_view_of_an_end_that_is_closed() -> None:
    out = run("""
        with memory.producer("camera", schema=bytes, capacity=2) as camera:
            try:
                with memory.consumer("camera") as frames:
                    camera.send(b"one")
                    view = frames.recv(1).data
            except BufferError:
                say("viewed")
            del frames
            pid = os.fork()
            if pid == 0:
                del view
                gc.collect()
                sys.exit(0)
            os.waitpid(pid, 0)
            for _ in range(50):
                camera.send(b"two")
            say(bytes(view))
            del view
    """)
    assert out.splitlines() == ["viewed", "b'one'"]


def test_a_child_of_multiprocessing_has_its_own_ends() -> None:
    for method in ("fork", "spawn"):
        source = (
            PREAMBLE
            + f"""
import multiprocessing
def take(queue):
    with memory.consumer("camera", wants="every") as frames:
        queue.put("there")
        queue.put([bytes(frames.recv(5).data) for _ in range(3)])
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    with memory.producer("camera", schema=bytes) as camera:
        process = context.Process(target=take, args=(queue,))
        process.start()
        queue.get()
        for word in (b"a", b"b", b"c"):
            camera.send(word)
        say(queue.get())
        process.join()
"""
        )
        path = Path(os.environ["TRUNKLINE_RUNTIME"]) / "program.py"
        path.write_text(source)
        done = subprocess.run([*program("")[:1], str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.returncode) == ("[b'a', b'b', b'c']\n", 0), done.stderr
        path.unlink()


def test_an_exit_with_everything_open_leaves_nothing(runtime: Path) -> None:
    run("""
        opened = memory.producer("camera", schema=bytes)
        camera = opened.__enter__()
        attached = memory.consumer("camera")
        frames = attached.__enter__()
        camera.send(b"one")
        frame = frames.recv(1)
    """)
    assert [path for path in left(runtime) if not path.endswith(".json")] == []
    with memory.producer("camera", schema=bytes):
        pass
