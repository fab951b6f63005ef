"""Places to listen at: what a URL says, and a socket there that is bound and listens."""

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
"""Connections that wait to be taken."""
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
    """Host and port. A host of `*` is every address of this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port
    except ValueError as error:
        raise InvalidSettings(f"{url} is not a valid address: {error}") from error
    return "0.0.0.0" if host == "*" else host, DEFAULT_PORT if port is None else port


def at(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def in_use(url: str, error: OSError) -> OSError:
    """The error of who could not listen at `url`: if somebody else does, with what to do."""
    if error.errno != errno.EADDRINUSE:
        return error
    if url.startswith(("unix:", "zmq+ipc:")):
        text = f'a hub is already running at {url}: use it with connect("{url}"), or pass another place with --listen'
    else:
        text = f"another program is already listening at {url}: stop it, or pass another port with --listen"
    return OSError(errno.EADDRINUSE, text)


class SocketFile:
    """A socket that listens at a path, with mode 0600. Raises OSError if somebody listens there already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            # Two hubs that find the same stale file must not remove each other's.
            with alone(path.parent):
                _clear(path)
                # Made with the mode it is to have: between making and changing it, others might connect.
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
        """Only our own: another hub may have taken the place over."""
        with contextlib.suppress(OSError):
            if _stamp(self.path) == self._stamp:
                self.path.unlink()


def _stamp(path: Path) -> tuple[int, int]:
    # The number alone may be that of a file which is gone.
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _clear(path: Path) -> None:
    """Remove a socket file that nobody listens on any more; raises OSError if somebody does."""
    if not path.is_socket():
        if path.exists():
            raise FileExistsError(errno.EEXIST, "exists, and is not a socket", str(path))
        return
    with socket.socket(socket.AF_UNIX) as trial:
        # Who listens and has no time answers with EAGAIN.
        trial.setblocking(False)
        try:
            trial.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "a hub is already listening", str(path))
