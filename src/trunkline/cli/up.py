"""`trunkline up`: run a hub."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.hub.config import HubConfig
from trunkline.hub.hub import Hub
from trunkline.hub.serve import run, serve
from trunkline.keys.register import HUB
from trunkline.keys.store import HOSTS, KeyStore, keys_in_use
from trunkline.transports.addresses import at, place_of
from trunkline.transports.binding import is_every_address


def up(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            help="Where to listen; can be repeated: unix:///run/x.sock, tcp://127.0.0.1:7420, "
            "zmq+ipc:///run/x.ipc, zmq+tcp://127.0.0.1:7421. By default a socket in the runtime directory."
        ),
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Store every topic in a journal in this directory: publishes are durable.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with a table called hub.")] = None,
    keys: Annotated[Path | None, typer.Option(help="The directory of keys; see `trunkline keys`.")] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Allow other machines to connect without keys. Also needs TRUNKLINE_INSECURE=1."
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log clients that connect and disconnect.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when the hub is ready.")] = False,
) -> None:
    """Run the hub that other processes connect to, until Ctrl-C."""
    handler = logging.StreamHandler()
    handler.setFormatter(show.LogFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    settings = HubConfig.load(
        config,
        listen=tuple(listen or ()),
        journal={"directory": str(journal)} if journal is not None else None,
        keys=str(keys) if keys is not None else None,
        insecure=insecure or None,
    )

    def ready(hub: Hub) -> None:
        if json:
            show.json({"listening": hub.addresses, "hub": hub.id, "durable": settings.journal is not None})
            return
        for address in hub.addresses:
            show.output("listening at ", (address, "bold"))
        address = reachable(hub.addresses[0], keys_in_use(settings.keys))
        show.output(f'connect with tl.connect("{address}"); Ctrl-C ends it')

    run(serve(settings, ready))


def reachable(address: str, keys: KeyStore | None) -> str:
    """An address that clients can connect to: 0.0.0.0 and :: are only for listening."""
    scheme = address.partition(":")[0]
    if not scheme.endswith("tcp"):
        return address
    host, port = place_of(address)
    if not is_every_address(host):
        return address
    here = "::1" if host == "::" else "127.0.0.1"
    if keys is None:
        return at(scheme, socket.gethostname() or here, port)
    # A name that the certificate does not have would be refused.
    names = [name for key in keys.list() if key.name == HUB for name in key.hosts if name not in HOSTS]
    return at(scheme, names[0] if names else here, port)
