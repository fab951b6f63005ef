"""Addresses: parsing of URLs, and sockets that listen there."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from trunkline.errors import InvalidSettings
from trunkline.folders import alone

DEFAULT_PORT = 7420
QUEUE = 1024
"""The number of connections that may wait to be accepted."""
MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""The system's limit for the path of a socket file."""


def path_of(url: str) -> Path:
    path = url.partition(":")[2].removeprefix("//")
    if not path:
        raise InvalidSettings(f"{url} names no socket file: write it as unix:///run/x.sock")
    found = Path(path).expanduser()
    if (size := len(os.fsencode(found))) > MAX_PATH_BYTES:
        raise InvalidSettings(
            f"{found} is too long for a socket: at most {MAX_PATH_BYTES} bytes, this has {size}: choose a shorter one"
        )
    return found


def place_of(url: str) -> tuple[str, int]:
    """Host and port of a URL. The host `*` means every address of this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError as error:
        text = f"{url} is not a valid address: write it as {url.partition(':')[0]}://127.0.0.1:{DEFAULT_PORT}"
        raise InvalidSettings(text) from error
    return "0.0.0.0" if host == "*" else host, DEFAULT_PORT if port is None else port


def meant(url: str) -> str:
    """The URL that a path or `host:port` probably stands for; empty if the text is neither."""
    if url.startswith(("/", "./", "~")):
        return f"unix://{Path(url).expanduser().absolute()}"
    host, _, port = url.rpartition(":")
    return f"tcp://{url}" if host and port.isdigit() and "/" not in host else ""


def at(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def in_use(url: str, error: OSError) -> OSError:
    """The error of a failed `listen`: if the address is in use, with the next step."""
    if error.errno != errno.EADDRINUSE:
        return error
    if url.startswith(("unix:", "zmq+ipc:")):
        text = f'a hub is already running at {url}: use it with connect("{url}"), or pass another place with --listen'
    else:
        text = f"another program is already listening at {url}: stop it, or pass another port with --listen"
    return OSError(errno.EADDRINUSE, text)


class SocketFile:
    """A socket that listens at a path, with mode 0600. Raises OSError if another process listens there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            # Two hubs that find the same stale file must not remove each other's.
            with alone(path.parent):
                _clear(path)
                # Created with its final mode: others might connect before a later change.
                mask = os.umask(0o177)
                try:
                    self.socket.bind(str(path))
                finally:
                    os.umask(mask)
                self.socket.listen(QUEUE)
                self._stamp = _stamp(path)
        except BaseException:
            self.socket.close()
            raise

    def remove(self) -> None:
        """Remove the file, unless it belongs to another hub that listens there now."""
        with contextlib.suppress(OSError):
            if _stamp(self.path) == self._stamp:
                self.path.unlink()


def _stamp(path: Path) -> tuple[int, int]:
    # The inode number alone may belong to a deleted file.
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _clear(path: Path) -> None:
    """Remove a stale socket file; raises OSError if a process listens on it."""
    if not path.is_socket():
        if path.exists():
            raise FileExistsError(errno.EEXIST, "exists, and is not a socket", str(path))
        return
    with socket.socket(socket.AF_UNIX) as trial:
        # A busy listener answers with EAGAIN.
        trial.setblocking(False)
        try:
            trial.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "a hub is already listening", str(path))
