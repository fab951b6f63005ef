"""`trunkline page`: show a hub or a journal in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.access import there
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.cli.page_process import TOKEN_VARIABLE
from trunkline.connect import check_hub
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.place import PagePlace, PageSettings, check_installed
from trunkline.errors import UsageError
from trunkline.hub.serve import run
from trunkline.keys.store import keys_in_use


def page(
    hub: Hub = "",
    journal: Annotated[
        Path | None, typer.Option(help="Show the history in this journal, without a hub.", metavar="DIRECTORY")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; other machines need keys, or --insecure.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="The port; by default 8420, or a free one.", min=0, max=65535, show_default=False)
    ] = None,
    token: Annotated[
        str, typer.Option(help="The token that a browser must send; by default a new one.", envvar=TOKEN_VARIABLE)
    ] = "",
    keys: Annotated[Path | None, typer.Option(help="The directory of keys, for TLS; see `trunkline keys`.")] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Serve other machines without TLS. Also needs TRUNKLINE_INSECURE=1."),
    ] = False,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    json: AsJson = False,
) -> None:
    """Show a hub or a journal in a browser, until Ctrl-C. It needs the right to administer."""
    check_installed()
    if hub and journal is not None:
        raise UsageError("pass either --hub or --journal, not both")
    if journal is None:
        check_hub(hub_at(hub))
    model = PageModel(journal=there(journal)) if journal is not None else PageModel(hub=hub_at(hub))
    settings = PageSettings(host=host, port=port, token=token, keys=keys_in_use(keys), insecure=insecure)
    place = PagePlace(settings, fd=fd)

    def ready() -> None:
        if json:
            show.json({"page": place.link, "address": place.address, "shows": model.place, "pid": os.getpid()})
            return
        show.output("page at ", (place.link, "bold"))
        show.output(f"it shows {model.place}; Ctrl-C ends it")

    # The import takes a second, so it comes after the address has been checked.
    from trunkline.dashboard.page.site import serve_page

    # The process that passed the socket ends this process by closing its standard input.
    run(serve_page(model, place, ready, until_eof=fd is not None))
