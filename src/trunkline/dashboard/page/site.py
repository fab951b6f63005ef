"""The site: all views, and their web server. One process serves one model to any number of browsers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from trunkline.dashboard.page.access import TokenGuard
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.place import PagePlace
from trunkline.dashboard.page.theme import FAVICON
from trunkline.dashboard.page.views import (
    actors,
    channels,
    dead_letters,
    kernels,
    life,
    memory,
    messages,
    overview,
    pipeline,
    requests,
    subscribers,
    tail,
    topology,
)
from trunkline.transports.pages import announced

END_S: Final = 1
"""The time browsers have to close their connections at shutdown."""
VIEWS: Final = (
    overview,
    messages,
    life,
    dead_letters,
    subscribers,
    topology,
    tail,
    channels,
    requests,
    actors,
    kernels,
    memory,
    pipeline,
)


class PageServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals like a hub: end with exit code 0, without raising the signal again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def end(self) -> None:
        self.should_exit = True


async def serve_page(model: PageModel, place: PagePlace, ready: Callable[[], None], *, until_eof: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, and with `until_eof` until standard input ends. Call it once in a process."""
    for view in VIEWS:
        view.register(model)
    app = FastAPI(openapi_url=None)
    ui.run_with(
        app,
        title="Trunkline",
        favicon=FAVICON,
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        language="en-US",
    )
    certificate = place.certificate
    config = uvicorn.Config(
        TokenGuard(app, place.token, place.port, secure=certificate is not None),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=END_S,
        ssl_certfile=None if certificate is None else certificate[0],
        ssl_keyfile=None if certificate is None else certificate[1],
    )
    server = PageServer(config)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    async with model:
        if until_eof:
            asyncio.get_running_loop().add_reader(sys.stdin, server.end)
        ready()
        with announced(model.place, place.address):
            await server.serve(sockets=[place.socket])
