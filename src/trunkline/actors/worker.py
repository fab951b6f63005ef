"""The worker process of an actor with `process=True`: `python -m trunkline.actors.worker FD`. Started by process.py."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from trunkline.actors.actor import PLAIN, Actor, Plan, plan_of, schema_of
from trunkline.actors.context import Context
from trunkline.actors.errors import ActorError
from trunkline.actors.process import ANSWER, CALL, DONE, HANDLE, HOOK, UnreadableThere, pack, read_frame
from trunkline.actors.ref import Ref
from trunkline.actors.timers import Timer
from trunkline.bus.handler_threads import HandlerThreads
from trunkline.delivery.dead_letters import describe, traceback_of
from trunkline.errors import BusClosed, EncodeError, PayloadError, RequestTimeout
from trunkline.message import Message


class ProcessWay:
    """Sends messages from the process of an actor. They are sent by the process that started it."""

    def __init__(self, write: Callable[[object], None]) -> None:
        self._write = write
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = 0

    async def call(self, what: str, *arguments: Any, **options: Any) -> Any:
        self._numbers += 1
        number = self._numbers
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._write((CALL, (number, what, arguments, options)))
            return await answer
        finally:
            del self._calls[number]

    def answered(self, number: int, error: object, value: object) -> None:
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(_error(error))

    async def publish(self, topic: str, payload: object = b"", **fields: Any) -> str:
        payload, fields = named(payload, fields)
        return str(await self.call("publish", topic, payload, **fields))

    async def send(self, to: str, payload: object = b"", **fields: Any) -> str:
        payload, fields = named(payload, fields)
        return str(await self.call("send", to, payload, **fields))

    async def request(self, topic: str = "", payload: object = b"", *, reply: Any = Any, **options: Any) -> Any:
        payload, options = named(payload, options)
        answer = Message.from_bytes(await self.call("request", topic, payload, **options))
        return answer if reply is Message else answer.decode(reply)

    async def try_request(self, topic: str = "", payload: object = b"", **options: Any) -> Any:
        try:
            return await self.request(topic, payload, **options)
        except (RequestTimeout, BusClosed):
            return None


def named(payload: object, fields: dict[str, Any]) -> tuple[object, dict[str, Any]]:
    """Convert a value whose type the other process may not have to a plain one, and add the name of its type."""
    if payload.__class__ in PLAIN:
        return payload, fields
    try:
        plain = msgspec.to_builtins(payload, builtin_types=(bytes,))
    except TypeError:
        # An array, for instance: it is pickled.
        plain = payload
    return plain, {"schema": schema_of(payload.__class__), **fields}


def _error(error: object) -> BaseException:
    if isinstance(error, bytes):
        revived = pickle.loads(error)
        if isinstance(revived, BaseException):
            return revived
    return ActorError(str(error))


class ProcessCell:
    """The cell of an actor in its own process, as far as its context needs it."""

    def __init__(self, address: str, kind: type[Actor], way: ProcessWay) -> None:
        self.way = way
        self.ref = Ref(way, address)
        self.plan: Plan = plan_of(kind)
        self.last_at: float | None = None
        self.loop = asyncio.get_running_loop()
        self.stopping = False
        self.stashing = False
        self.handling = 0
        self._born_plan = self.plan
        self._tasks: set[asyncio.Future[Any]] = set()

    @property
    def busy(self) -> bool:
        return bool(self.handling)

    async def spawn_child(
        self,
        kind: type[Actor],
        arguments: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        name: str | None,
        options: dict[str, Any],
    ) -> Ref:
        return Ref(self.way, await self.way.call("spawn", kind, arguments, kwargs, name, options))

    def watch(self, address: str) -> None:
        self._start(self.way.call("watch", address))

    def unwatch(self, address: str) -> None:
        self._start(self.way.call("unwatch", address))

    def stop_soon(self) -> None:
        self.stopping = True

    def stash(self) -> None:
        self.stashing = True

    def unstash(self) -> None:
        self._start(self.way.call("unstash"))

    def become(self, methods: tuple[Callable[..., Any], ...]) -> None:
        self.plan = self._born_plan.becoming(methods) if methods else self._born_plan

    def send_timed(self, payload: object, timer: Timer | None) -> None:
        self._start(self.ref.tell(payload, sender=self.ref.address))

    def _start(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Worker:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._way = ProcessWay(self._write)
        self._actor: Actor | None = None
        self._cell: ProcessCell | None = None
        self._task: asyncio.Task[None] | None = None
        # A running handler does not keep this process alive when the process that started it has ended.
        self._threads = HandlerThreads("actor")

    def _write(self, frame: object) -> None:
        self._writer.write(pack(frame))

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Process one frame after the other, until the connection is closed."""
        path, rest = await read_frame(reader)
        # Set before any module of the program is imported.
        sys.path[:] = path
        self._start(self._begin(*pickle.loads(rest)))
        while True:
            try:
                kind, *values = await read_frame(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                return
            if kind == ANSWER:
                self._way.answered(*values)
            elif kind == HANDLE:
                self._start(self._handle(Message.from_bytes(*values)))
            elif kind == HOOK:
                self._start(self._hook(*values))

    def _start(self, work: Awaitable[Any]) -> None:
        # One task at a time: the other process waits for its result. Reading continues meanwhile.
        self._task = asyncio.get_running_loop().create_task(self._answer(work))

    async def _begin(self, kind: type[Actor], arguments: tuple[Any, ...], kwargs: dict[str, Any], address: str) -> None:
        actor = kind(*arguments, **kwargs)
        self._cell = ProcessCell(address, kind, self._way)
        actor.context = Context(self._cell)
        await actor.starting()
        self._actor = actor

    async def _handle(self, message: Message) -> Any:
        actor, cell = self._actor, self._cell
        assert actor is not None
        assert cell is not None
        handler = cell.plan.choose(message)
        if handler is None:
            raise UnreadableThere(cell.plan.missing(message))
        actor.context.message = message
        try:
            argument = message if handler.wants_message else message.decode(handler.wants_payload)
        except PayloadError as error:
            raise UnreadableThere(str(error)) from error
        cell.handling += 1
        try:
            if handler.in_thread:
                run = contextvars.copy_context().run
                result = await cell.loop.run_in_executor(self._threads, run, handler.function, actor, argument)
            else:
                result = await handler.function(actor, argument)
        finally:
            cell.handling -= 1
            if cell.last_at is not None:
                cell.last_at = cell.loop.time()
        return result

    async def _hook(self, name: str, error: object, message: bytes | None) -> None:
        actor = self._actor
        if actor is None:
            return
        actor.context.end()
        if name == "failed":
            await actor.failed(_error(error), None if message is None else Message.from_bytes(message))
        else:
            await actor.stopped()

    async def _answer(self, work: Awaitable[Any]) -> None:
        done: dict[str, Any] = {"error": None, "result": None, "stop": False, "stash": False}
        try:
            done["result"] = named(await work, {})[0]
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            done["error"] = _described(error)
        if self._cell is not None:
            done["stop"] = self._cell.stopping
            done["stash"], self._cell.stashing = self._cell.stashing, False
        try:
            frame = pack((DONE, done))
        except Exception as error:
            what = type(done["result"]).__name__
            refused = EncodeError(f"cannot send a {what} from the process of an actor: {error}")
            frame = pack((DONE, {**done, "error": _described(refused), "result": None}))
        self._writer.write(frame)


def _described(error: BaseException) -> tuple[str, str, str, bytes | None]:
    """An error in the form that is sent to the other process."""
    return describe(error), type(error).__name__, traceback_of(error), _pickled(error)


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


async def work(channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    await Worker(writer).run(reader)
    writer.close()


def main() -> None:
    # Ctrl-C is handled by the process that started this one, which also ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(work(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
