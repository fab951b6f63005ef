"""The class archive: what a Java has learnt about Spark's classes, kept so that the next one starts in half the time.

Here is which archive fits which Java and Spark, and whether it is whole. Making one is in make_class_archive.py.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trunkline.spark.session.java import Java

LAYOUT = 1
"""Raised when an archive made before must not be used any more."""
DIRECTORY = "TRUNKLINE_CACHE"
OFF = "off"
"""As the directory: no archive is used or made."""
UNUSED_S = 30 * 24 * 3600.0
CHUNK = 1 << 20

CLASSES = "jsa"
"""Class data on top of the archive that comes with a Java."""
AHEAD = "aot"
"""Class data with links and profiles, complete in itself; since Java 25."""
AHEAD_SINCE = 25


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`$TRUNKLINE_CACHE`, or `trunkline` in `$XDG_CACHE_HOME` or `~/.cache`. It may not exist."""
    if (named := environ.get(DIRECTORY)) and named != OFF:
        return Path(named)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"


@dataclass(frozen=True)
class Archive:
    """The place of the one archive that fits a Java and a Spark. Its file may not exist.

    A file's name ends with its checksum: one rename makes it whole and known to be whole, at once.
    """

    folder: Path
    name: str
    kind: str

    def find(self) -> Path | None:
        """The archive, if there is one and it is whole. A damaged one is removed."""
        for path in self.files():
            with suppress(OSError):
                if not _is_trusted(path):
                    continue
                if path.name == self.file_name(checksum(path)):
                    os.utime(path)
                    return path
                path.unlink()
        return None

    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}.????????.{self.kind}"))

    def file_name(self, checksum: int) -> str:
        return f"{self.name}.{checksum:08x}.{self.kind}"

    @property
    def refused(self) -> Path:
        """A file with the reason why this Java makes no archive: it need not be tried again and again."""
        return self.folder / f"{self.name}.refused"

    def is_wanted(self) -> bool:
        """Whether it can be made, as far as one can see."""
        there = next(each for each in (self.folder, *self.folder.parents) if each.exists())
        return not self.files() and not self.refused.exists() and there.is_dir() and os.access(there, os.W_OK)

    def options(self, path: Path) -> list[str]:
        """For a Java that is to use it; one that finds that it does not fit goes on without."""
        return [f"-XX:AOTCache={path}"] if self.kind == AHEAD else [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"]

    def training_options(self, path: Path) -> list[str]:
        """For a Java that is to write it when it ends."""
        return [f"-XX:AOTCacheOutput={path}"] if self.kind == AHEAD else [f"-XX:ArchiveClassesAtExit={path}"]

    def sweep(self, newest: Path) -> None:
        """Remove archives that nobody has used for a month: each Java and each Spark leaves one behind."""
        for path in self.folder.glob(f"spark-*.????????.{self.kind}"):
            with suppress(OSError):
                if newest.stat().st_mtime - path.stat().st_mtime > UNUSED_S:
                    path.unlink()


def is_off(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(DIRECTORY) == OFF


def archive_for(java: Java, spark_home: Path, spark_version: str, folder: Path) -> Archive | None:
    """None if this Java cannot make one."""
    kind = _kind(java)
    if kind is None:
        return None
    seen = hashlib.sha256()
    for line in _described(java, spark_home):
        seen.update(line.encode() + b"\n")
    name = f"spark-{spark_version}-java-{java.version}-{LAYOUT}-{seen.hexdigest()[:12]}"
    return Archive(folder, name, kind)


def _kind(java: Java) -> str | None:
    if os.name != "posix":
        return None
    if java.major >= AHEAD_SINCE:
        return AHEAD
    return CLASSES if (java.home / "lib" / "server" / "classes.jsa").exists() else None


def _described(java: Java, spark_home: Path) -> Iterator[str]:
    """What a Java compares before it uses an archive: itself, and each file of the class path with size and time."""
    library = java.home / "lib" / "server" / "libjvm.so"
    for path in (library, *sorted((spark_home / "jars").glob("*.jar"))):
        with suppress(OSError):
            found = path.stat()
            yield f"{path} {found.st_size} {found.st_mtime_ns}"


def checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def _is_trusted(path: Path) -> bool:
    """Classes are code: those of a stranger are not run."""
    found = path.stat()
    return found.st_uid in (0, os.getuid()) and not stat.S_IMODE(found.st_mode) & 0o022
