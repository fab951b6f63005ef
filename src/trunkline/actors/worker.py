"""The other end of an actor in a process of its own: `python -m trunkline.actors.worker FD`. Started by process.py."""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import sys
import traceback
from typing import Any

import msgspec

from trunkline.actors.actor import Actor, plan_of
from trunkline.actors.process import LENGTH, pack
from trunkline.actors.ref import PLAIN, Ref
from trunkline.delivery.dead_letters import describe
from trunkline.errors import InvalidPayload, Unsupported
from trunkline.message import Message


class ProcessContext:
    """What an actor can do from its own process: what it sends leaves when the message is handled."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.message: Message | None = None
        self.sent: list[tuple[str, str, object, dict[str, Any]]] = []
        self.stopping = False

    async def send(self, to: str | Ref, payload: object = b"", **fields: Any) -> None:
        self.sent.append(("send", to.address if isinstance(to, Ref) else to, *_named(payload, fields)))

    async def publish(self, topic: str, payload: object = b"", **fields: Any) -> None:
        self.sent.append(("publish", topic, *_named(payload, fields)))

    def stop(self) -> None:
        self.stopping = True

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"an actor in a process of its own ({self.address})", f"context.{name}")


def _named(payload: object, fields: dict[str, Any]) -> tuple[object, dict[str, Any]]:
    """Values of types that the other side may not have go as plain ones; the name of their type goes with them."""
    if payload.__class__ in PLAIN:
        return payload, fields
    return msgspec.to_builtins(payload), {"schema": payload.__class__.__name__, **fields}


class Worker:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._actor: Actor | None = None
        self._context: ProcessContext | None = None

    async def run(self) -> None:
        """One frame after the other, until there is none."""
        first = self._read()
        if first is None:
            return
        path, rest = pickle.loads(first)
        # Before anything of theirs is looked for.
        sys.path[:] = path
        kind, arguments, address = pickle.loads(rest)
        await self._answer(self._begin(kind, arguments, address))
        while (frame := self._read()) is not None:
            await self._answer(self._handle(Message.from_bytes(pickle.loads(frame))))
        if self._actor is not None:
            await self._actor.stopped()

    async def _begin(self, kind: type[Actor], arguments: tuple[Any, ...], address: str) -> None:
        actor = kind(*arguments)
        context = ProcessContext(address)
        actor.context = context  # type: ignore[assignment]  # as much of one as there can be here
        await actor.starting()
        self._actor, self._context = actor, context

    async def _handle(self, message: Message) -> Any:
        assert self._actor is not None
        assert self._context is not None
        plan = plan_of(type(self._actor))
        handler = plan.choose(message)
        if handler is None:
            raise InvalidPayload(f"{plan.name} has no handler for {message.schema or 'plain values'}")
        self._context.message = message
        result = handler.function(
            self._actor, message if handler.wants_message else message.decode(handler.wants_payload)
        )
        return result if handler.in_thread else await result

    async def _answer(self, work: Any) -> None:
        done: dict[str, Any] = {"error": None, "result": None, "sent": [], "stop": False}
        try:
            result = await work
            done["result"] = _named(result, {})[0]
        except Exception as error:
            done["error"] = (describe(error), traceback.format_exc())
        if self._context is not None:
            done["sent"], self._context.sent = self._context.sent, []
            done["stop"] = self._context.stopping
        self._channel.sendall(pack(done))

    def _read(self) -> bytes | None:
        head = self._read_exactly(LENGTH.size)
        return None if head is None else self._read_exactly(LENGTH.unpack(head)[0])

    def _read_exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            some = self._channel.recv(min(size - len(parts), 1 << 20))
            if not some:
                return None
            parts += some
        return bytes(parts)


def main() -> None:
    # Ctrl-C is for the process that started this one: it says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        asyncio.run(Worker(channel).run())


if __name__ == "__main__":
    main()
