"""CURVE key pairs in files, in the format of ZeroMQ's own tools."""

from __future__ import annotations

import errno
from pathlib import Path

from trunkline.errors import MissingExtra
from trunkline.keys import files

try:
    import zmq
    from zmq.auth.certs import load_certificate
    from zmq.utils import z85
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("hub", "CURVE keys for ZeroMQ") from error


def make(path: Path, public_path: Path | None = None) -> None:
    """Write a new pair to `path`, and its public key also to `public_path`."""
    public, secret = (each.decode() for each in zmq.curve_keypair())
    text = f'metadata\ncurve\n    public-key = "{public}"\n'
    files.write(path, f'{text}    secret-key = "{secret}"\n'.encode())
    if public_path is not None:
        files.write(public_path, text.encode(), 0o644)


def pair(path: Path) -> tuple[bytes, bytes]:
    """The public and the secret key. Raises OSError."""
    public, secret = _load(files.private(path))
    if secret is None:
        raise OSError(errno.EINVAL, "holds no secret key", str(path))
    return public, secret


def public(path: Path) -> bytes:
    """The public key. Raises OSError."""
    return _load(path)[0]


def text_of(key: bytes) -> str:
    """The text form of a public key that has 32 bytes on the wire."""
    return z85.encode(key).decode()


def _load(path: Path) -> tuple[bytes, bytes | None]:
    try:
        return load_certificate(path)
    except ValueError as error:
        raise OSError(errno.EINVAL, "holds no CURVE key", str(path)) from error
