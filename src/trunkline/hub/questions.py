"""Requests that take longer than one iteration of the event loop. Their number is limited for each connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trunkline.errors import ProtocolError

if TYPE_CHECKING:
    from trunkline.hub.session import Session


class OpenQuestions:
    def __init__(self, most: int, about: str) -> None:
        self._most = most
        self._about = about
        self._open: Counter[Session] = Counter()

    @contextmanager
    def one(self, session: Session) -> Iterator[None]:
        """Count a request while it is processed. Raises ProtocolError if too many are open."""
        if self._open[session] >= self._most:
            raise ProtocolError("too_many", f"{self._most} requests {self._about} are already waiting for an answer")
        self._open[session] += 1
        try:
            yield
        finally:
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
