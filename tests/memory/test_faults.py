"""Processes killed at random points, also during their start: the others continue, and no torn frame is read.

And what else goes wrong between processes: many, stubborn, and unlike ones.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.memory.children import child, go_on, let_end, line
from tests.memory.conftest import left
from trunkline import memory
from trunkline.memory.errors import ProducerGone
from trunkline.memory.reap import reap

FRAME = 'np.dtype(("i8", (2048,)))'
SETTINGS = "memory.ChannelSettings(checksum='enforced', stuck_s=30.0, consumers=16)"

PRODUCER = f"""
import threading
asked = threading.Event()
def listen():
    for _ in sys.stdin:
        asked.set()
    os._exit(1)
with memory.producer("torn", schema={FRAME}, capacity=4, settings={SETTINGS}) as producer:
    say("there")
    threading.Thread(target=listen, daemon=True).start()
    count, longest_s = 0, 0.0
    while count < 1_000_000:
        begun = time.monotonic()
        with producer.loan() as loan:
            loan.data[:1024] = count
            loan.data[1024:] = count
        longest_s = max(longest_s, time.monotonic() - begun)
        count += 1
        if asked.is_set():
            asked.clear()
            say(count, longest_s)
        time.sleep(0.001)
"""

CONSUMER = """
import threading
asked = threading.Event()
def listen():
    for _ in sys.stdin:
        asked.set()
    os._exit(1)
with memory.consumer("torn", wants={wants!r}) as frames:
    say("there")
    threading.Thread(target=listen, daemon=True).start()
    reads, kept = 0, None
    while True:
        if asked.is_set():
            asked.clear()
            say(reads, frames.metrics().overruns)
        try:
            frame = frames.recv(0.05)
        except (tl.StreamEmpty, tl.ProducerGone):
            continue
        first = int(frame.data[0])
        assert (frame.data == first).all(), "torn"
        if kept is not None:
            assert (kept.data == kept.data[-1]).all(), "a held frame has changed"
        kept = frame if reads % 7 == 0 else None
        reads += 1
        del frame
"""


def answer(process: subprocess.Popen[str]) -> list[float]:
    go_on(process)
    said = line(process)
    assert said, "a process that nobody killed has ended"
    return [float(each) for each in said.split()]


def kill_after(code: str, delay_s: float) -> None:
    with child(code) as process:
        time.sleep(delay_s)
        assert process.poll() is None, f"it ended by itself, with {process.returncode}"


def progress(process: subprocess.Popen[str], beyond: float) -> float:
    """Its counter now, which must have grown."""
    ends = time.monotonic() + 30
    while (count := answer(process)[0]) <= beyond:
        assert time.monotonic() < ends, "it stands still"
        time.sleep(0.01)
    return count


def nothing_left(runtime: Path) -> None:
    done = reap()
    assert done.kept == []
    assert left(runtime) == []


def storm(
    kills: int,
    delays_s: Callable[[], float],
    victims: list[str],
    rng: random.Random,
    steady: list[subprocess.Popen[str]],
) -> None:
    counts = [progress(each, 0) for each in steady]
    for number in range(kills):
        kill_after(rng.choice(victims), delays_s())
        if number % 5 == 4 or number == kills - 1:
            counts = [progress(each, count) for each, count in zip(steady, counts, strict=True)]


def consumers_die(runtime: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    victims = [CONSUMER.format(wants=wants) for wants in ("every", "every", "all", "latest")]
    with child(PRODUCER) as producer:
        assert line(producer) == "there"
        with child(CONSUMER.format(wants="every")) as witness, child(CONSUMER.format(wants="all")) as other:
            assert line(witness) == line(other) == "there"
            storm(kills, lambda: rng.uniform(0.1, 1.2), victims, rng, [producer, witness, other])
            assert answer(witness)[1] == 0, "one that wants every frame has missed some"
            assert answer(producer)[1] < 20, "the producer waited for the dead"
    nothing_left(runtime)


def producers_die(runtime: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    with child(PRODUCER) as first:
        assert line(first) == "there"
        with child(CONSUMER.format(wants="all")) as witness:
            assert line(witness) == "there"
            count = progress(witness, 0)
            first.kill()
            for _ in range(kills - 1):
                kill_after(PRODUCER, rng.uniform(0.1, 1.2))
            with child(PRODUCER) as last:
                assert line(last) == "there"
                assert progress(witness, count) > count
    nothing_left(runtime)


def test_consumers_die(runtime: Path) -> None:
    consumers_die(runtime, 5, 1)


def test_producers_die(runtime: Path) -> None:
    producers_die(runtime, 5, 2)


# Many, stubborn, and unlike ones

NUMBERS = """
with memory.producer("numbers", schema=np.dtype(("{kind}", (4,))), capacity=4, settings={settings}) as numbers:
    say("there")
    wait()
    while len(numbers.metrics().consumers) < {consumers}:
        numbers.serve(1)
    for number in range(200):
        with numbers.loan() as loan:
            loan.data[:] = number
    say(numbers.metrics().writes, numbers.metrics().cut_off)
    wait()
