"""Kernels find their specifications, and leave their connection files, in directories of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jupyter.real import install_deno


@pytest.fixture(scope="session", autouse=True)
def own_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    data = tmp_path_factory.mktemp("jupyter")
    install_deno(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(data))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(data / "runtime"))
        patch.setenv("IPYTHONDIR", str(data / "ipython"))
        patch.setenv("DENO_DIR", str(data / "deno"))
        patch.setenv("DENO_NO_UPDATE_CHECK", "1")
        yield
