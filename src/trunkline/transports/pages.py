"""The address of a hub's page, for processes of the same user: a file in the runtime directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trunkline.errors import InvalidSettings
from trunkline.transports.runtime import runtime_directory


class PageNotice(msgspec.Struct, frozen=True):
    address: str
    """The address without the token, because the output of a notebook may be saved and shared."""
    pid: int


def _path(hub: str) -> Path:
    return runtime_directory() / f"page-{hashlib.blake2b(hub.encode(), digest_size=8).hexdigest()}.json"


@contextlib.contextmanager
def announced(hub: str, address: str) -> Iterator[None]:
    """Announces the page of this hub inside the block."""
    path = _path(hub)
    notice = msgspec.json.encode(PageNotice(address, os.getpid()))
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(notice)
    part.replace(path)
    try:
        yield
    finally:
        # Another page may have replaced the file.
        with contextlib.suppress(FileNotFoundError):
            if path.read_bytes() == notice:
                path.unlink()


def page_address(hub: str) -> str:
    """The address of the page of this hub; empty if none runs here."""
    try:
        notice = msgspec.json.decode(_path(hub).read_bytes(), type=PageNotice)
        os.kill(notice.pid, 0)
    except (OSError, InvalidSettings, msgspec.DecodeError):
        return ""
    return notice.address
