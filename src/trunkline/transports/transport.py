"""What a transport is: it connects and listens, and carries frames both ways. It understands none of them.

Write one by giving these few methods; `trunkline.transports.register("myscheme", MyTransport())` makes
`tl.connect("myscheme://…")` and a hub's `listen` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trunkline.errors import ProtocolError

Part = bytes | memoryview
Frame = tuple[Part, ...]
"""One frame in one or more parts, which follow each other without a gap."""


@dataclass(frozen=True)
class PeerIdentity:
    """Who is at the other end, as the transport knows it: nothing that the peer has only said."""

    identity: str
    """`uid:1000`, `cert:alice`, `key:…`; `anonymous` if the transport cannot tell."""
    address: str
    """For people who read logs."""
    process: int = 0
    """The number of its process, as the kernel has it, if that is on this host and of the same user; otherwise 0."""


class Wire(Protocol):
    """One connection. All of it is used in one event loop thread."""

    peer: PeerIdentity

    def send(self, frames: Sequence[Frame]) -> None:
        """Send these, in order. Never waits, never raises: what cannot be sent any more is gone, and `lost` is told."""

    @property
    def backlog(self) -> int:
        """Bytes that were given to `send` and have not left this process."""

    def pause(self) -> None:
        """Take in no more frames until `resume`: the sender is to wait."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Send what was given, and end. Closing twice is fine.

        `lost` is told when all of it has left this process, or after LINGER_S in which the other side has taken none.
        """

    def abort(self) -> None:
        """End at once."""


class Receiver(Protocol):
    """Who uses a wire."""

    def received(self, frames: Sequence[memoryview]) -> None:
        """Some frames have come, in order."""

    def broken(self, error: ProtocolError) -> None:
        """What comes cannot be cut into frames any more. Told once: say what is to be said, and close the wire."""

    def writable(self) -> None:
        """The backlog, which was above HIGH_BYTES, has gone below LOW_BYTES."""

    def lost(self, why: str) -> None:
        """The connection has ended, and nothing more will come. Told once, whoever ended it."""


HIGH_BYTES = 128 * 1024
"""Little, for nothing overtakes what is in here: what is urgent passes all that waits before it is given to `send`."""
LOW_BYTES = 64 * 1024
LINGER_S = 5.0
"""So long a connection that was closed may take to send what was given to it."""

Accept = Callable[[Wire], Receiver]
"""Asked for each new connection: who uses it?"""


class Listener(Protocol):
    address: str
    """The URL under which it is reached: with the port it was given, if it asked for any."""

    async def aclose(self) -> None:
        """Take no new connections. Those that are there stay."""


class Transport(Protocol):
    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        """Raises OSError, or ConnectionError, with what is wrong."""

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener: ...
