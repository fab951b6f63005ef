"""The keys of a hub and of its clients: a directory of mode 0700, found by `TRUNKLINE_KEYS`.

    authority.pem  the certificate of the authority  authority.key  its private key, which signs; stays with the hub
    own.pem        a certificate, for TLS            own.key        its private key
    own.curve      a CURVE key pair, for ZeroMQ      hub.curve      the hub's public CURVE key
    register.json  the issued keys, and which of them are revoked; only at the hub
    clients/NAME   the files of a client; this directory is copied to its machine

A client on the hub's machine can use the hub's directory, too, under the name `hub`.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from trunkline.clock import World
from trunkline.errors import DuplicateName, InvalidSettings
from trunkline.folders import check_folder, make_folder
from trunkline.keys import files
from trunkline.keys.register import HUB, Key, Register

VARIABLE: Final = "TRUNKLINE_KEYS"
DAYS: Final = 825
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""The names of a hub on its own machine. Its certificate always includes them."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")


def default_path() -> Path:
    """The default directory of keys for the command line."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path("~/.config/trunkline/keys").expanduser()


def keys_in_use(path: str | Path | None) -> KeyStore | None:
    """The keys that a setting or TRUNKLINE_KEYS names; None if neither does."""
    named = path or os.environ.get(VARIABLE)
    return KeyStore(named) if named else None


class KeyStore:
    """A directory of keys. Reading raises OSError with the next step. Only the register is kept in memory."""

    def __init__(self, path: str | Path | None = None, *, world: World | None = None) -> None:
        self.path = default_path() if path is None else Path(path).expanduser()
        self._world = world or World()
        self._register = Register(self.path / "register.json")

    def bundle(self, name: str) -> Path:
        """The directory that is copied to a client's machine."""
        return self.path / "clients" / name

    # Making

    def make_hub(self, hosts: Sequence[str] = (), days: int = DAYS) -> Key:
        """Keys for a hub with these names and addresses.

        A second call makes a new certificate. The authority, the CURVE key and the keys of all clients stay valid.
        """
        from trunkline.keys import certificates

        make_folder(self.path)
        with self._register.changing() as keys:
            if not (self.path / "authority.key").exists():
                now = certificates.moment(self._now_s())
                certificates.make_authority(self.path / "authority.pem", self.path / "authority.key", now)
            key = self._make(self.path, HUB, tuple(dict.fromkeys((*HOSTS, *hosts))), days)
            keys[:] = [each for each in keys if each.name != HUB] + [key]
        return key

    def make_client(self, name: str, days: int = DAYS) -> Key:
        """Keys for a client, in `bundle(name)`. Raises DuplicateName if it already has valid keys."""
        if not _NAME.fullmatch(name) or name == HUB:
            raise InvalidSettings(
                f"{name!r} cannot be the name of a client: use letters, digits and _.@-; {HUB!r} is reserved"
            )
        self.check_hub()
        with self._register.changing() as keys:
            if any(each.name == name and each.valid(self._now_s()) for each in keys):
                error = DuplicateName("client with keys", name)
                error.add_note(f"next step, if they are lost or no longer needed: trunkline keys revoke {name}")
                raise error
            folder = self.bundle(name)
            make_folder(folder.parent)
            make_folder(folder)
            # The old pair, if there is one, is expired or revoked.
            (folder / "own.curve").unlink(missing_ok=True)
            key = self._make(folder, name, (), days)
            for file in ("authority.pem", "hub.curve"):
                files.write(folder / file, (self.path / file).read_bytes(), 0o644)
            keys.append(key)
        return key

    def _make(self, folder: Path, name: str, hosts: tuple[str, ...], days: int) -> Key:
        from trunkline.keys import certificates, curve

        now_s = self._now_s()
        now = certificates.moment(now_s)
        certificate, private, serial = certificates.sign(self.path / "authority.key", name, hosts, now, days)
        files.write(folder / "own.key", private)
        files.write(folder / "own.pem", certificate, 0o644)
        if not (folder / "own.curve").exists():
            curve.make(folder / "own.curve", folder / "hub.curve" if name == HUB else None)
        public, _ = curve.pair(folder / "own.curve")
        return Key(
            name=name,
            serial=f"{serial:X}",
            curve=public.decode(),
            made_at=int(now_s),
            expires_at=int(now_s) + days * 86_400,
            hosts=hosts,
        )

    # Issued keys

    def list(self) -> builtins.list[Key]:
        """All issued keys, the oldest first."""
        self.check_hub()
        return builtins.list(self._register.read())

    def revoke(self, name: str) -> builtins.list[Key]:
        """Revoke the keys of a client.

        A hub that uses this directory refuses them at once. Returns the revoked keys.
        """
        if name == HUB:
            raise InvalidSettings('the hub\'s own keys cannot be revoked: replace them with "trunkline keys make hub"')
        self.check_hub()
        revoked = []
        with self._register.changing() as keys:
            for at, key in enumerate(keys):
                if key.name == name and key.revoked_at is None:
                    keys[at] = replace(key, revoked_at=int(self._now_s()))
                    revoked.append(keys[at])
        return revoked

    def name_of_certificate(self, serial: str) -> str | None:
        """The owner of a certificate; None if it is unknown or revoked."""
        return self._name(lambda key: int(key.serial, 16) == int(serial, 16))

    def name_of_curve_key(self, public: bytes) -> str | None:
        """The same for a CURVE key in its wire form of 32 bytes."""
        from trunkline.keys import curve

        text = curve.text_of(public)
        return self._name(lambda key: key.curve == text)

    def _name(self, is_it: Callable[[Key], bool]) -> str | None:
        now_s = self._now_s()
        return next((key.name for key in self._register.read() if is_it(key) and key.valid(now_s)), None)

    # Using

    def server_context(self) -> ssl.SSLContext:
        """TLS for a hub: the handshake fails without a certificate of this authority."""
        self.check_hub()
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """TLS for a client: the hub must have a certificate of the same authority for the host name that is used."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self._file("authority.pem"))
        context.load_cert_chain(self._file("own.pem"), files.private(self._file("own.key")))
        return context

    def curve_pair(self) -> tuple[bytes, bytes]:
        """The public and the secret CURVE key of this directory."""
        from trunkline.keys import curve

        return curve.pair(self._file("own.curve"))

    def hub_curve_key(self) -> bytes:
        from trunkline.keys import curve

        return curve.public(self._file("hub.curve"))

    def check_hub(self) -> None:
        """Raises OSError if these are not the keys of a hub, or if other users can write to the directory."""
        if not self._register.path.exists():
            raise FileNotFoundError(
                errno.ENOENT, 'there are no keys of a hub: create them with "trunkline keys make hub"', str(self.path)
            )
        check_folder(self.path)

    def _file(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            raise FileNotFoundError(
                errno.ENOENT,
                "there are no keys: copy the directory that `trunkline keys make client NAME` created",
                str(path),
            )
        return path

    def _now_s(self) -> float:
        return self._world.time_ns() / 1e9
