"""The register of keys: which keys a hub has issued, and which are revoked. Clients without an entry are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.folders import alone
from trunkline.keys import files

HUB = "hub"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and a CURVE key pair that were made together. Times are seconds since 1970."""

    name: str
    serial: str
    """The serial number of the certificate, in hexadecimal digits."""
    curve: str
    """The public key, in the text form of ZeroMQ."""
    made_at: int
    expires_at: int
    revoked_at: int | None = None
    hosts: tuple[str, ...] = ()
    """The host names and addresses of a hub."""

    def valid(self, now_s: float) -> bool:
        return self.revoked_at is None and now_s < self.expires_at


_decode = msgspec.json.Decoder(list[Key]).decode


class Register:
    """A small file that is read again when it changes, so a revocation takes effect at a running hub."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._keys: list[Key] = []

    def read(self) -> list[Key]:
        """Raises OSError if it cannot be read, InvalidSettings if it is damaged.

        In both cases all clients are refused.
        """
        found = self.path.stat()
        # Each change replaces the file, so its identity changes.
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self._stamp:
            try:
                self._keys = _decode(self.path.read_bytes())
            except msgspec.DecodeError as error:
                self._stamp = None
                raise InvalidSettings(f"the register of keys {self.path} is damaged: {error}") from error
            self._stamp = stamp
        return self._keys

    @contextlib.contextmanager
    def changing(self) -> Iterator[list[Key]]:
        """The keys, for changes that are written at the end of the block. Only one process at a time can do this."""
        with alone(self.path.parent):
            keys = list(self.read()) if self.path.exists() else []
            yield keys
            files.write(self.path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
