"""Imports nbformat on first use, because the import is slow."""

from __future__ import annotations

from typing import Any

from trunkline.errors import MissingExtra


def nbformat() -> Any:
    try:
        import nbformat as found
    except ImportError as error:  # pragma: no cover  # depends on what is installed
        raise MissingExtra("jupyter", "notebooks") from error
    return found
