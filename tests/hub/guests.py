"""Clients with their own identities at one hub: over TLS, each with a certificate, sending arbitrary frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hub.test_admission import Raw, hello
from trunkline import Message, columns
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker
from trunkline.keys.store import KeyStore
from trunkline.transports.schemes import transport_for
from trunkline.wire import control, frames
from trunkline.wire.frames import PublishHead

NAMES = ("nobody", "data", "owner", "elsewhere", "admin")
RULES: list[dict[str, Any]] = [
    {"who": "cert:data", "may": ["publish", "subscribe"], "on": ["data.>"]},
    {
        "who": "cert:owner",
        "may": ["publish", "subscribe", "create"],
        "on": ["orders.>", "orders", "_to.owner"],
    },
    {"who": "cert:elsewhere", "may": ["publish", "subscribe", "create", "administer"], "on": ["other.>"]},
    {"who": "cert:admin", "may": ["administer"]},
]


def make_keys(folder: Path) -> Path:
    """Keys of a hub and of every client in NAMES."""
    keys = KeyStore(folder / "keys")
    keys.make_hub()
    for name in NAMES:
        keys.make_client(name)
    return folder / "keys"


class Guest(Raw):
    """One of them, at a hub. Answers are matched by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 1000

    @classmethod
    async def come(cls, hub: Hub, keys: Path, name: str, **fields: Any) -> Guest:
        guest = await cls.connect(hub, keys, name)
        await guest.greet(**{"name": name, **fields})
        return guest

    @classmethod
    async def connect(cls, hub: Hub, keys: Path, name: str) -> Guest:
        guest = cls()
        bundle = str(KeyStore(keys).bundle(name))
        guest.wire = await transport_for(hub.addresses[0], bundle).connect(
            hub.addresses[0], lambda wire: guest, max_frame_bytes=2**20
        )
        return guest

    async def ask(self, kind: type[control.Control], **fields: Any) -> control.Control:
        """The answer of the hub."""
        self.asked += 1
        self.say(kind(**{"id": self.asked, **fields}))
        return await self.answer(self.asked)

    async def answer(self, number: int) -> control.Control:
        async with asyncio.timeout(60):
            while True:
                told = await self.heard.get()
                if getattr(told, "re", 0) == number:
                    return told

    async def tell(self, *said: control.Control) -> list[control.Error]:
        """Send a message that has no answer. Returns the errors that follow."""
        self.asked += 1
        self.say(*said, control.Heartbeat(id=self.asked))
        errors: list[control.Error] = []
        async with asyncio.timeout(60):
            while True:
                told = await self.heard.get()
                if isinstance(told, control.Beat) and told.re == self.asked:
                    return errors
                if isinstance(told, control.Error):
                    errors.append(told)

    async def publish(self, topic: str, number: int, *payloads: bytes, position: int = 0) -> control.Taken:
        """Publish a batch. Returns the confirmation of the hub."""
        self.send(batch_on(topic, number, payloads, position))
        return await self.hear(control.Taken)

    async def subscribe(self, number: int, pattern: str, **fields: Any) -> control.Control:
        wanted = {
            "subscription": number,
            "pattern": pattern,
            "name": f"s{number}",
            "credit": -1,
            "reports": True,
            **fields,
        }
        return await self.ask(control.Subscribe, **wanted)


def batch_on(topic: str, number: int, payloads: Sequence[bytes], position: int = 0) -> bytes:
    messages = [
        Message(id=f"{topic}-{number}-{index}", topic=topic, payload=payload) for index, payload in enumerate(payloads)
    ]
    head = PublishHead(number, topic, len(messages), position=position, urgent=True)
    return frames.publish(head, columns.encode(messages, [0] * len(messages)))


@asynccontextmanager
async def hub_of(folder: Path, keys: Path, rules: Sequence[object] = RULES) -> AsyncIterator[Hub]:
    """Over TLS, with a journal that keeps everything."""
    broker = JournalBroker(Journal(folder / "journal"), owns_journal=True)
    async with Hub(broker, access=Access.load(rules)) as hub:
        await hub.listen("tcp://127.0.0.1:0", str(keys))
        yield hub
        assert hub.counts["internal_errors"] == 0


__all__ = ["NAMES", "RULES", "Guest", "batch_on", "hello", "hub_of", "make_keys"]
