"""An actor in its own process, for work that would block all others. Chosen at spawn: `process=True`.

Its mailbox and its supervision stay where it was spawned. A stand-in there passes it one message at a time, and
executes its calls to the system meanwhile. The process runs `trunkline.actors.worker` with the same Python. Both ends
exchange frames over a socket pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from trunkline.actors.actor import Actor
from trunkline.actors.errors import ActorProcessFailed
from trunkline.delivery.dead_letters import describe
from trunkline.errors import Reject, UsageError
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.actors.cell import Cell

log = logging.getLogger("trunkline.actors")

END_S: Final = 5.0
"""How long a process may take to exit after its last handler has ended. Then it is killed."""
LENGTH: Final = struct.Struct("!Q")

# Frames to the process.
HANDLE: Final = "handle"
HOOK: Final = "hook"
ANSWER: Final = "answer"
# Frames from it.
DONE: Final = "done"
CALL: Final = "call"


def pack(value: object) -> bytes:
    body = pickle.dumps(value, protocol=5)
    return LENGTH.pack(len(body)) + body


class UnreadableThere(Reject):
    """The actor has no handler for the message, or cannot read its payload."""


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next frame. Unpickling it is safe: both ends belong to one program, and no other process has the sockets."""
    size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
    return pickle.loads(await reader.readexactly(size))


class InProcess(Actor):
    """The stand-in for an actor that runs in its own process."""

    def __init__(self, kind: type[Actor], arguments: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        self._kind = kind
        self._arguments = arguments
        self._kwargs = kwargs or {}
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[Any] | None = None
        """The result of the frame that was sent last."""
        self._serving: set[asyncio.Task[None]] = set()

    async def starting(self) -> None:
        if self._kind.__module__ == "__main__":
            raise UsageError(
                f"{self._kind.__name__} is defined in the main program, which its process cannot import: move it"
                " into a module"
            )
        try:
            pickled = pickle.dumps((self._kind, self._arguments, self._kwargs, self.context.address))
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
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))
        try:
            await self._exchange((sys.path, pickled))
        except BaseException:
            await self.release()
            raise

    async def receive(self, message: Message) -> Any:
        try:
            done = await self._exchange((HANDLE, message.to_bytes()))
        except ActorProcessFailed as error:
            if isinstance(error.__cause__, Reject):
                # The actor rejected the message: that is not a failure.
                raise error.__cause__ from None
            raise
        if done["stop"]:
            self.context.stop()
        if done["stash"]:
            self.context.stash()
        return done["result"]

    async def failed(self, error: BaseException, message: Message | None) -> None:
        raised = error.__cause__ if isinstance(error, ActorProcessFailed) and error.__cause__ is not None else error
        await self._hook("failed", _picklable(raised), None if message is None else message.to_bytes())

    async def stopped(self) -> None:
        await self._hook("stopped", None, None)

    async def _hook(self, name: str, error: object, message: bytes | None) -> None:
        if self._writer is None or self._reading is None or self._reading.done():
            # The process is gone, and the actor with it: no hook can be called.
            return
        await self._exchange((HOOK, name, error, message))

    async def _exchange(self, frame: object) -> Any:
        """Send a frame, and wait for its result. Raises ActorProcessFailed if it failed, or if the process is gone."""
        assert self._writer is not None
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            if self._reading is None or self._reading.done():
                await self._ended()
            await self._write(frame)
            done = await self._waiting
        finally:
            self._waiting = None
        if done["error"] is not None:
            text, error_type, traceback, error = done["error"]
            failure = ActorProcessFailed(self.context.address, text, error_type, traceback)
            raise failure from (None if error is None else _revived(error, traceback))
        return done

    async def _write(self, frame: object) -> None:
        if self._writer is not None:
            try:
                self._writer.write(pack(frame))
                await self._writer.drain()
            except ConnectionError:
                # The reader will report the end of the process, with its exit code.
                return

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                kind, value = await read_frame(reader)
                if kind == CALL:
                    task = asyncio.get_running_loop().create_task(self._serve(*value))
                    self._serving.add(task)
                    task.add_done_callback(self._serving.discard)
                elif self._waiting is not None and not self._waiting.done():
                    self._waiting.set_result(value)
        except (ConnectionError, asyncio.IncompleteReadError):
            try:
                await self._ended()
            except ActorProcessFailed as error:
                if self._waiting is None:
                    # The process ended while it was idle: without this, the failure would be noticed only at the next
                    # message.
                    self._cell.fail(error)
                elif not self._waiting.done():
                    self._waiting.set_exception(error)

    @property
    def _cell(self) -> Cell:
        return self.context._cell  # type: ignore[return-value]  # always a Cell here

    async def _ended(self) -> None:
        code = None if self._process is None else await self._process.wait()
        raise ActorProcessFailed(self.context.address, f"its process ended with {code}")

    async def _serve(self, number: int, what: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Execute a call of the actor to its system, and send the result."""
        error: object = None
        value: object = None
        try:
            value = await CALLS[what](self._cell, *arguments, **options)
        except Exception as caught:
            error = _picklable(caught)
        await self._write((ANSWER, number, error, value))

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def release(self) -> None:
        """Close the connection of an ended incarnation, so that its process exits.

        It is killed if it does not exit in time."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # Nothing is left to send, and a process that does not read must not block this.
            writer.transport.abort()
        known = [*self._serving, *([] if self._reading is None else [self._reading])]
        tasks = [task for task in known if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        process, self._process = self._process, None
        if process is not None:
            await self._end(process)
        await asyncio.gather(*tasks, return_exceptions=True)
        if writer is not None:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        except asyncio.CancelledError:
            # Even if this is cancelled, it waits until the process is gone.
            process.kill()
            await process.wait()
            raise


# The calls that an actor in its own process can make to its system.


async def _publish(cell: Cell, topic: str, payload: object, **fields: Any) -> str:
    return await cell.system.bus.publish(topic, payload, **fields)


async def _send(cell: Cell, to: str, payload: object, **fields: Any) -> str:
    return await cell.system.bus.send(to, payload, **fields)


async def _request(cell: Cell, topic: str, payload: object, **options: Any) -> bytes:
    answer: Message = await cell.system.bus.request(topic, payload, reply=Message, **options)
    return answer.to_bytes()


async def _spawn(
    cell: Cell, kind: type[Actor], arguments: tuple[Any, ...], kwargs: Any, name: str | None, options: dict[str, Any]
) -> str:
    return (await cell.spawn_child(kind, arguments, kwargs, name, options)).address


async def _watch(cell: Cell, address: str) -> None:
    cell.watch(address)


async def _unwatch(cell: Cell, address: str) -> None:
    cell.unwatch(address)


async def _unstash(cell: Cell) -> None:
    cell.unstash()


CALLS: Final[dict[str, Callable[..., Awaitable[Any]]]] = {
    "publish": _publish,
    "send": _send,
    "request": _request,
    "spawn": _spawn,
    "watch": _watch,
    "unwatch": _unwatch,
    "unstash": _unstash,
}


def _picklable(error: BaseException) -> object:
    """The error as bytes, or as text if it cannot be pickled."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return describe(error)
    return data


def _revived(error: bytes, traceback: str) -> BaseException | None:
    try:
        revived = pickle.loads(error)
    except Exception as trouble:
        log.debug("an error of another process cannot be read here: %s", describe(trouble))
        return None
    if not isinstance(revived, BaseException):
        return None
    if traceback:
        revived.add_note(traceback)
    return revived
