"""An actor in a process of its own, for work that would keep everybody else waiting. Chosen at spawn: `process=True`.

Its mailbox and its supervision stay where it was spawned; a stand-in there hands over one message at a time. The
process is this Python with `trunkline.actors.worker`; both ends speak in frames over a pair of sockets.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import sys
from typing import Any, Final

from trunkline.actors.actor import Actor
from trunkline.actors.errors import ActorProcessFailed
from trunkline.errors import UsageError
from trunkline.message import Message

END_S: Final = 5.0
"""So long a process has to end by itself."""
LENGTH: Final = struct.Struct("!Q")


def pack(value: object) -> bytes:
    body = pickle.dumps(value, protocol=5)
    return LENGTH.pack(len(body)) + body


class InProcess(Actor):
    """Stands for an actor that lives elsewhere."""

    def __init__(self, kind: type[Actor], arguments: tuple[Any, ...]) -> None:
        self._kind = kind
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def starting(self) -> None:
        if self._kind.__module__ == "__main__":
            raise UsageError(
                f"{self._kind.__name__} is defined in the program itself, which its process cannot import: put it into"
                " a module"
            )
        try:
            begin = pack((sys.path, pickle.dumps((self._kind, self._arguments, self.context.address))))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{self._kind.__name__} cannot be sent to another process: {error}. Define it at the top of a module,"
                " and give it arguments that can be pickled"
            ) from error
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "trunkline.actors.worker", str(theirs.fileno()), pass_fds=[theirs.fileno()]
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            await self._exchange(begin)
        except BaseException:
            await self.release()
            raise

    async def receive(self, message: Message) -> Any:
        done = await self._exchange(pack(message.to_bytes()))
        for kind, where, payload, fields in done["sent"]:
            if kind == "send":
                await self.context.send(where, payload, **fields)
            else:
                await self.context.publish(where, payload, **fields)
        if done["stop"]:
            self.context.stop()
        return done["result"]

    async def _exchange(self, frame: bytes) -> Any:
        """Send something and wait for what comes of it. Raises what it failed with, or that the process is gone."""
        assert self._writer is not None
        try:
            self._writer.write(frame)
            await self._writer.drain()
            size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
            # From our own process: nobody else has the other end.
            done = pickle.loads(await self._reader.readexactly(size))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            code = None if self._process is None else await self._process.wait()
            raise ActorProcessFailed(self.context.address, f"its process ended with {code}", "") from error
        if done["error"] is not None:
            raise ActorProcessFailed(self.context.address, *done["error"])
        return done

    async def release(self) -> None:
        """The incarnation is over: its process reads the end of what we say, and ends; or it is killed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        except asyncio.CancelledError:
            # Whoever is in a hurry waits at least until it is gone.
            process.kill()
            await process.wait()
            raise
