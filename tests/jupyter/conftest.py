"""Kernels find their specifications, and leave their connection files, in directories of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory

import pytest

from tests.jupyter.notebooks import Execute, execute_at
from tests.jupyter.real import install_deno
from trunkline.jupyter import start_kernel_blocking
from trunkline.testing import no_leaks


@pytest.fixture(scope="session", autouse=True)
def own_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    data = tmp_path_factory.mktemp("jupyter")
    install_deno(data)
    # A short one: unix sockets are in it, whose names may have about 100 bytes.
    with TemporaryDirectory(prefix="tl-") as runtime, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(data))
        patch.setenv("JUPYTER_RUNTIME_DIR", runtime)
        patch.setenv("IPYTHONDIR", str(data / "ipython"))
        patch.setenv("DENO_DIR", str(data / "deno"))
        patch.setenv("DENO_NO_UPDATE_CHECK", "1")
        yield


@pytest.fixture(scope="module")
def execute_here() -> Iterator[Execute]:
    """Runs notebooks in one kernel for all tests of a module, to save its start each time."""
    with no_leaks(), start_kernel_blocking() as kernel:
        assert kernel.connection_file is not None
        yield partial(execute_at, kernel.connection_file)


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sockets to a kernel that tests share may be opened in any of them: they are checked after all tests."""
    if {"execute_here", "kernel"} & set(request.fixturenames):
        yield
    else:
        with no_leaks():
            yield
