"""`trunkline up`: run a hub."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli import show
from trunkline.cli.page_process import page_of
from trunkline.errors import UsageError
from trunkline.hub.config import HubConfig
from trunkline.hub.hub import Hub
from trunkline.hub.serve import run, serve
from trunkline.keys.register import HUB
from trunkline.keys.store import HOSTS, KeyStore, keys_in_use
from trunkline.message_log import JsonLines
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
    metrics: Annotated[
        str | None,
        typer.Option(help="Serve /metrics for Prometheus there: a port on this machine, or HOST:PORT.", metavar="PORT"),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Also start `trunkline page`: the hub in a browser of this machine.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log clients that connect and disconnect.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON when the hub is ready, and log in JSON.")
    ] = False,
) -> None:
    """Run the hub that other processes connect to, until Ctrl-C."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if json else show.LogFormatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    settings = HubConfig.load(
        config,
        listen=tuple(listen or ()),
        journal={"directory": str(journal)} if journal is not None else None,
        keys=str(keys) if keys is not None else None,
        insecure=insecure or None,
    )

    ending = ExitStack()

    def ready(hub: Hub) -> None:
        where = {} if metrics is None else {"metrics": ending.enter_context(_metrics(hub, metrics))}
        if page:
            keys_used = keys_in_use(settings.keys)
            where["page"] = ending.enter_context(page_of(reachable(hub.addresses[0], keys_used), keys_used))
        if json:
            show.json({"listening": hub.addresses, "hub": hub.id, "durable": settings.journal is not None, **where})
            return
        for address in hub.addresses:
            show.output("listening at ", (address, "bold"))
        address = reachable(hub.addresses[0], keys_in_use(settings.keys))
        for what, place in where.items():
            show.output(f"{what} at ", (place, "bold"))
        show.output(f'connect with tl.connect("{address}"); Ctrl-C ends it')

    with ending:
        run(serve(settings, ready))


@contextmanager
def _metrics(hub: Hub, place: str) -> Iterator[str]:
    """Serve metrics at a port, or HOST:PORT. Yields the URL."""
    from trunkline.dashboard.metrics import serve_metrics

    host, _, port = place.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--metrics {place!r} is not a port: write 9420, or 0.0.0.0:9420 to serve other machines")
    host = host.strip("[]") or "127.0.0.1"
    with ExitStack() as serving:
        try:
            chosen = serving.enter_context(serve_metrics(hub, int(port), host))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise UsageError(f"--metrics {place}: the port is in use by another program: choose another") from error
        yield f"http://{f'[{host}]' if ':' in host else host}:{chosen}/metrics"


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
    # Clients reject a host name that the certificate does not contain.
    names = [name for key in keys.list() if key.name == HUB for name in key.hosts if name not in HOSTS]
    return at(scheme, names[0] if names else here, port)
