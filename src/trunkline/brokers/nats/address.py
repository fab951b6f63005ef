"""The address of NATS: the servers in a URL, and the credentials of the client."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trunkline.brokers.engine.settings import EngineUrl
from trunkline.errors import InvalidSettings, MissingExtra


def servers_of(address: str) -> list[str]:
    """The servers of `nats://user:password@a:4222,b:4222`."""
    parts = urlsplit(address)
    _, _, hosts = parts.netloc.rpartition("@")
    servers = [f"{parts.scheme}://{host}" for host in hosts.split(",") if host]
    return servers or [f"{parts.scheme}://localhost:4222"]


def key_files(options: Mapping[str, str]) -> dict[str, str]:
    """The files with the keys for nats-py to sign with. Raises InvalidSettings and MissingExtra."""
    found: dict[str, str] = {}
    for option, argument in (("creds", "user_credentials"), ("nkey", "nkeys_seed")):
        path = options.get(option)
        if path is None:
            continue
        try:
            import nkeys  # noqa: F401  # nats-py imports it when it connects
        except ModuleNotFoundError as error:
            raise MissingExtra("nats", f"?{option}=") from error
        if not Path(path).is_file():
            raise InvalidSettings(f"?{option}={path} names no file: write the path of the file with the key")
        found[argument] = path
    return found


def login_of(where: EngineUrl) -> dict[str, Any]:
    """The credentials for nats-py: the login in the address, which applies to all servers, or key files."""
    parts, options = urlsplit(where.address), where.options
    login, _, _ = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    found: dict[str, Any] = {}
    if login:
        found = {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    found |= key_files(options)
    if "token" in options:
        found["token"] = options["token"]
    if parts.scheme == "tls" or "tls_ca" in options:
        context = ssl.create_default_context(cafile=options.get("tls_ca"))
        if "tls_cert" in options:
            context.load_cert_chain(options["tls_cert"], options.get("tls_key"))
        found["tls"] = context
    return found
