"""Runs the page of a hub in a separate process, which always ends together with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trunkline.dashboard.page.place import PagePlace, PageSettings, check_installed
from trunkline.keys.store import VARIABLE, KeyStore

TOKEN_VARIABLE = "TRUNKLINE_PAGE_TOKEN"
END_S = 10.0


@contextmanager
def page_of(hub: str, keys: KeyStore | None) -> Iterator[str]:
    """Start `trunkline page` for the hub at this URL. Yields the link of the page.

    The page inherits a listening socket, so a browser can connect before the page has started. Raises MissingExtra
    without the extra `page`.
    """
    check_installed()
    place = PagePlace(PageSettings(token=os.environ.get(TOKEN_VARIABLE, "")))
    with place.socket:
        descriptor = place.socket.fileno()
        process = subprocess.Popen(
            # -P: modules in the current folder, which may be anybody's, are not imported.
            [sys.executable, "-P", "-m", "trunkline", "page", "--hub", hub, "--fd", str(descriptor)],
            # The page ends when this pipe is closed, also if this process is killed.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[descriptor],
            # Not on the command line, which all users of this machine can read.
            env={**os.environ, TOKEN_VARIABLE: place.token, **({} if keys is None else {VARIABLE: str(keys.path)})},
            # Ctrl-C must reach only the hub, which then ends the page.
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield place.link
    finally:
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
