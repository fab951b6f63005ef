"""`trunkline journal`, used by somebody who has never seen it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import typer.main

import trunkline as tl
from tests.cli.commands import (
    DEADLINE_S,
    TRUNKLINE,
    apart,
    at_large,
    environment,
    fill,
    interrupt,
    running,
    shop,
    trunkline,
    well,
    writer,
)
from tests.journal.journals import fill as fill_rows
from tests.journal.journals import journal_in
from trunkline.cli.main import app, run
from trunkline.journal import Journal, JournalSettings, Reader, lock
from trunkline.journal.export import Format, export_to

COMMANDS = ("stats", "tail", "last", "replay", "forget", "seal", "verify", "export", "explain")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stock") / "journal"
    shop(directory)
    return directory


@pytest.fixture
def journal(stock: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stock, tmp_path / "journal"))


# What a newcomer meets first


def test_every_command_and_every_option_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    group: Any = typer.main.get_command(app)
    commands = group.commands["journal"].commands
    assert sorted(commands) == sorted(COMMANDS)
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, (name, parameter.name)
        for flag in ("--help", "-h"):
            assert run(["journal", name, flag]) == 0
            assert "Usage: " in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"trunkline {tl.__version__}\n"


@pytest.mark.parametrize("words", [(), ("nonsense",), ("stats",), ("stats", "d", "--jsn"), ("tail", "d", "-n", "x")])
def test_a_wrong_call_ends_with_2_and_shows_where_help_is(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = trunkline(*words)
    assert ran.code == 2
    assert "Usage: " in ran.out + ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_directory_is_named_with_what_to_give_and_nothing_is_made(command: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for place in (tmp_path / "nowhere", empty):
        more = {"replay": ["--dead"], "export": ["-"], "explain": ["an id"], "verify": ["--repair"], "last": ["a"]}
        more["forget"] = ["billing", "--yes"]
        ran = trunkline(command, place, *more.get(command, []))
        assert (ran.code, ran.out) == (2, "")
        assert str(place) in ran.err
        assert "connect(..., journal=DIRECTORY)" in ran.err
    assert [*empty.iterdir()] == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("tail", "a..b"), "empty token"),
        (("export", "-", "a..b"), "empty token"),
        (("replay", "a..b", "--dead"), "empty token"),
        (("replay",), "pass --dead to replay dead letters, or --into DIRECTORY"),
        (("replay", "--dead", "--into", "other"), "pass --dead to replay dead letters, or --into DIRECTORY"),
        (("replay", "--dead", "--to", "x"), "--to is used with --into"),
        (("replay", "--dead", "--since", "2026-01-01"), "--since is used with --into"),
        (("replay", "--dead", "--first", "2"), "--first is used with --into"),
        (("replay", "--into", "other", "--id", "x"), "--id is used with --dead"),
        (("replay", "--into", "other", "--subscriber", "x"), "--subscriber is used with --dead"),
        (("replay", "--into", "other", "--rate", "0"), "--rate 0 must be above 0"),
        (("replay", "--into", "other", "--to", "a.*"), "wildcard"),
        (("replay", "--into", "other", "--since", "yesterday"), "2026-11-16T10:00:00Z"),
        (("replay", "--into", "other", "--first", "5", "--last", "3"), "the range is empty"),
        (("export", "-", "--since", "2026-01-02", "--until", "2026-01-01"), "the range is empty"),
        (("export", "all.csv"), ".parquet, .arrow, .jsonl"),
        (("forget", "billing"), "pass --yes"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(
    words: tuple[str, ...], hint: str, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(journal.parent)
    before = sorted(journal.parent.iterdir())
    ran = trunkline(words[0], journal, *words[1:])
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert hint in ran.err
    assert sorted(journal.parent.iterdir()) == before


# What people see


def test_stats_count_everything(journal: Path) -> None:
    ran = well("stats", journal)
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert f"{journal}: no process writes to it now, last number 115" in lines
    assert "bulk 100" in " ".join(lines)
    assert any(line.startswith("journal 115 messages in 16 batches, ") for line in lines)
    # It is not behind, and stands at its last message or behind it: the position moves on with what it has read.
    (billing,) = (line.split() for line in lines if line.startswith("billing orders.* 20"))
    assert 12 <= int(billing[3]) <= 115
    assert billing[4:] == ["0"]
    assert "handler failed 3" in lines
    well("seal", journal, "--all")
    lines = [" ".join(line.split()) for line in well("stats", journal).out.splitlines()]
    assert any(line.startswith("journal 0 messages in 0 batches, ") for line in lines)
    assert any(line.startswith("lake 115 messages in 2 files, ") for line in lines)


def test_stats_say_how_far_behind_a_subscription_is_wherever_its_cursor_stands(tmp_path: Path) -> None:
    async def life() -> None:
        async with tl.connect("memory:", journal=tmp_path, name="shop") as bus:
            async with bus.subscribe("a.*", name="reader", durable=True) as stream:
                await bus.publish_many("a.x", range(10))
                await bus.publish_many("b", range(10))
                await bus.publish_many("a.y", range(10))
                for number in range(14):
                    got = await stream.recv()
                    assert got is not None
                    if number not in (3, 5):
                        stream.ack(got)
            await bus.publish_many("a.x", range(5))

    asyncio.run(life())
    for _ in range(2):
        (cursor,) = well("stats", tmp_path, "--json").value()["cursors"]
        assert (cursor["name"], cursor["high"], cursor["pending"], cursor["behind"]) == ("reader", 24, 2, 2 + 6 + 5)
        # The second time it stands in the middle of a sealed file.
        well("seal", tmp_path, "--all")


def test_what_messages_hold_cannot_style_or_command_the_terminal(journal: Path) -> None:
    for ran in (well("tail", journal, "notes.>"), well("replay", journal, "--dead", "--dry-run")):
        assert "\x1b" not in ran.out
        assert "\\x1b[31m" in ran.out
        assert "[bold]" in ran.out
    assert "two⏎lines [bold]and[/] \\x1b[31mred" in well("tail", journal, "notes.text").out
    assert "[declined]" in well("explain", journal, 1).out


def test_nothing_in_a_table_is_cut_however_narrow_the_terminal(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    ids = [letter["id"] for letter in well("replay", journal, "--dead", "--dry-run", "--json").value()["letters"]]
    lines = well("replay", journal, "--dead", "--dry-run").out.splitlines()
    assert len(ids) == 3
    for name in ids:
        (line,) = [line for line in lines if name in line]
        assert "billing" in line
        assert "card [declined] by [bold]bank[/]" in line


def test_the_time_that_is_shown_is_a_time_that_can_be_given(journal: Path) -> None:
    shown = well("tail", journal, "notes.text").out.split()[0]
    told = well("tail", journal, "notes.text", "--json").value()["time"]
    assert shown == told
    found = well("export", journal, "-", "--since", shown).lines()
    assert {"notes.raw", "notes.odd", "bulk"} < {message["topic"] for message in found}
    assert len(well("export", journal, "-", "--until", shown).lines()) + len(found) == 115


def test_tail_of_a_topic_that_is_not_there_says_where_topics_are_listed(journal: Path) -> None:
    ran = trunkline("tail", journal, "order")
    assert (ran.code, ran.out) == (0, "")
    assert "trunkline journal stats" in ran.err


def test_last_shows_the_last_message_of_a_topic(journal: Path) -> None:
    newest = well("tail", journal, "notes.raw", "-n", 1, "--json").value()
    assert well("last", journal, "notes.raw", "--json").value() == newest
    assert str(newest["seq"]) in well("last", journal, "notes.raw").out.split()
    for words in (("notes.raw", "--before", 1), ("no.such.topic",)):
        ran = trunkline("last", journal, *words)
        assert (ran.code, ran.out) == (1, "")
        assert "trunkline journal stats" in ran.err
    ran = trunkline("last", journal, "notes.*")
    assert ran.code == 2
    assert "wildcard" in ran.err


def test_last_of_a_damaged_batch_ends_with_the_reason(journal: Path) -> None:
    newest = well("last", journal, "notes.raw", "--json").value()
    with contextlib.closing(sqlite3.connect(journal / "journal.db")) as database:
        database.execute("UPDATE batches SET checksum = 0 WHERE first <= ? AND last >= ?", (newest["seq"],) * 2)
        database.commit()
    ran = trunkline("last", journal, "notes.raw")
    assert (ran.code, ran.out) == (1, "")
    assert "its checksum does not match" in ran.err


def test_explain_takes_an_id_or_a_number(journal: Path) -> None:
    by_number = well("explain", journal, 1, "--json").value()
    assert by_number == well("explain", journal, by_number["message"]["id"], "--json").value()
    (outcome,) = by_number["outcomes"]
    assert (outcome["subscriber"], outcome["fate"]) == ("billing", "dead")
    assert by_number == at_large("explain", 1, "--journal", journal, "--json").value(), "one command for all"
    refused = at_large("explain", 1, "--journal", journal, "--hub", "unix:///nowhere")
    assert (refused.code, "either --hub or --journal" in refused.err) == (2, True)
    assert "handler failed: ValueError: card" in well("explain", journal, 1).out
    assert "delivered" in well("explain", journal, 2).out
    assert "had no subscribers" in well("explain", journal, 13).out
    for words in (("no-such-id",), (4711,)):
        ran = trunkline("explain", journal, *words)
        assert (ran.code, ran.out) == (1, "")
        assert f"{words[0]} is not in this journal: `trunkline journal tail" in ran.err


def test_explain_knows_that_a_dead_letter_was_given_back(journal: Path) -> None:
    well("replay", journal, "--dead")
    (outcome,) = well("explain", journal, 1, "--json").value()["outcomes"]
    assert (outcome["subscriber"], outcome["fate"]) == ("billing", "in flight")


# What scripts read


def test_json_is_one_value_a_line_with_the_same_keys_every_time(journal: Path) -> None:
    stats = well("stats", journal, "--json").value()
    assert {"last", "messages", "sealed_messages", "topics", "cursors", "dead_letters", "owner"} <= stats.keys()
    assert stats["owner"] is None
    tail = well("tail", journal, "-n", "115", "--json").lines()
    assert [message["seq"] for message in tail] == list(range(1, 116))
    common = {"id", "topic", "timestamp_ns", "seq", "sender", "content_type", "type", "priority", "attempts"}
    common |= {"requires_ack", "time"}
    assert all(message.keys() - {"payload", "payload_base64"} == common for message in tail)
    assert well("export", journal, "-", "--json").lines() == tail

    letters = well("replay", journal, "--dead", "--dry-run", "--json").value()
    assert letters["dry_run"] is True
    keys = {"id", "seq", "topic", "subscriber", "cause", "reason", "died"}
    assert [letter.keys() for letter in letters["letters"]] == [keys] * 3
    other = journal.parent / "other"
    replayed = well("replay", journal, "notes.>", "--into", other, "--json").value()
    assert replayed == {"ids": [message["id"] for message in tail[12:15]], "failed": [], "dry_run": False}

    sound: dict[str, Any] = {
        "good": True,
        "batches": 16,
        "messages": 115,
        "files": 0,
        "sealed_messages": 0,
        "sealed_fates": 0,
    }
    sound |= {"quarantined": 0, "findings": [], "repaired": None}
    assert well("verify", journal, "--json").value() == sound
    assert well("seal", journal, "--json").value() == {"sealed": 0, "joined": 0, "deleted": 0}
    assert well("seal", journal, "--all", "--json").value() == {"sealed": 115, "joined": 0, "deleted": 0}
    assert well("verify", journal, "--repair", "--json").value()["repaired"] == {"lost": [], "aside": []}
    file = journal.parent / "all.jsonl"
    assert well("export", journal, file, "--json").value() == {"file": str(file), "messages": 115}
    assert trunkline("explain", journal, "none", "--json").value() == {"message": None, "outcomes": []}


def test_payloads_in_json_are_values_and_bytes_that_are_no_text_say_so(journal: Path) -> None:
    found = {message["topic"]: message for message in well("export", journal, "-", "notes.*").lines()}
    assert found["notes.text"]["payload"] == "two\nlines [bold]and[/] \x1b[31mred"
    assert base64.b64decode(found["notes.raw"]["payload_base64"]) == b"\xff\xfe"
    assert "payload" not in found["notes.raw"]
    assert found["notes.odd"]["payload"] == {"1": "one", "None": 2, "bytes": "/w=="}


def test_json_is_utf_8_and_lines_are_shown_whatever_the_terminal_can(tmp_path: Path) -> None:
    async def life() -> None:
        async with tl.connect("memory:", journal=tmp_path) as bus:
            await bus.publish("notes", {"say": "grüß 🎉"})

    asyncio.run(life())
    ran = apart("tail", tmp_path, "--json", PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err, ran.value()["payload"]) == (0, "", {"say": "grüß 🎉"})
    ran = apart("tail", tmp_path, PYTHONIOENCODING="ascii")
    assert (ran.code, ran.err) == (0, "")
    assert r"gr\xfc\xdf \U0001f389" in ran.out


def test_without_pyarrow_what_needs_it_says_what_to_install(journal: Path) -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from trunkline.cli import main; main()"

    def without(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", "-c", program, "journal", *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment(), check=False
        )

    for command in ("tail", "verify"):
        done = without(command, journal)
        assert (done.returncode, done.stderr) == (0, "")
    for words in (("export", journal, "all.parquet"), ("seal", journal, "--all")):
        done = without(*words)
        assert done.returncode == 2
        assert "pip install 'trunkline[journal]'" in done.stderr
        assert "Traceback" not in done.stderr


# Pipes, terminals, Ctrl-C


def test_tail_follows_until_ctrl_c_which_ends_it_quietly(journal: Path) -> None:
    with running(*TRUNKLINE, "journal", "tail", str(journal), "notes.*", "-f", "-n", "2") as process:
        assert process.stdout is not None
        assert b"notes.raw" in process.stdout.readline()
        assert b"notes.odd" in process.stdout.readline()
        fill(journal, "elsewhere", 3)
        fill(journal, "notes.new", 2)
        assert process.stdout.readline().split()[1:3] == [b"119", b"notes.new"]
        assert process.stdout.readline().split()[1:3] == [b"120", b"notes.new"]
        assert interrupt(process) == (130, "", "")


def test_ctrl_c_ends_a_replay_and_leaves_a_whole_journal(journal: Path) -> None:
    other = journal.parent / "other"
    with running(*TRUNKLINE, "journal", "replay", str(journal), "--into", str(other), "--rate", "100") as process:
        _until(lambda: (other / "journal.db").exists() and _last(other) >= 3)
        assert interrupt(process) == (130, "", "")
    assert 3 <= _last(other) < 115
    assert well("verify", other, "--json").value()["good"]


def _last(directory: Path) -> int:
    try:
        with Reader(directory) as reader:
            return reader.last()
    except tl.JournalUnusable:
        return 0


def _until(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("words", [("tail", "-n", "9000"), ("export", "-")])
def test_a_reader_that_goes_away_is_no_reason_for_a_traceback(words: tuple[str, ...], tmp_path: Path) -> None:
    fill(tmp_path, "numbers", 9000)
    with running(*TRUNKLINE, "journal", words[0], str(tmp_path), *words[1:]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE_S) == 1
        process.stdout = None


def in_terminal(*words: object) -> tuple[int, str, str]:
    """A command with a terminal for its errors, and a file for its output: the code, the output, what was shown.

    A terminal holds 4 KiB, so it is read while the command runs: one that waits for it would never end its output.
    """
    ours, theirs = pty.openpty()
    command = [*TRUNKLINE, "journal", *map(str, words)]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, stdout=output, stderr=theirs, env=environment(TERM="xterm")) as process,
    ):
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:
            # This is how Linux reports that the other end is closed.
            pass
        os.close(ours)
        code = process.wait(DEADLINE_S)
        output.seek(0)
        return code, output.read().decode(), shown.decode()


def test_progress_is_shown_on_a_terminal_only_and_no_colours_in_pipes(journal: Path, tmp_path: Path) -> None:
    for words, what in (
        (("verify", journal), "verifying"),
        (("export", journal, tmp_path / "all.parquet"), "exporting"),
    ):
        code, out, shown = in_terminal(*words)
        assert (code, what in shown, "\x1b" in out) == (0, True, False)
        ran = apart(*words, TERM="xterm-256color")
        assert (ran.code, ran.err, "\x1b" in ran.out) == (0, "", False)


def test_who_asks_for_colours_gets_them_but_no_progress_in_a_pipe(journal: Path) -> None:
    ran = apart("verify", journal, FORCE_COLOR="1")
    assert (ran.err, "\x1b[" in ran.out) == ("", True)


# A journal that a program is using


def test_looking_works_while_a_program_writes_and_seals(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    with writer(directory, "seal") as program:
        _until(lambda: _last(directory) > 1000 and well("stats", directory, "--json").value()["files"] > 2)
        last = 0
        for turn in range(6):
            stats = well("stats", directory, "--json").value()
            assert stats["owner"] == program.pid
            assert stats["messages"] + stats["sealed_messages"] == stats["last"] > last
            assert sum(topic["messages"] for topic in stats["topics"]) == stats["last"]
            assert max(topic["last"] for topic in stats["topics"]) == stats["last"]
            (cursor,) = stats["cursors"]
            assert cursor["behind"] == stats["last"] - cursor["high"] + cursor["pending"]
            last = stats["last"]

            verified = well("verify", directory, "--json").value()
            assert verified["good"]
            assert verified["messages"] + verified["sealed_messages"] >= last

            tail = [message["seq"] for message in well("tail", directory, "-n", "700", "--json").lines()]
            assert tail == list(range(tail[-1] - 699, tail[-1] + 1))

            file = tmp_path / f"all.{('parquet', 'arrow', 'jsonl')[turn % 3]}"
            count = well("export", directory, file, "--json").value()["messages"]
            assert _seqs(file) == list(range(1, count + 1))
            assert count >= last

            explained = well("explain", directory, last, "--json").value()
            assert explained["message"]["seq"] == last
            assert [outcome["subscriber"] for outcome in explained["outcomes"]] == ["worker"]
        assert f"process {program.pid} writes to it" in well("stats", directory).out
        assert stats["files"] > 2
        published = program.stop()
    stats = well("stats", directory, "--json").value()
    assert (stats["last"], stats["owner"]) == (published, None)


def _seqs(file: Path) -> list[int]:
    match file.suffix:
        case ".parquet":
            return list(pq.read_table(file).column("seq").to_pylist())
        case ".arrow":
            with pa.ipc.open_file(file) as reader:
                return list(reader.read_all().column("seq").to_pylist())
        case _:
            return [json.loads(line)["seq"] for line in file.read_text().splitlines()]


def test_changing_is_refused_while_a_program_writes_and_its_pid_is_told(journal: Path, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    with writer(busy) as program:
        _until(lambda: _last(busy) >= 100)
        for words in (
            ("seal", busy),
            ("seal", busy, "--all"),
            ("replay", busy, "--dead"),
            ("replay", journal, "--into", busy),
            ("forget", busy, "worker", "--yes"),
            ("forget", busy, "nobody", "--yes"),
            ("verify", busy, "--repair"),
        ):
            ran = trunkline(*words)
            assert (ran.code, ran.out) == (1, "")
            assert f"Another process (pid {program.pid}) is writing to the journal {busy}" in ran.err
            assert "next step: " in ran.err
        dry = well("replay", busy, "--dead", "--dry-run", "--json").value()
        assert {letter["subscriber"] for letter in dry["letters"]} == {"worker"}
        assert well("replay", journal, "--into", busy, "--dry-run").out == "115 messages would be replayed\n"
        assert program.stop() > 0


def test_tail_follows_across_sealing_without_a_gap_or_a_duplicate(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    with writer(directory, "seal") as program:
        command = (*TRUNKLINE, "journal", "tail", str(directory), "work.>", "-f", "-n", "5", "--json")
        with running(*command) as process:
            assert process.stdout is not None
            seen = [json.loads(process.stdout.readline())["seq"]]
            while seen[-1] < 4000:
                seen.append(json.loads(process.stdout.readline())["seq"])
            published = program.stop()
            while seen[-1] < published:
                seen.append(json.loads(process.stdout.readline())["seq"])
            assert interrupt(process) == (130, "", "")
    assert seen == list(range(seen[0], published + 1))
    assert well("stats", directory, "--json").value()["sealed_messages"] > 3000


def test_the_last_messages_are_told_once_though_they_are_sealed_while_they_are_read(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    fill_rows(journal, 30, 10)

    class Sealing(Reader):
        """The journal is sealed between two of its queries."""

        asked = 0

        def query(self, sql: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
            self.asked += 1
            if self.asked == 2:
                journal.seal(everything=True)
            return super().query(sql, values)

    with Sealing(tmp_path) as reader:
        found = [message.seq for message in reader.tail(">", 150)]
    journal.close()
    assert found == list(range(151, 301))


LOOK = """
import sys
from pathlib import Path
from trunkline.journal import lock
print("looking", flush=True)
while True:
    lock.owner(Path(sys.argv[1]))
