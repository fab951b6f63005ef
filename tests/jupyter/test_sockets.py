"""The sockets of a kernel connect one by one: what depends on one of them waits for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import zmq

from tests.hub.hubs import until
from tests.ports import free_port
from trunkline.clock import World
from trunkline.jupyter.message_types import SHELL, SOCKETS, STDIN
from trunkline.jupyter.sockets import KernelConnection, SocketLink
from trunkline.jupyter.wire import Fault, Header, KernelMessage


class Heard:
    def __init__(self) -> None:
        self.messages: list[KernelMessage] = []

    def take(self, messages: list[KernelMessage]) -> None:
        self.messages += messages

    def count_fault(self, fault: Fault, why: str) -> None:
        raise AssertionError(why)

    def lost(self, how: str) -> None:
        raise AssertionError(how)


def made(link: SocketLink, socket: str, **content: Any) -> KernelMessage:
    return link.wire.compose(socket, Header(msg_id=str(content), msg_type="any", session="me"), content)


def test_a_kernel_that_may_ask_for_input_can_ask_at_once() -> None:
    """Its socket for that listens later than the others: only requests that need it wait."""

    async def run(context: zmq.Context[Any]) -> None:
        ports = dict(zip((*SOCKETS, "hb"), (free_port() for _ in range(5)), strict=True))
        connection = KernelConnection.of({"key": "k"} | {f"{name}_port": port for name, port in ports.items()})
        with context.socket(zmq.ROUTER) as shell, context.socket(zmq.ROUTER) as stdin:
            shell.bind(connection.url(SHELL))
            link = SocketLink("k1", connection, "me", World())
            heard = Heard()
            await link.open(heard)

            async def came() -> dict[str, Any]:
                await until(lambda: bool(shell.poll(0)), "it has come")
                content: dict[str, Any] = json.loads(shell.recv_multipart()[-1])
                return content

            await link.send(made(link, SHELL, code="1", allow_stdin=False))
            assert (await came())["code"] == "1"
            asking = asyncio.ensure_future(link.send(made(link, SHELL, code="2", allow_stdin=True)))
            await asyncio.sleep(0.2)
            assert not shell.poll(0)
            stdin.bind(connection.url(STDIN))
            assert (await came())["code"] == "2"
            await asking
            # It does not answer unknown clients, and that is logged only if necessary.
            stdin.setsockopt(zmq.ROUTER_MANDATORY, 1)
            asked = link.wire.pack(made(link, STDIN, prompt="?"))
            stdin.send_multipart([b"me", *asked])
            await until(lambda: bool(heard.messages), "it was heard")
            assert heard.messages[0].content == {"prompt": "?"}
            await link.aclose()

    with zmq.Context() as context:
        asyncio.run(run(context))
