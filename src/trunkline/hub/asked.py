"""Questions that take longer than a turn: of one connection, only so many may wait for their answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trunkline.errors import ProtocolError

if TYPE_CHECKING:
    from trunkline.hub.session import Session


class Asked:
    def __init__(self, most: int, about: str) -> None:
        self._most = most
        self._about = about
        self._waiting: Counter[Session] = Counter()

    @contextmanager
    def one(self, session: Session) -> Iterator[None]:
        """Raises ProtocolError if too many wait already."""
        if self._waiting[session] >= self._most:
            raise ProtocolError("too_many", f"{self._most} questions {self._about} wait for an answer already")
        self._waiting[session] += 1
        try:
            yield
        finally:
            self._waiting[session] -= 1
            if not self._waiting[session]:
                del self._waiting[session]
