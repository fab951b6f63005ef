"""Descriptor files: found while their process lives, and not after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.errors import InvalidSettings
from trunkline.transports.descriptors import Descriptor, Descriptors
from trunkline.transports.runtime import default_url, runtime_directory

ANNOUNCE = """
import sys, pathlib
from trunkline.transports.descriptors import Descriptor, Descriptors
Descriptors(pathlib.Path(sys.argv[1])).announce(Descriptor(channel="camera", shm_name="/camera"))
print("there", flush=True)
sys.stdin.read()
"""


def test_what_is_announced_is_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    files = Descriptors(tmp_path)
    assert files.find("sensor.data") is None
    assert files.all() == []
    files.announce(Descriptor(channel="sensor.data", shm_name="/sensor", schema_hash="ab", metadata={"hz": 10}))
    found = files.find("sensor.data")
    assert found is not None
    assert (found.shm_name, found.schema_hash, found.metadata) == ("/sensor", "ab", {"hz": 10})
    assert [each.channel for each in files.all()] == ["sensor.data"]
    (path,) = (tmp_path / "channels").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.withdraw("sensor.data")
    assert not files.withdraw("sensor.data")
    assert files.find("sensor.data") is None


def test_channels_that_look_alike_as_files_are_told_apart(tmp_path: Path) -> None:
    files = Descriptors(tmp_path)
    for channel in ("a/b", "a b", "a_b", "../a", "é"):
        files.announce(Descriptor(channel=channel, shm_name=channel))
    for channel in ("a/b", "a b", "a_b", "../a", "é"):
        found = files.find(channel)
        assert found is not None
        assert found.shm_name == channel
    assert all(path.parent == tmp_path / "channels" for path in tmp_path.rglob("*.json"))


def test_the_dead_are_not_found_and_their_files_go(tmp_path: Path) -> None:
    files = Descriptors(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", ANNOUNCE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        found = files.find("camera")
        assert found is not None
        assert found.pid == child.pid
        assert not files.withdraw("camera"), "it is not ours"
        child.kill()
    assert files.find("camera") is None
    assert list((tmp_path / "channels").iterdir()) == []


def test_another_process_with_the_same_number_is_not_it(tmp_path: Path) -> None:
    files = Descriptors(tmp_path)
    files.announce(Descriptor(channel="camera"))
    (path,) = (tmp_path / "channels").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"started":"', b'"started":"9'))
    assert files.find("camera") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"channel": 5}', b"\xff"])
def test_garbage_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "channels").mkdir()
    (tmp_path / "channels" / "camera.json").write_bytes(content)
    assert Descriptors(tmp_path).find("camera") is None
    assert Descriptors(tmp_path).all() == []


def test_the_runtime_directory_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(tmp_path / "own"))
    assert runtime_directory() == tmp_path / "own"
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    assert default_url() == f"unix://{tmp_path}/own/hub.sock"
    monkeypatch.delenv("TRUNKLINE_RUNTIME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_directory() == tmp_path / "trunkline"
    (tmp_path / "trunkline").chmod(0o777)
    with pytest.raises(InvalidSettings, match="others can write to it"):
        runtime_directory()
