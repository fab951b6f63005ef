"""The class archive: cached class data of Spark, with which Java starts in half the time.

This module finds the archive for a Java and a Spark, and checks it. make_class_archive.py creates one.
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
"""Increased when older archives must no longer be used."""
DIRECTORY = "TRUNKLINE_CACHE"
OFF = "off"
"""The value of the directory that disables archives."""
UNUSED_S = 30 * 24 * 3600.0
CHUNK = 1 << 20

CLASSES = "jsa"
"""Class data in addition to the archive of the Java installation."""
AHEAD = "aot"
"""A complete archive with linked classes and profiles; since Java 25."""
AHEAD_SINCE = 25


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`$TRUNKLINE_CACHE`, or `trunkline` in `$XDG_CACHE_HOME` or `~/.cache`. It may not exist."""
    if (named := environ.get(DIRECTORY)) and named != OFF:
        return Path(named)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"


@dataclass(frozen=True)
class Archive:
    """The path of the archive for a Java and a Spark. The file may not exist.

    The file name ends with the checksum, so that one rename publishes a complete and verified file.
    """

    folder: Path
    name: str
    kind: str

    def find(self) -> Path | None:
        """The archive, if it exists and is intact. A damaged one is removed."""
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
        """A file with the reason why this Java cannot create an archive, so that it is not tried again."""
        return self.folder / f"{self.name}.refused"

    def is_wanted(self) -> bool:
        """Whether it should be created."""
        there = next(each for each in (self.folder, *self.folder.parents) if each.exists())
        return not self.files() and not self.refused.exists() and there.is_dir() and os.access(there, os.W_OK)

    def options(self, path: Path) -> list[str]:
        """Options for a Java that uses it. If it does not fit, Java starts without it."""
        return [f"-XX:AOTCache={path}"] if self.kind == AHEAD else [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"]

    def training_options(self, path: Path) -> list[str]:
        """Options for a Java that writes it at exit."""
        return [f"-XX:AOTCacheOutput={path}"] if self.kind == AHEAD else [f"-XX:ArchiveClassesAtExit={path}"]

    def sweep(self, newest: Path) -> None:
        """Remove archives that were not used for a month: each version of Java and Spark has its own."""
        for path in self.folder.glob(f"spark-*.????????.{self.kind}"):
            with suppress(OSError):
                if newest.stat().st_mtime - path.stat().st_mtime > UNUSED_S:
                    path.unlink()


def is_off(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(DIRECTORY) == OFF


def archive_for(java: Java, spark_home: Path, spark_version: str, folder: Path) -> Archive | None:
    """The archive for this Java and Spark; None if this Java cannot create one."""
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
    """The data that Java compares before it uses an archive: its version, and size and time of each class path file."""
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
    """Archives contain code, so those of other users are not used."""
    found = path.stat()
    return found.st_uid in (0, os.getuid()) and not stat.S_IMODE(found.st_mode) & 0o022
