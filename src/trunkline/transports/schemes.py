"""The table of URL schemes and their transports, and a function to add one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trunkline.errors import MissingExtra, UnknownScheme
from trunkline.keys.store import KeyStore, keys_in_use
from trunkline.transports.addresses import meant
from trunkline.transports.transport import Transport

Make = Callable[[KeyStore | None, bool], Transport]
"""Creates a transport from the keys, if any, and whether it may serve other machines without keys."""


def _pair(keys: KeyStore | None, exposed: bool) -> Transport:
    from trunkline.transports.pair import PairTransport

    return PairTransport()


def _unix(keys: KeyStore | None, exposed: bool) -> Transport:
    from trunkline.transports.sockets import UnixTransport

    return UnixTransport()


def _tcp(keys: KeyStore | None, exposed: bool) -> Transport:
    from trunkline.transports.sockets import TcpTransport

    return TcpTransport(keys, exposed=exposed)


@contextmanager
def _zmq_needed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra("hub", "the ZeroMQ transport") from error


def _zmq_ipc(keys: KeyStore | None, exposed: bool) -> Transport:
    with _zmq_needed():
        from trunkline.transports.zmq.transport import ZmqIpcTransport

    return ZmqIpcTransport()


def _zmq_tcp(keys: KeyStore | None, exposed: bool) -> Transport:
    with _zmq_needed():
        from trunkline.transports.zmq.transport import ZmqTcpTransport

    return ZmqTcpTransport(keys, exposed=exposed)


TRANSPORTS: dict[str, Make] = {"pair": _pair, "unix": _unix, "tcp": _tcp, "zmq+ipc": _zmq_ipc, "zmq+tcp": _zmq_tcp}


def register(scheme: str, transport: Transport) -> None:
    """Use this transport for `scheme:…`."""
    TRANSPORTS[scheme] = lambda keys, exposed: transport


def scheme_of(url: str) -> str:
    return url.partition(":")[0]


def transport_for(url: str, keys: str | Path | None = None, *, insecure: bool = False) -> Transport:
    """Raises UnknownScheme, and MissingExtra if an optional part is not installed.

    `keys` is a directory of keys, by default what TRUNKLINE_KEYS names. `insecure` is one of the two permissions to
    serve other machines without keys: see binding.py.
    """
    make = TRANSPORTS.get(scheme_of(url)) if ":" in url else None
    if make is None:
        raise UnknownScheme(url, [f"{scheme}:" for scheme in TRANSPORTS], meant(url))
    return make(keys_in_use(keys), insecure)
