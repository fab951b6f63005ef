"""`trunkline doctor`: what exists, what dead processes left, and that files of living processes are never touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.memory.children import child, go_on, line, run
from tests.memory.conftest import left
from trunkline import memory
from trunkline.errors import UsageError
from trunkline.memory import survey as survey_module
from trunkline.memory.place import SHM, engine_prefix, engine_root
from trunkline.memory.reap import reap
from trunkline.memory.survey import survey

DOCTOR = (sys.executable, "-c", "from trunkline.cli import main; main()", "doctor")
BOTH = """
with memory.producer("camera", schema=bytes, capacity=4) as camera, memory.consumer("camera") as frames:
    say("there")
    wait()
    camera.send(b"still here")
    say(bytes(frames.recv(5).data).decode())
    wait()
"""


def doctor(*options: str, expect: int = 0) -> list[Any]:
    done = subprocess.run([*DOCTOR, *options, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expect, done.stderr
    return [json.loads(each) for each in done.stdout.splitlines()]


def killed(code: str = BOTH) -> int:
    """A process that was killed with everything open; its pid."""
    with child(code) as process:
        assert line(process) == "there"
    return process.pid


def test_what_lives_is_listed_with_its_owner_its_age_and_its_size() -> None:
    with child(BOTH) as process:
        assert line(process) == "there"
        (found,) = doctor()
        assert [(each["pid"], each["alive"]) for each in found["nodes"]] == [(process.pid, True)] * 2
        assert {each["name"] for each in found["services"]} == {
            "/trunkline_camera",
            "/trunkline_camera/credit",
            "/trunkline_camera/report",
        }
        assert all(each["owners"] == [process.pid] for each in found["services"])
        (data,) = [each for each in found["files"] if each["kind"] == "data" and each["bytes"] > 10_000]
        assert data["owner"] == process.pid
        assert 0 <= data["age_s"] < 60
        assert not any(each["left_over"] for each in found["files"])
        go_on(process)
        assert line(process) == "still here"
        process.communicate("\n")


def test_reaping_tries_to_harm_the_living_and_cannot(runtime: Path) -> None:
    """All files of a living process look old, and it has written nothing for a while."""
    with child(BOTH) as process:
        assert line(process) == "there"
        dead = killed(BOTH.replace("camera", "other"))
        before = set(left(runtime))
        for path in before:
            os.utime(path, (0, 0), follow_symlinks=False)
        found, done = doctor("--reap", "--yes")
        assert {each["owner"] for each in found["files"] if each["left_over"]} == {dead}
        assert done["kept"] == []
        assert {each["owner"] for each in done["removed"]} == {dead}
        (after,) = doctor()
        assert {each["owner"] for each in after["files"]} == {process.pid}
        assert not any(each["left_over"] for each in after["files"])
        go_on(process)
        assert line(process) == "still here"
        with memory.consumer("camera"):
            pass
        process.communicate("\n")


def test_a_lock_is_enough_to_live_even_if_the_process_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: the lock decides."""
    with child(BOTH) as process:
        assert line(process) == "there"
        monkeypatch.setattr(survey_module, "_lives", lambda pid, since_s: False)
        found = survey()
        assert all(each.alive for each in found.nodes)
        assert found.left_over == []
        process.communicate("\n\n")


def test_a_process_is_enough_to_live_even_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be starting: the lock is taken after the file is created."""
    with child(BOTH) as process:
        assert line(process) == "there"
        monkeypatch.setattr(survey_module, "_locked", lambda path: False)
        assert survey().left_over == []
        process.communicate("\n\n")


def test_what_the_dead_left_is_found_and_removed(runtime: Path) -> None:
    pid = killed()
    (found,) = doctor()
    assert [(each["pid"], each["alive"]) for each in found["nodes"]] == [(pid, False)] * 2
    assert sorted(each["path"] for each in found["files"]) == [
        path for path in left(runtime) if not path.endswith(".json")
    ]
    assert all(each["left_over"] for each in found["files"])
    # Looking removes nothing.
    assert len(left(runtime)) == len(found["files"]) + 1
    _, done = doctor("--reap", "--yes")
    assert done["kept"] == []
    assert left(runtime) == []


def test_what_the_engine_cannot_remove_is_removed_by_hand(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed()
    monkeypatch.setattr("trunkline.memory.adapter.reap_nodes", lambda ids: None)
    done = reap()
    assert (done.kept, left(runtime)) == ([], [])
    with memory.producer("camera", schema=bytes):
        pass


def test_crumbs_without_a_monitor_file_are_removed(runtime: Path) -> None:
    killed()
    for path in (engine_root() / "nodes").glob("*.node_monitor"):
        path.unlink()
    for path in (engine_root() / "services").iterdir():
        # The engine makes them read-only, which stops everybody but root.
        path.chmod(0o600)
        path.write_text("half written")
    _, done = doctor("--reap", "--yes")
    assert (done["kept"], left(runtime)) == ([], [])


def test_a_channel_that_the_living_share_with_the_dead_stays(runtime: Path) -> None:
    with child(BOTH) as process:
        assert line(process) == "there"
        dead = killed("""
            with memory.consumer("camera", wants="every") as frames:
                say("there")
                wait()
        """)
        _, done = doctor("--reap", "--yes")
        assert done["kept"] == []
        (after,) = doctor()
        assert dead not in {each["owner"] for each in after["files"]}
        assert [each["pid"] for each in after["nodes"]] == [process.pid] * 2
        go_on(process)
        assert line(process) == "still here"
        process.communicate("\n")


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it() -> None:
    pid = killed()
    root = engine_root()
    # All ids of the dead now hold the number of this test's process, which began long after the files say.
    for path in [*SHM.glob(f"{engine_prefix(root)}*"), *root.rglob("*")]:
        if path.is_file() or path.is_socket():
            os.utime(path, (0, 0))
    found = survey()
    assert {each.owner for each in found.left_over} == {pid}
    assert not survey_module._lives(os.getpid(), 0)
    assert survey_module._lives(os.getpid(), time.time())
    assert reap().kept == []


def test_a_process_with_an_open_end_must_not_look() -> None:
    with memory.producer("camera", schema=bytes) as camera:
        with pytest.raises(UsageError, match="another one"):
            survey()
        with pytest.raises(UsageError):
            reap()
        camera.send(b"fine")


def test_without_a_terminal_removing_needs_a_word() -> None:
    killed()
    done = subprocess.run([*DOCTOR, "--reap"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pass --yes" in done.stderr
    assert "Left by dead processes" in done.stdout
    assert "doctor" in subprocess.run([*DOCTOR[:-1], "--help"], capture_output=True, text=True, check=True).stdout
    shown = subprocess.run([*DOCTOR, "--reap", "--yes"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "removed" in shown
    clean = subprocess.run([*DOCTOR], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "no shared memory below" in clean


def test_it_works_without_the_engine(runtime: Path) -> None:
    killed()
    run("""
        sys.modules["iceoryx2"] = None
        from trunkline.memory.reap import reap
        assert reap().kept == []
        try:
            memory.producer
        except tl.MissingExtra as error:
            say(error)
    """)
    assert left(runtime) == []
    shutil.rmtree(engine_root())
    assert survey().files == []
