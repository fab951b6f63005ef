"""`trunkline keys`: make, list and revoke the keys of a hub and its clients."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson
from trunkline.clock import World
from trunkline.keys.register import HUB, Key
from trunkline.keys.store import DAYS, KeyStore
from trunkline.transports.addresses import DEFAULT_PORT, at

app = typer.Typer(help="Create, list and revoke the keys of a hub and its clients.", no_args_is_help=True)
make = typer.Typer(help="Create keys for a hub, or for a client of it.", no_args_is_help=True)
app.add_typer(make, name="make")

Keys = Annotated[
    Path | None,
    typer.Option(help="The directory of keys; otherwise $TRUNKLINE_KEYS, or ~/.config/trunkline/keys.", metavar="DIR"),
]
Days = Annotated[int, typer.Option(help="How long they are valid.", min=1)]


@make.command()
def hub(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(help="Host names and addresses of the hub, in addition to localhost.", metavar="HOST"),
    ] = None,
    keys: Keys = None,
    days: Days = DAYS,
    json: AsJson = False,
) -> None:
    """Make the keys of a hub. If it has keys, make a new certificate: the keys of its clients stay valid."""
    store = KeyStore(keys)
    made = store.make_hub(hosts or (), days)
    if json:
        _show_as_json(made, store.path)
        return
    _show_made("the hub", made, store.path)
    show.output(f"  clients reach it at {', '.join(made.hosts)}")
    url = at("tcp", hosts[0] if hosts else "127.0.0.1", DEFAULT_PORT)
    show.output(f"next step: trunkline up --listen {_quoted(url)} --keys {_quoted(store.path)}")
    show.output(f"and for each client: trunkline keys make client NAME{_option(keys)}")


@make.command()
def client(
    name: Annotated[
        str, typer.Argument(help="The name of the client; the hub's access rules call it cert:NAME and key:NAME.")
    ],
    keys: Keys = None,
    days: Days = DAYS,
    json: AsJson = False,
) -> None:
    """Make the keys of a client: a directory to copy to its machine."""
    store = KeyStore(keys)
    made = store.make_client(name, days)
    folder = store.bundle(name)
    if json:
        _show_as_json(made, folder)
        return
    _show_made(name, made, folder)
    there = f".config/trunkline/{name}"
    show.output("next step: copy this directory to the client's machine, and set TRUNKLINE_KEYS there:")
    show.output(f"  scp -pr {_quoted(folder)} MACHINE:{there}")
    show.output(f"  export TRUNKLINE_KEYS=~/{there}")
    show.output(f"if the keys are lost: trunkline keys revoke {name}{_option(keys)}")


def _show_made(who: str, key: Key, folder: Path) -> None:
    show.output((f"the keys of {who} are in ", ""), (str(folder), "bold"))
    show.output(f"  valid until {_time(key.expires_at)}; readable only by you")


def _show_as_json(key: Key, folder: Path) -> None:
    show.json({**_as_dict(key, World().time_ns() / 1e9), "directory": folder})


@app.command("list")
def list_keys(keys: Keys = None, json: AsJson = False) -> None:
    """List the owners of keys, and whether the keys are valid."""
    found = KeyStore(keys).list()
    now_s = World().time_ns() / 1e9
    if json:
        for key in found:
            show.json(_as_dict(key, now_s))
        return
    show.table(
        "",
        ["name", "state", "made", "valid until", "certificate"],
        [[key.name, _state(key, now_s), _time(key.made_at), _time(key.expires_at), key.serial] for key in found],
    )
    if all(key.name == HUB for key in found):
        show.output(f"no client has keys: trunkline keys make client NAME{_option(keys)}")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The name of the client.")], keys: Keys = None, json: AsJson = False
) -> None:
    """Revoke the keys of a client. Running hubs refuse them from now on. Exits with 1 if there are none."""
    store = KeyStore(keys)
    revoked = store.revoke(name)
    if json:
        show.json({"revoked": name if revoked else None})
    elif revoked:
        show.output(f"revoked: the hub refuses {name} from its next connection on")
        show.output("an open connection stays until then: restart the hub to close it now")
    if revoked:
        return
    known = sorted({key.name for key in store.list() if key.revoked_at is None} - {HUB})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else "no client has any"
    show.notice(f"{name!r} has no keys to revoke: {hint}")
    raise typer.Exit(1)


def _state(key: Key, now_s: float) -> str:
    return "revoked" if key.revoked_at is not None else "valid" if key.valid(now_s) else "expired"


def _as_dict(key: Key, now_s: float) -> dict[str, Any]:
    return {**msgspec.to_builtins(key), "state": _state(key, now_s)}


def _time(seconds: int) -> str:
    return show.time_of(seconds * 1_000_000_000)


def _option(keys: Path | None) -> str:
    """The --keys option to add to a suggested command."""
    return "" if keys is None else f" --keys {_quoted(keys)}"


def _quoted(what: object) -> str:
    return shlex.quote(str(what))
