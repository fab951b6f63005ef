"""What lives as long as the process is there before anybody looks for what a test leaves behind."""

from __future__ import annotations

import pytest

from tests.transports.wires import begin_what_lasts


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the person who runs the tests are not meant."""
    for name in ("TRUNKLINE_KEYS", "TRUNKLINE_INSECURE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _lasting() -> None:
    begin_what_lasts()
