"""The consumers that a producer waits for. Pure: frame numbers and times are arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GatingConsumer:
    position: int
    """The last frame it has taken."""
    moved_ns: int


class Gate:
    """A frame may be sent when every consumer that wants every frame has room for it in its queue."""

    def __init__(self, queue: int, stuck_ns: int) -> None:
        self._queue = queue
        self._stuck_ns = stuck_ns
        self._members: dict[int, GatingConsumer] = {}

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._members)

    def join(self, id: int, last: int, now_ns: int) -> None:
        """Add a consumer that gets all frames after `last`."""
        self._members[id] = GatingConsumer(last, now_ns)

    def move(self, id: int, position: int, now_ns: int) -> None:
        member = self._members[id]
        if position > member.position:
            member.position, member.moved_ns = position, now_ns

    def leave(self, id: int) -> bool:
        return self._members.pop(id, None) is not None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, id: object) -> bool:
        return id in self._members

    def full(self, sent: int) -> list[int]:
        """The consumers whose queue is full after `sent` frames."""
        return [id for id, member in self._members.items() if sent - member.position >= self._queue]

    def stuck(self, sent: int, since_ns: int, now_ns: int) -> list[int]:
        """The full consumers that have taken nothing for too long while the producer waited, since `since_ns`."""
        return [id for id in self.full(sent) if now_ns - max(since_ns, self._members[id].moved_ns) >= self._stuck_ns]

    def patience_ns(self, sent: int, since_ns: int, now_ns: int) -> int:
        """The time until the next consumer counts as stuck, if none takes a frame."""
        waited = (now_ns - max(since_ns, self._members[id].moved_ns) for id in self.full(sent))
        return max(0, self._stuck_ns - max(waited, default=0))
