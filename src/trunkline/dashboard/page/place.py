"""The address of the page.

As for a hub, an address that other machines can reach needs TLS, or both `insecure` and TRUNKLINE_INSECURE=1.
"""

from __future__ import annotations

import errno
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec

from trunkline.clock import World
from trunkline.dashboard.page.access import TOKEN
from trunkline.errors import MissingExtra
from trunkline.keys.store import KeyStore
from trunkline.transports.addresses import at
from trunkline.transports.binding import allowed_to_bind, is_every_address, is_loopback

DEFAULT_PORT: Final = 8420


def check_installed() -> None:
    """Raises MissingExtra if NiceGUI is not installed."""
    if find_spec("nicegui") is None:
        raise MissingExtra("page", "the page in a browser")


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int | None = None
    """None: 8420, or any free port if 8420 is in use."""
    token: str = ""
    """Empty: a token is generated."""
    keys: KeyStore | None = None
    """The key store with the certificate for TLS."""
    insecure: bool = False


class PagePlace:
    """A listening socket for browsers, and its address. Raises InvalidSettings if the address needs TLS."""

    def __init__(self, settings: PageSettings, world: World | None = None, *, fd: int | None = None) -> None:
        port = DEFAULT_PORT if settings.port is None else settings.port
        self._tls = settings.keys if settings.keys is not None and not is_loopback(settings.host) else None
        scheme = "https" if self._tls is not None else "http"
        allowed_to_bind(at(scheme, settings.host, port), self._tls, settings.insecure)
        if fd is None:
            self.socket = _listen(settings.host, port, exactly=settings.port is not None)
        else:
            self.socket = socket.socket(fileno=fd)
        self.port = int(self.socket.getsockname()[1])
        self.token = settings.token or (world or World()).secret()
        host = socket.gethostname() if is_every_address(settings.host) else settings.host
        self.address = at(scheme, host, self.port) + "/"
        """The address without the token."""

    @property
    def link(self) -> str:
        return f"{self.address}?{urlencode({TOKEN: self.token})}"

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """The files of the certificate and of its key, if the page is served with TLS."""
        if self._tls is None:
            return None
        self._tls.check_hub()
        return self._tls.path / "own.pem", self._tls.path / "own.key"


def _listen(host: str, port: int, *, exactly: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if exactly or error.errno != errno.EADDRINUSE:
            raise OSError(
                error.errno, f"{error.strerror}: choose another port with --port", at("http", host, port)
            ) from None
        return socket.create_server((host, 0), family=family, backlog=128)