"""


def test_looking_never_keeps_a_program_from_opening_its_journal(tmp_path: Path) -> None:
    owned = lock.Lock(tmp_path)
    owned.take()
    owned.release()
    with running(sys.executable, "-c", LOOK, str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"looking\n"
        for _ in range(10_000):
            owned.take()
            owned.release()


# Damage


def test_what_is_damaged_is_left_out_named_and_told_by_the_code(journal: Path) -> None:
    _flip(journal, b"application/msgpack", nth=2)
    file = journal.parent / "all.jsonl"
    for words, lines in (
        (("tail", journal, "-n", 200), 114),
        (("export", journal, "-"), 114),
        (("export", journal, file), 1),
    ):
        ran = trunkline(*words)
        assert (ran.code, len(ran.out.splitlines())) == (1, lines)
        assert ran.err.count("skipped: messages 3 to 3 (orders.placed) are damaged") == 1
        assert f"next step: trunkline journal verify {journal}" in ran.err
    assert 3 not in _seqs(file)
    assert "delivered" in well("explain", journal, 2).out
    ran = trunkline("verify", journal)
    assert ran.code == 1
    assert "damaged batch 3 on orders.placed: its checksum does not match (message 3)" in ran.out
    assert f"next step: trunkline journal verify {journal} --repair" in ran.out
    ran = trunkline("verify", journal, "--repair")
    assert ran.code == 0
    assert "lost batch 3 on orders.placed: its checksum does not match (message 3)" in ran.out
    assert "1 damaged batch in quarantine" in ran.out
    assert "all good" in ran.out
    assert "1 damaged batch in quarantine" in well("stats", journal).out


def _flip(directory: Path, near: bytes, nth: int) -> None:
    """Change a bit of a body in the database, in place."""
    data = bytearray((directory / "journal.db").read_bytes())
    with Reader(directory) as reader:
        (body,) = reader.query("SELECT body FROM batches ORDER BY first LIMIT 1 OFFSET ?", (nth,))[0]
    assert near in body
    assert data.count(body) == 1
    data[data.index(body) + 5] ^= 1
    (directory / "journal.db").write_bytes(data)


def test_a_database_that_is_none_is_told_with_the_next_step(journal: Path) -> None:
    (journal / "journal.db").write_bytes(b"this is not a database" * 1000)
    for command in ("stats", "tail"):
        ran = trunkline(command, journal)
        assert (ran.code, ran.out) == (1, "")
        assert "verify --repair" in ran.err
    ran = trunkline("verify", journal, "--json")
    assert (ran.code, ran.err) == (1, "")
    (finding,) = ran.value()["findings"]
    assert finding["where"] == "journal.db"


def test_a_lost_database_is_told_and_made_again_of_the_lake(journal: Path) -> None:
    well("seal", journal, "--all")
    for path in journal.glob("journal.db*"):
        path.unlink()
    ran = trunkline("stats", journal)
    assert ran.code == 1
    assert "verify --repair" in ran.err
    assert [*journal.glob("journal.db*")] == []
    ran = trunkline("verify", journal, "--repair")
    assert ran.code == 0
    assert "all good" in ran.out
    assert [message["seq"] for message in well("export", journal, "-").lines()] == list(range(1, 116))


# Replay


def test_dead_letters_go_back_to_whom_they_died_at_and_only_those(journal: Path) -> None:
    letters = well("replay", journal, "--dead", "--dry-run", "--json").value()["letters"]
    assert [letter["seq"] for letter in letters] == [1, 6, 11]
    chosen = letters[1]["id"]
    assert (
        "1 dead letter will be redelivered when the subscriber starts: billing"
        in well("replay", journal, "orders.*", "--dead", "--id", chosen, "--cause", "handler failed").out
    )
    left = well("replay", journal, "--dead", "--dry-run", "--json").value()["letters"]
    assert [letter["seq"] for letter in left] == [1, 11]
    for words in (("elsewhere",), ("--subscriber", "nobody"), ("--id", chosen), ("--cause", "handler timed out")):
        assert "there are no such dead letters" in well("replay", journal, *words, "--dead").out
    assert _handled(journal, "billing") == [6]
    well("replay", journal, "--dead")
    assert _handled(journal, "billing") == [1, 11]
    assert _handled(journal, "billing") == []
    assert well("stats", journal, "--json").value()["dead_letters"] == {}


def _handled(directory: Path, name: str) -> list[int]:
    """The messages of a subscriber when it starts, up to a marker."""
    seqs: list[int] = []

    async def life() -> None:
        marked = asyncio.Event()
        async with tl.connect("memory:", journal=directory) as bus:

            @bus.on("orders.*", name=name, durable=True)
            async def handle(message: tl.Message) -> None:
                if message.payload == b"mark":
                    marked.set()
                else:
                    seqs.append(message.seq)

            await bus.publish("orders.mark", b"mark")
            async with asyncio.timeout(DEADLINE_S):
                await marked.wait()
                await bus.quiet()

    asyncio.run(life())
    return sorted(seqs)


def test_a_range_is_published_again_into_another_journal(journal: Path) -> None:
    other = journal.parent / "other"
    dry = well("replay", journal, "orders.*", "--into", other, "--first", 3, "--last", 5, "--dry-run")
    assert dry.out == "3 messages would be replayed\n"
    dry = well("replay", journal, "orders.*", "--into", other, "--first", 3, "--last", 3, "--dry-run")
    assert dry.out == "1 message would be replayed\n"
    assert not other.exists()
    done = well("replay", journal, "orders.*", "--into", other, "--first", 3, "--last", 5, "--to", "old")
    assert done.out == "3 messages replayed\n"
    found = well("export", other, "-").lines()
    assert [(each["topic"], each["payload"], each["headers"]) for each in found] == [
        ("old.orders.placed", {"n": seq - 1}, {"replayed-from": str(seq)}) for seq in (3, 4, 5)
    ]


def test_a_journal_is_replayed_into_itself_only_below_another_topic(journal: Path) -> None:
    ran = trunkline("replay", journal, "--into", journal / ".." / journal.name)
    assert ran.code == 2
    assert "needs --to TOPIC" in ran.err
    assert well("replay", journal, "notes.*", "--into", journal, "--to", "again").out == "3 messages replayed\n"
    found = well("export", journal, "-", "again.>").lines()
    assert [each["topic"] for each in found] == ["again.notes.text", "again.notes.raw", "again.notes.odd"]
    assert [each["seq"] for each in found] == [116, 117, 118]


# Export


@pytest.fixture
def half_sealed(journal: Path) -> Path:
    well("seal", journal, "--all")
    fill(journal, "hot", 20)
    return journal


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_an_export_has_every_row_of_lake_and_journal(half_sealed: Path, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"all{suffix}"
    assert well("export", half_sealed, file).out.startswith(f"135 messages in {file}, ")
    assert _seqs(file) == list(range(1, 136))
    assert well("export", half_sealed, file, "orders.*", "--first", 3, "--last", 130).out.startswith("10 messages in ")
    assert _seqs(file) == list(range(3, 13))
    assert well("export", half_sealed, file, "--since", "2100-01-01").out.startswith("0 messages in ")
    assert _seqs(file) == []
    assert [path.name for path in tmp_path.iterdir() if path.name != "journal"] == [file.name]


def test_an_exported_parquet_file_has_the_columns_of_the_lake(half_sealed: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    well("export", half_sealed, file)
    table = pq.read_table(file)
    with Reader(half_sealed) as reader:
        messages = list(reader.messages())
        whole = pa.Table.from_batches(list(reader.arrow()))
    assert table.equals(whole)
    assert table.column("id").to_pylist() == [message.id for message in messages]
    assert table.column("payload").to_pylist() == [message.payload for message in messages]
    assert table.column("time").to_pylist()[0].tzinfo is not None


def test_overwriting_is_atomic(half_sealed: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    file.write_text("what was there before")
    seen: list[str] = []

    def batches(fails: bool) -> Iterator[pa.RecordBatch]:
        with Reader(half_sealed) as reader:
            for batch in reader.arrow():
                yield batch
                seen.append(file.read_text())
        if fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_to(file, Format.PARQUET, batches(True), lambda message: b"")
    assert file.read_text() == "what was there before"
    assert sorted(tmp_path.iterdir()) == sorted([file, half_sealed])
    assert export_to(file, Format.PARQUET, batches(False), lambda message: b"") == 135
    assert set(seen) == {"what was there before"}
    assert pq.read_table(file).num_rows == 135


def test_a_target_that_cannot_be_written_is_told_with_the_reason(half_sealed: Path, tmp_path: Path) -> None:
    (tmp_path / "directory.parquet").mkdir()
    (tmp_path / "file").write_text("no directory")
    for target, reason in (
        (tmp_path / "missing" / "all.parquet", f"there is no directory {tmp_path / 'missing'}, create it first"),
        (tmp_path / "file" / "all.arrow", f"there is no directory {tmp_path / 'file'}"),
        (tmp_path / "directory.parquet", "it is a directory"),
        (Path("/proc/all.jsonl"), "No such file or directory"),
        (Path("/proc/all.parquet"), "No such file or directory"),
    ):
        ran = trunkline("export", half_sealed, target)
        assert (ran.code, ran.out) == (2, "")
        assert f"cannot write {target}: " in ran.err
        assert reason in ran.err
        assert ".tmp" not in ran.err


def test_seal_joins_small_files_and_deletes_those_that_were_replaced(tmp_path: Path) -> None:
    settings = JournalSettings(replaced_s=0.0)
    for at in range(8):
        fill(tmp_path, "numbers", 10, at * 10)
        with Journal(tmp_path, settings, threaded=False) as journal:
            journal.seal(everything=True)
    assert well("seal", tmp_path).out.startswith("0 messages sealed, 8 small files joined, 0 replaced files deleted")
    assert well("stats", tmp_path, "--json").value()["files"] == 1
    assert [message["payload"] for message in well("export", tmp_path, "-").lines()] == list(range(80))
