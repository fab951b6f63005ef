"""The register of keys: whom a hub has given keys, and whose are revoked. Who is not in it does not come in."""

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
    """Of the certificate, in hexadecimal digits."""
    curve: str
    """The public key, as ZeroMQ writes it."""
    made_at: int
    expires_at: int
    revoked_at: int | None = None
    hosts: tuple[str, ...] = ()
    """Under which a hub is reached."""

    def valid(self, now_s: float) -> bool:
        return self.revoked_at is None and now_s < self.expires_at


_decode = msgspec.json.Decoder(list[Key]).decode


class Register:
    """A small file, read again when it has changed: what is revoked is revoked for a hub that runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._keys: list[Key] = []

    def read(self) -> list[Key]:
        """Raises OSError if it cannot be read, InvalidSettings if it makes no sense: then nobody comes in."""
        found = self.path.stat()
        # It is always another file: a new one takes the place of the old.
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
        """Its keys, to be changed: written at the end of the block. One process at a time."""
        with alone(self.path.parent):
            keys = list(self.read()) if self.path.exists() else []
            yield keys
            files.write(self.path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
