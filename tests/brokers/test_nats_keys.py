"""Connecting to NATS with an nkey, or with the credentials of an account."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from trunkline.errors import InvalidSettings, NotAllowed

nkeys = pytest.importorskip("nkeys", reason="the extra nats installs it")

TIMEOUT_S = 60.0


class Signer:
    """A key pair: its seed, its public key, and what it signs."""

    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix=prefix)
        self.pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self.pair.public_key.decode()

    def token(self, kind: str, subject: str, **claims: Any) -> str:
        """A JWT in the format of NATS."""
        said = {
            "jti": base64.b32encode(os.urandom(20)).decode(),
            "iat": int(time.time()),
            "iss": self.public,
            "name": kind,
            "sub": subject,
            "nats": {"type": kind, "version": 2, **claims},
        }
        head = _text(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        text = f"{head}.{_text(json.dumps(said).encode())}"
        return f"{text}.{_text(self.pair.sign(text.encode()))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def speak(url: str) -> list[int]:
    async with (
        asyncio.timeout(2 * TIMEOUT_S),
        tl.connect(url) as bus,
        bus.subscribe("t") as messages,
    ):
        await bus.publish_many("t", [1, 2, 3])
        return [message.decode() for _ in range(3) if (message := await messages.recv()) is not None]


def test_an_nkey(tmp_path: Path) -> None:
    known, stranger = Signer(nkeys.PREFIX_BYTE_USER), Signer(nkeys.PREFIX_BYTE_USER)
    for name, signer in (("known", known), ("stranger", stranger)):
        (tmp_path / name).write_bytes(signer.seed + b"\n")
    users = f"authorization {{ users = [ {{ nkey: {known.public} }} ] }}"
    with NatsServer(tmp_path / "nats", jetstream=False, extra=users) as server:
        assert asyncio.run(speak(f"{server.url}?nkey={tmp_path}/known&connect_s=60")) == [1, 2, 3]
        with pytest.raises(NotAllowed, match=r"refuses this client.*nkey="):
            asyncio.run(speak(f"{server.url}?nkey={tmp_path}/stranger&connect_s=60"))
        with pytest.raises(InvalidSettings, match="names no file"):
            asyncio.run(speak(f"{server.url}?nkey={tmp_path}/nothing&connect_s=60"))


def test_the_credentials_of_an_account(tmp_path: Path) -> None:
    operator, account, user = (
        Signer(prefix) for prefix in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    )
    unlimited = dict.fromkeys(("subs", "data", "payload", "conn", "leaf", "imports", "exports"), -1)
    tokens = {
        "operator": operator.token("operator", operator.public),
        "account": operator.token("account", account.public, limits={**unlimited, "wildcards": True}),
        "user": account.token("user", user.public, subs=-1, data=-1, payload=-1, pub={}, sub={}),
    }
    lines = [
        "-----BEGIN NATS USER JWT-----",
        tokens["user"],
        "------END NATS USER JWT------",
        "-----BEGIN USER NKEY SEED-----",
        user.seed.decode(),
        "------END USER NKEY SEED------",
    ]
    (tmp_path / "user.creds").write_text("\n".join(lines) + "\n")
    known = f"operator: {tokens['operator']}\nresolver: MEMORY\n"
    known += f"resolver_preload: {{ {account.public}: {tokens['account']} }}\n"
    with NatsServer(tmp_path / "nats", jetstream=False, extra=known) as server:
        assert asyncio.run(speak(f"{server.url}?creds={tmp_path}/user.creds&connect_s=60")) == [1, 2, 3]
        with pytest.raises(NotAllowed):
            asyncio.run(speak(f"{server.url}?connect_s=60"))
