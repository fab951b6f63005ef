"""The interface of a transport: it connects and listens, and carries frames both ways without reading them.

To add a transport, implement these few methods; `trunkline.transports.register("myscheme", MyTransport())` makes
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
    """The identity of the other end, as determined by the transport. Nothing here is taken from what the peer sends."""

    identity: str
    """`uid:1000`, `cert:alice`, `key:…`; `anonymous` if the transport cannot determine it."""
    address: str
    """The address of the peer, for logs."""
    process: int = 0
    """The pid of the peer from the kernel, if it is on this host and of the same user; otherwise 0."""


class Wire(Protocol):
    """One connection. It is used only in the thread of one event loop."""

    peer: PeerIdentity

    def send(self, frames: Sequence[Frame]) -> None:
        """Send frames, in order.

        Never waits, never raises. After the connection has ended they are dropped, and `lost` is called.
        """

    @property
    def backlog(self) -> int:
        """Bytes that were passed to `send` and have not left this process."""

    def pause(self) -> None:
        """Accept no more frames until `resume`, so that the sender waits."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Send everything that was passed to `send`, and end. Closing twice is allowed.

        `lost` is called when everything has left this process, or after LINGER_S without progress.
        """

    def abort(self) -> None:
        """End at once."""


class Receiver(Protocol):
    """The user of a wire."""

    def received(self, frames: Sequence[memoryview]) -> None:
        """Called when frames have arrived, in order."""

    def broken(self, error: ProtocolError) -> None:
        """Called once when the incoming bytes are not valid frames.

        Send a last message if needed, and close the wire.
        """

    def writable(self) -> None:
        """Called when the backlog, which was above HIGH_BYTES, has fallen below LOW_BYTES."""

    def lost(self, why: str) -> None:
        """Called once when the connection has ended, whichever side ended it."""


HIGH_BYTES = 128 * 1024
"""Small, because nothing overtakes bytes in this buffer. Urgent messages overtake all others before `send`."""
LOW_BYTES = 64 * 1024
LINGER_S = 5.0
"""How long a closed connection may take to send its remaining bytes."""

Accept = Callable[[Wire], Receiver]
"""Called for each new connection. Returns its receiver."""


class Listener(Protocol):
    address: str
    """The URL of the listener, with the actual port if it was 0."""

    async def aclose(self) -> None:
        """Accept no new connections. Existing ones stay open."""


class Transport(Protocol):
    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        """Connect to a hub. Raises OSError, or ConnectionError, with the reason."""

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener: ...
