"""`trunkline keys`: make, list and revoke the keys with which clients come to a hub."""

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

app = typer.Typer(help="Make, list and revoke the keys of a hub and its clients.", no_args_is_help=True)
make = typer.Typer(help="Make keys: for a hub, or for a client of it.", no_args_is_help=True)
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
        typer.Argument(help="Names and addresses under which clients reach it, beside localhost.", metavar="[HOST]..."),
    ] = None,
    keys: Keys = None,
    days: Days = DAYS,
) -> None:
    """Make the keys of a hub; or a new certificate for it, if it has keys: those of its clients stay good."""
    store = KeyStore(keys)
    made = store.make_hub(hosts or (), days)
    _show_made("the hub", made, store.path)
    show.output(f"  clients reach it at {', '.join(made.hosts)}")
    url = at("tcp", hosts[0] if hosts else "127.0.0.1", DEFAULT_PORT)
    show.output(f"next step: trunkline up --listen {_quoted(url)} --keys {_quoted(store.path)}")
    show.output(f"and for each client: trunkline keys make client NAME{_option(keys)}")


@make.command()
def client(
    name: Annotated[str, typer.Argument(help="The hub's rules know it as cert:NAME and key:NAME.")],
    keys: Keys = None,
    days: Days = DAYS,
) -> None:
    """Make the keys of a client: a directory that is to be copied to its machine."""
    store = KeyStore(keys)
    made = store.make_client(name, days)
    folder = store.bundle(name)
    _show_made(name, made, folder)
    there = f".config/trunkline/{name}"
    show.output("next step: copy this directory to where the client runs, and let its programs know:")
    show.output(f"  scp -pr {_quoted(folder)} MACHINE:{there}")
    show.output(f"  export TRUNKLINE_KEYS=~/{there}")
    show.output(f"should it get lost: trunkline keys revoke {name}{_option(keys)}")


def _show_made(who: str, key: Key, folder: Path) -> None:
    show.output((f"the keys of {who} are in ", ""), (str(folder), "bold"))
    show.output(f"  valid until {_time(key.expires_at)}; nobody else may read them")


@app.command("list")
def list_keys(keys: Keys = None, json: AsJson = False) -> None:
    """Who has keys, and whether they are still good."""
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
def revoke(name: Annotated[str, typer.Argument(help="Whose keys.")], keys: Keys = None) -> None:
    """Let nobody in with these keys from now on, at hubs that run, too. Ends with 1 if there are none."""
    store = KeyStore(keys)
    if store.revoke(name):
        show.output(f"revoked: the next time {name} connects, it is sent away")
        show.output("who is connected stays until then: restart the hub to part with it at once")
        return
    known = sorted({key.name for key in store.list() if key.revoked_at is None} - {HUB})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}" if known else "no client has any"
    show.notice(f"{name!r} has no keys that could be revoked: {hint}")
    raise typer.Exit(1)


def _state(key: Key, now_s: float) -> str:
    return "revoked" if key.revoked_at is not None else "valid" if key.valid(now_s) else "expired"


def _as_dict(key: Key, now_s: float) -> dict[str, Any]:
    return {**msgspec.to_builtins(key), "state": _state(key, now_s)}


def _time(seconds: int) -> str:
    return show.time_of(seconds * 1_000_000_000)


def _option(keys: Path | None) -> str:
    """So that what is suggested means the same directory."""
    return "" if keys is None else f" --keys {_quoted(keys)}"


def _quoted(what: object) -> str:
    return shlex.quote(str(what))
