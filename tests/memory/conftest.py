"""Each test has its own runtime directory, and leaves nothing in it or in /dev/shm but the engine's own file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trunkline.memory.place import SHM, engine_prefix


def left(runtime: Path) -> list[str]:
    """The files of the engine, except the one that it never removes."""
    found = [*runtime.rglob("*"), *SHM.glob(f"{engine_prefix(runtime.resolve() / 'shm')}*")]
    return sorted(str(path) for path in found if not path.is_dir() and not path.name.endswith(".global_mgmt"))


@pytest.fixture(autouse=True)
def runtime(own_runtime: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tl-memory-"))
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(path))
    yield path
    files = left(path)
    for name in SHM.glob(f"{engine_prefix(path.resolve() / 'shm')}*"):
        name.unlink()
    shutil.rmtree(path)
    assert files == []
