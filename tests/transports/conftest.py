"""Creates objects that live as long as the process before a test checks for leaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transports.wires import begin_what_lasts
from trunkline.testing import no_leaks
from trunkline.testing.leaks import LeakError
from trunkline.transports.zmq.socket import LINGER_S


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """ZeroMQ lets go of a socket in a thread of its own, when what was sent last is gone, or has waited long enough.

    On a machine that is busy it has been seen to take longer than twice that: its event descriptors do not count.
    """
    check = no_leaks(deadline_s=2 * LINGER_S)
    check.__enter__()
    yield
    try:
        check.__exit__(None, None, None)
    except LeakError as error:
        if not all("[eventfd]" in leak for leak in error.leaks):
            raise


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the user who runs the tests are ignored."""
    for name in ("TRUNKLINE_KEYS", "TRUNKLINE_INSECURE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _lasting() -> None:
    begin_what_lasts()
