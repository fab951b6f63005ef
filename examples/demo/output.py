"""The directory that the demo leaves behind. It is written beside the old one, and replaces it at the end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

ABOUT = """\
Made by the demo of Trunkline; the next run replaces this directory.

report.html   what Spark made of it, for a browser
journal/      every message, and what became of it; the tables are in journal/warehouse
logs/         what each process logged
"""


class NotOurs(Exception):
    """There is a directory of that name that the demo did not make."""


class Output:
    def __init__(self, place: Path) -> None:
        self.place = place
        if place.exists() and not (place.is_dir() and self._is_ours()):
            raise NotOurs(f"{place} exists, and this demo did not make it: move it away, or name another directory")
        place.parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent)).absolute()
        self.folder.chmod(0o755)
        self.journal, self.logs = self.folder / "journal", self.folder / "logs"
        self.warehouse = self.journal / "warehouse"  # where the command line looks for it
        self.report = self.folder / "report.html"
        self.logs.mkdir()
        (self.folder / "README.txt").write_text(ABOUT)

    def _is_ours(self) -> bool:
        about = self.place / "README.txt"
        return about.is_file() and about.read_text().startswith(ABOUT.splitlines()[0])

    def keep(self) -> None:
        """Put it where it belongs, once. If two demos end at once, the last one stays."""
        while not self.kept:
            if self.place.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{self.place.name}-", dir=self.place.parent))
                try:
                    self.place.rename(old)
                except FileNotFoundError:
                    pass  # the other one did it
                finally:
                    shutil.rmtree(old)
            try:
                self.folder.rename(self.place)
                return
            except OSError:
                if not self.place.exists():
                    raise

    @property
    def kept(self) -> bool:
        return not self.folder.exists()

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
