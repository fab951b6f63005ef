"""Which scheme is carried by which transport: one table, and a way to add to it."""

from __future__ import annotations

from collections.abc import Callable

from trunkline.errors import UnknownScheme
from trunkline.transports.transport import Transport


def _pair() -> Transport:
    from trunkline.transports.pair import PairTransport

    return PairTransport()


def _unix() -> Transport:
    from trunkline.transports.sockets import UnixTransport

    return UnixTransport()


def _tcp() -> Transport:
    from trunkline.transports.sockets import TcpTransport

    return TcpTransport()


TRANSPORTS: dict[str, Callable[[], Transport]] = {"pair": _pair, "unix": _unix, "tcp": _tcp}


def scheme_of(url: str) -> str:
    return url.partition(":")[0]


def transport_for(url: str) -> Transport:
    """Raises UnknownScheme."""
    make = TRANSPORTS.get(scheme_of(url)) if ":" in url else None
    if make is None:
        raise UnknownScheme(url, [f"{scheme}:" for scheme in TRANSPORTS])
    return make()
