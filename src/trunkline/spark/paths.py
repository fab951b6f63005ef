"""Paths in the form that Spark expects."""

from __future__ import annotations

import re
from pathlib import Path


def for_reading(path: Path) -> str:
    """Escapes characters that Spark treats as wildcards."""
    return "file://" + re.sub(r"([][{}*?\\])", r"\\\1", str(path.absolute()))


def for_writing(path: Path) -> str:
    return "file://" + str(path.absolute())
