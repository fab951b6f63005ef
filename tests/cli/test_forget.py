"""`trunkline journal forget`: a durable subscription is removed permanently, and nothing else."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.cli.commands import DEADLINE_S, TRUNKLINE, Ran, environment, interrupt, trunkline, well
from tests.journal.journals import journal_of, until
from trunkline.journal import Journal, JournalSettings, Retention

LINE = "billing on orders.*, at number 2, 4 messages behind"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six orders: `billing` has handled two of them, `mail` all but one that waits for its next attempt."""
    directory = tmp_path_factory.mktemp("stock") / "journal"

    async def life() -> None:
        later = tl.Retry(attempts=2, delay_s=3600.0, max_delay_s=3600.0)
        settings = tl.Settings(drain_s=0.0)
        async with tl.connect("memory:", journal=directory, name="shop", settings=settings) as bus:

            @bus.on("orders.*", name="mail", durable=True, retry=later)
            async def mail(order: int) -> None:
                if order == 5:
                    raise ConnectionError("later")

            async with bus.subscribe("orders.*", name="billing", durable=True) as stream:
                for number in range(6):
                    await bus.publish("orders.placed", number)
                for _ in range(2):
                    got = await stream.recv()
                    assert got is not None
                    assert stream.ack(got)
            await until(lambda: ("mail", 6) in journal_of(bus).ledger.retries)
            await bus.flush()

    asyncio.run(life())
    return directory


@pytest.fixture
def journal(stock: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stock, tmp_path / "journal"))


def known(directory: Path) -> list[str]:
    return [cursor["name"] for cursor in well("stats", directory, "--json").value()["cursors"]]


def test_it_goes_with_what_waits_for_it_and_the_others_stay(journal: Path) -> None:
    before = well("stats", journal, "--json").value()
    assert before["retries"] == 1
    assert well("forget", journal, "billing", "--yes").out == f"deleted: {LINE}\n"
    after = well("stats", journal, "--json").value()
    assert [cursor["name"] for cursor in after["cursors"]] == ["mail"]
    assert (after["messages"], after["fates"], after["retries"]) == (before["messages"], before["fates"], 1)
    well("forget", journal, "mail", "--yes")
    after = well("stats", journal, "--json").value()
    assert (after["cursors"], after["retries"]) == ([], 0)
    assert well("verify", journal, "--json").value()["good"]


def test_json_says_what_is_gone_and_what_is_left(journal: Path) -> None:
    told = well("forget", journal, "billing", "--yes", "--json").value()
    assert told.keys() == {"forgotten", "left"}
    assert (told["forgotten"]["name"], told["forgotten"]["high"], told["forgotten"]["behind"]) == ("billing", 2, 4)
    assert told["left"] == ["mail"]
    ran = trunkline("forget", journal, "billing", "--yes", "--json")
    assert (ran.code, ran.err, ran.value()) == (1, "", {"forgotten": None, "left": ["mail"]})


@pytest.mark.parametrize(
    ("name", "hint"), [("biling", "did you mean 'billing'?"), ("orders.*", "there are billing, mail")]
)
def test_one_that_is_not_there_is_told_with_those_that_are(journal: Path, name: str, hint: str) -> None:
    ran = trunkline("forget", journal, name, "--yes")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"there is no durable subscription {name!r}: {hint}\n"
    assert known(journal) == ["billing", "mail"]


def test_a_journal_that_has_none_says_so(journal: Path) -> None:
    for name in known(journal):
        well("forget", journal, name, "--yes")
    assert "this journal has none" in trunkline("forget", journal, "billing", "--yes").err


def test_retention_waits_for_it_no_longer(journal: Path) -> None:
    assert _left_by_retention(journal) == [3, 4, 5, 6]
    well("forget", journal, "billing", "--yes")
    assert _left_by_retention(journal) == [6]


def _left_by_retention(directory: Path) -> list[int]:
    """The numbers that are left after a round of maintenance."""
    settings = JournalSettings(retention=(Retention(topics="orders.*", max_count=1),), seal=False)
    with Journal(directory, settings, threaded=False) as journal:
        journal.tender.tend()
        return [message.seq for message in journal.reader.messages("orders.*")]


def test_it_begins_anew_if_it_comes_again(journal: Path) -> None:
    well("forget", journal, "billing", "--yes")

    async def life() -> list[Any]:
        async with (
            tl.connect("memory:", journal=journal) as bus,
            bus.subscribe("orders.>", name="billing", durable=True, start=1) as stream,
        ):
            return [(await stream.recv()) for _ in range(6)]

    assert [message.seq for message in asyncio.run(life())] == [1, 2, 3, 4, 5, 6]


# The question


@contextmanager
def asked(*words: object) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal that has asked its question, and the user's end of the terminal."""
    ours, theirs = pty.openpty()
    command = [*TRUNKLINE, "journal", *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=theirs, stdout=pipe, stderr=pipe, env=environment())
    os.close(theirs)
    try:
        assert process.stderr is not None
        shown = b""
        while not shown.endswith(b"[y/N] "):
            byte = process.stderr.read(1)
            assert byte, shown
            shown += byte
        assert shown.decode() == f"{LINE}. A subscriber of this name then starts from scratch. Delete it? [y/N] "
        yield process, ours
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def answered(answer: bytes, *words: object) -> Ran:
    with asked(*words) as (process, terminal):
        os.write(terminal, answer)
        out, err = process.communicate(timeout=DEADLINE_S)
        return Ran(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("answer", [b"y\n", b"Yes\n"])
def test_it_asks_and_a_yes_is_a_yes(journal: Path, answer: bytes) -> None:
    assert answered(answer, "forget", journal, "billing") == (0, f"deleted: {LINE}\n", "")
    assert known(journal) == ["mail"]


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"what?\n", b"\x04"], ids=["no", "empty", "other", "end"])
def test_anything_else_is_a_no(journal: Path, answer: bytes) -> None:
    assert answered(answer, "forget", journal, "billing") == (1, "nothing was deleted: billing still exists\n", "")
    assert known(journal) == ["billing", "mail"]


def test_the_question_is_not_among_the_json(journal: Path) -> None:
    assert answered(b"y\n", "forget", journal, "billing", "--json").value()["left"] == ["mail"]


def test_ctrl_c_at_the_question_changes_nothing(journal: Path) -> None:
    with asked("forget", journal, "billing") as (process, _):
        assert interrupt(process) == (130, "", "")
    assert known(journal) == ["billing", "mail"]
