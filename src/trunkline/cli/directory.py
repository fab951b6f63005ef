"""`trunkline channels` and `trunkline schemas`: the channels and schemas that a hub or an engine has registered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from trunkline.brokers.broker import Feature
from trunkline.brokers.directory import Directory
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.cli import show
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect_engine, connect_hub, is_engine
from trunkline.errors import HubUnavailable, UsageError
from trunkline.hub.serve import run
from trunkline.wire.control import ChannelInfo, PeerInfo, Qos
from trunkline.wire.reported_metrics import ReportedMetrics, read_metrics

channels = typer.Typer(
    help="The channels of a hub, or of a NATS or Redis server: topics with a contract.", no_args_is_help=True
)
schemas = typer.Typer(
    help="The schemas of a hub, or of a NATS or Redis server, by name and version.", no_args_is_help=True
)

T = TypeVar("T")
CONNECT_S = 2.0
Channel = Annotated[str, typer.Argument(help="The channel's name.", metavar="CHANNEL")]
Name = Annotated[str, typer.Argument(help="The schema's name.", metavar="NAME")]


def ask(hub: str, question: Callable[[Directory], Awaitable[T | None]]) -> T:
    """Run a query on a hub or an engine.

    Raises HubUnavailable if nothing answers there, and Unsupported if it has no directory.
    """
    url = hub_at(hub)

    async def work() -> T:
        async with directory_at(url) as directory:
            answer = await question(directory)
            if answer is None:
                raise HubUnavailable(url, "it does not answer")
            return answer

    return run(work())


@asynccontextmanager
async def directory_at(url: str) -> AsyncIterator[Directory]:
    """The directory of channels at a URL."""
    if is_engine(url):
        async with connect_engine(url, name="trunkline", engine=EngineSettings(connect_s=CONNECT_S)) as engine:
            await engine.adapter.ready()
            engine.require(Feature.CHANNELS)
            assert engine.directory is not None
            yield engine.directory
    else:
        async with connect_hub(url, name="trunkline", connection=ConnectionSettings(connect_s=CONNECT_S)) as broker:
            await broker.connection.ready()
            yield broker.directory


@channels.command("list")
def list_channels(
    pattern: Annotated[str, typer.Argument(help="Only channels whose names match.", metavar="PATTERN")] = ">",
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """List the channels with their owners, schemas and quality of service."""
    found = ask(hub, lambda directory: directory.channels(pattern))
    if json:
        for each in found:
            show.json(each)
        return
    rows: list[list[object]] = [
        [each.channel, each.pattern, each.owner or "nobody", each.schema_version or "none", _kind(each.qos)]
        for each in found
    ]
    show.table("Channels", ["channel", "topics", "owner", "schema", "quality"], rows)
    live = [
        (each.channel, numbers) for each in found if (numbers := read_metrics({"metrics": each.memory})) is not None
    ]
    show.table(
        "In shared memory",
        ["channel", "last frame", *NUMBERS],
        [[name, _age(numbers), *_numbers(numbers)] for name, numbers in live],
        numbers=len(NUMBERS),
    )
    if not found:
        show.output("there are none")


def _kind(qos: Qos) -> str:
    words = ["durable"] if qos.durable else []
    if qos.priority != Qos().priority:
        words.append(f"priority {qos.priority}")
    if qos.group is not None:
        words.append(f"group {qos.group}")
    if qos.overflow != Qos().overflow:
        words.append(qos.overflow)
    kept = {"s": qos.max_age_s, "bytes": qos.max_bytes, "messages": qos.max_messages}
    if any(kept.values()):
        words.append("keeps " + " / ".join(f"{most:g} {unit}" for unit, most in kept.items() if most))
    return ", ".join(words) or "plain"


@channels.command()
def describe(channel: Channel, hub: Hub = "", json: AsJson = False) -> None:
    """Describe a channel, its producers and its consumers."""
    found = ask(hub, lambda directory: directory.describe(channel))
    if json:
        show.json(found)
        return
    show.output((found.channel, "bold"), f" on {found.pattern}, owner {found.owner or 'none'}")
    if found.description:
        show.output(found.description)
    show.output(f"schema {found.schema_hash or 'none'} {found.schema_version}")
    show.output(f"quality: {msgspec.to_builtins(found.qos)}")
    _people("Producers", found.producers)
    _people("Consumers", found.consumers)
    _frames(found)


def _people(title: str, people: list[PeerInfo]) -> None:
    show.table(
        title,
        ["name", "identity", "status", "since"],
        [[each.name, each.identity, each.status, show.time_of(each.since_ns)] for each in people],
    )


NUMBERS = ["frames", "frames/s", "full", "overruns", "held", "consumers"]


def _numbers(found: ReportedMetrics) -> list[object]:
    full = f"{found.occupancy:.0%}"
    return [found.frames, f"{found.per_s:.1f}", full, found.overruns, found.held, found.consumers]


def _age(found: ReportedMetrics) -> str:
    return show.time_of(found.last_ns) if found.last_ns else "none yet"


def _frames(channel: ChannelInfo) -> None:
    """The frame counters of the producers and consumers of a shared-memory channel."""
    found = read_metrics({"metrics": channel.memory})
    if found is None:
        memory = any(each.metadata.get("plane") == "memory" for each in (*channel.producers, *channel.consumers))
        if memory:
            state = "its producer has not reported its counters yet" if channel.producers else "it has no producer"
            show.output(f"in shared memory: {state}")
        return
    show.table(
        "Frames",
        ["last frame", "as of", *NUMBERS],
        [[_age(found), show.time_of(found.at_ns), *_numbers(found)]],
        numbers=len(NUMBERS),
    )
    show.table(
        "Furthest behind",
        ["consumer", "pid", "reads", "overruns", "waiting", "held"],
        [[each.name, each.pid, each.reads, each.overruns, each.waiting, each.held] for each in found.slowest],
        numbers=5,
    )


@channels.command()
def create(
    channel: Channel,
    pattern: Annotated[
        str, typer.Option(help="The topics of the channel; by default the topic of the same name.")
    ] = "",
    priority: Annotated[int, typer.Option(help="The priority of messages that do not set one.", min=0, max=100)] = 50,
    durable: Annotated[
        bool, typer.Option("--durable", help="Require that the hub's journal stores the channel.")
    ] = False,
    invalid: Annotated[
        str, typer.Option(help="What to do with messages that break the schema: refuse, or dead_letter.")
    ] = "refuse",
    overflow: Annotated[
        str, typer.Option(help="When a consumer's inbox is full: block, reject, drop_oldest, drop_newest.")
    ] = "block",
    group: Annotated[str | None, typer.Option(help="Consumers share the messages, as members of this group.")] = None,
    max_age_s: Annotated[float | None, typer.Option(help="Keep messages for at most this many seconds.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Keep at most this many bytes of each topic.")] = None,
    max_messages: Annotated[int | None, typer.Option(help="Keep at most this many messages of each topic.")] = None,
    schema: Annotated[Path | None, typer.Option(help="A file with the JSON Schema of the payloads.")] = None,
    description: Annotated[str, typer.Option(help="A description of the channel.")] = "",
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """Create a channel. Creating the same channel again changes nothing."""
    qos = Qos(
        priority=priority,
        durable=durable,
        invalid=invalid,
        overflow=overflow,
        group=group,
        max_age_s=max_age_s,
        max_bytes=max_bytes,
        max_messages=max_messages,
    )
    given = None if schema is None else _read(schema)
    made = ask(
        hub,
        lambda directory: directory.create_channel(
            channel, pattern=pattern, schema=given, qos=qos, description=description
        ),
    )
    if json:
        show.json({"channel": channel, "created": made})
    else:
        show.output(f"{channel} created")


@channels.command()
def destroy(channel: Channel, hub: Hub = "", json: AsJson = False) -> None:
    """Remove a channel. Its topics remain usable, without a contract."""
    done = ask(hub, lambda directory: directory.destroy_channel(channel))
    if json:
        show.json({"channel": channel, "destroyed": done})
    else:
        show.output(f"{channel} removed")


@schemas.command("list")
def list_schemas(
    name: Annotated[str, typer.Argument(help="Only those of this name.", metavar="NAME")] = "",
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """List the schemas with all their versions."""
    found = ask(hub, lambda directory: directory.schemas(name))
    if json:
        for each in found:
            show.json(each)
        return
    rows: list[list[object]] = [[each.name, each.version, each.compatibility, each.hash] for each in found]
    show.table("Schemas", ["name", "version", "compatibility", "hash"], rows)
    if not found:
        show.output("there are none")


@schemas.command()
def get(
    name: Name,
    version: Annotated[str, typer.Option(help="The version; by default the last one.")] = "",
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """Print a schema, as JSON; with --json also its name, version and hash."""
    found = ask(hub, lambda directory: directory.get_schema(name, version))
    show.json(found if json else found.schema)


@schemas.command()
def put(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A file with a JSON Schema.")],
    version: Annotated[str, typer.Option(help="The version; by default chosen by the kind of change.")] = "",
    compatibility: Annotated[str, typer.Option(help="none, backward, forward or full; by default as before.")] = "",
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """Store a new version of a schema, if it is compatible with the last one."""
    info = ask(hub, lambda directory: directory.put_schema(name, _read(file), version, compatibility))
    if json:
        show.json({"name": info.name, "version": info.version, "hash": info.hash})
    else:
        show.output(f"{info.name} {info.version}, {info.hash}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a JSON Schema: {error}") from error
    return found
