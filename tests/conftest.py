"""For every test: nothing is left behind, and hypothesis has no clock; in CI it has no luck either."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from trunkline.testing.leaks import no_leaks

settings.register_profile("trunkline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("trunkline")


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    with no_leaks():
        yield