"""


def numbers(consumers: int = 1, kind: str = "i8", settings: str = "memory.ChannelSettings(consumers=20)") -> str:
    return NUMBERS.format(consumers=consumers, kind=kind, settings=settings)


def test_twenty_consumers_in_twenty_processes() -> None:
    """Forked before anything is open, which is allowed: each opens its own end."""
    with (
        child(numbers(20)) as producer,
        child("""
            wait()
            children = []
            for each in range(20):
                children.append(os.fork())
                if children[-1] == 0:
                    with memory.consumer("numbers", wants="every") as frames:
                        taken = [int(frame.data[0]) for frame in frames]
                    os._exit(0 if taken == list(range(200)) else 1)
            say([os.waitpid(each, 0)[1] for each in children] == [0] * 20)
        """) as consumers,
    ):
        assert line(producer) == "there"
        go_on(producer)
        go_on(consumers)
        assert line(producer) == "200 0"
        go_on(producer)
        assert line(consumers) == "True"
        let_end(producer)


def test_one_that_never_lets_go_harms_nobody() -> None:
    with (
        child(numbers(2)) as producer,
        child("""
            wait()
            with memory.consumer("numbers", wants="all", name="stubborn") as frames:
                held = [frames.recv(20), frames.recv(20)]
                first = [int(each.data[0]) for each in held]
                try:
                    frames.recv(20)
                except tl.SlotsHeld as error:
                    say(error.held, error.oldest == held[0].seq)
                wait()
                say([int(each.data[0]) for each in held] == first)
                del held
        """) as stubborn,
    ):
        assert line(producer) == "there"
        with memory.consumer("numbers", wants="every") as frames:
            go_on(stubborn)
            go_on(producer)
            taken = [int(frames.recv(20).data[0]) for _ in range(200)]
            assert taken == list(range(200))
            assert line(producer) == "200 0"
            assert line(stubborn) == "2 True"
            go_on(stubborn)
            assert line(stubborn) == "True"
            go_on(producer)
            with pytest.raises(ProducerGone):
                frames.recv(20)
            let_end(stubborn)
            let_end(producer)


SECOND = """
try:
    with memory.producer("numbers", schema=np.dtype(("{kind}", (4,))), capacity=4, settings={settings}) as numbers:
        numbers.send([7, 7, 7, 7])
        say("sent")
        wait()
except (tl.DuplicateName, tl.LayoutMismatch) as error:
    say(error)
"""


def second(kind: str = "i8") -> str:
    return SECOND.format(kind=kind, settings="memory.ChannelSettings(consumers=20)")


def test_a_second_producer_has_its_turn_when_the_first_is_killed(runtime: Path) -> None:
    with child(numbers()) as first:
        assert line(first) == "there"
        with child(second()) as other:
            assert "already exists" in line(other)
        first.kill()
        first.wait()
        with child(second()) as other:
            assert line(other) == "sent"
    nothing_left(runtime)


def test_a_producer_that_is_killed_and_restarts_with_another_schema(runtime: Path) -> None:
    with child(numbers()) as first:
        assert line(first) == "there"
        with memory.consumer("numbers") as frames:
            first.kill()
            first.wait()
            with pytest.raises(ProducerGone, match="died"):
                frames.recv(20)
            with child(second("f4")) as other:
                said = line(other)
                assert "<f4" in said
                assert "<i8" in said
            with child(second()) as other:
                assert line(other) == "sent"
                assert frames.recv(20).data.tolist() == [7, 7, 7, 7]
        with child(second("f4")) as other:
            assert line(other) == "sent"
    nothing_left(runtime)


@pytest.mark.long
def test_a_hundred_consumers_die(runtime: Path) -> None:
    consumers_die(runtime, 100, 3)


@pytest.mark.long
def test_a_hundred_producers_die(runtime: Path) -> None:
    producers_die(runtime, 100, 4)
