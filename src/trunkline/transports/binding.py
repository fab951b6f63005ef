"""Without keys, a hub listens on this machine only, unless both a setting and the environment allow more."""

from __future__ import annotations

import ipaddress
import os
from typing import Final

from trunkline.errors import InvalidSettings
from trunkline.keys.store import KeyStore
from trunkline.transports.addresses import place_of

VARIABLE: Final = "TRUNKLINE_INSECURE"


def allowed_to_bind(url: str, keys: KeyStore | None, exposed: bool) -> None:
    """Raises InvalidSettings if other machines could connect without keys, unless setting and environment allow it.

    `exposed` is the setting: `--insecure`, `insecure = true`. The environment is TRUNKLINE_INSECURE=1.
    """
    host, _ = place_of(url)
    if keys is not None or is_loopback(host):
        return
    allowed = os.environ.get(VARIABLE) == "1"
    if exposed and allowed:
        return
    if exposed or allowed:
        missing = f"set {VARIABLE}=1 as well" if exposed else "pass --insecure (or insecure=True) as well"
        raise InvalidSettings(f"{url}: without keys, everybody on the network can use it. If you want that, {missing}")
    name = "HOST" if is_every_address(host) else host
    raise InvalidSettings(
        f"{url}: without keys a hub listens on this machine only, at 127.0.0.1: "
        f'make some with "trunkline keys make hub {name}" and name their directory with --keys, or TRUNKLINE_KEYS'
    )


def is_every_address(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
