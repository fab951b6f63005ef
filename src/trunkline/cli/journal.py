"""`trunkline journal`: look into a journal, replay from it, and keep it in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from trunkline.cli import dead_letters, show, subscriptions
from trunkline.cli.access import owning, reading, there_or_lost
from trunkline.cli.explain import MessageId, explain_in
from trunkline.cli.options import AsJson, Directory, First, Last, Pattern, Since, Until, stretch
from trunkline.connect import connect
from trunkline.delivery.dead_letters import Cause, Choice
from trunkline.errors import UsageError
from trunkline.journal.journal import Journal
from trunkline.journal.reader import Reader
from trunkline.journal.repair.findings import Finding, Repaired, Verified
from trunkline.journal.repair.repair import repair as repair_it
from trunkline.journal.repair.verify import verify as verify_it
from trunkline.journal.stats import JournalStats
from trunkline.journal.stats import stats as stats_of
from trunkline.message import Message
from trunkline.topic import EVERYTHING, validate_pattern, validate_topic

app = typer.Typer(help="Inspect, replay, verify and maintain a journal.", no_args_is_help=True)

POLL_S = 0.2
NEAR = 1000
"""How far back the first search goes, in messages. Each further search goes four times as far."""


@app.command()
def stats(directory: Directory, json: AsJson = False) -> None:
    """What the journal holds: messages by topic, durable subscriptions and how far they are, what failed."""
    found = stats_of(directory)
    if json:
        show.json(found)
        return
    _print_numbers(directory, found)
    show.table(
        "Topics",
        ["topic", "messages", "bytes", "last number"],
        [[each.topic, each.messages, show.size(each.bytes), each.last] for each in found.topics],
        numbers=3,
    )
    show.table(
        "Durable subscriptions",
        ["name", "pattern", "updated", "at number", "behind"],
        [[each.name, each.pattern, show.time_of(each.updated_ns), each.high, each.behind] for each in found.cursors],
        numbers=2,
    )
    show.table("Dead letters", ["cause", "letters"], [[*pair] for pair in found.dead_letters.items()], numbers=1)
    if found.dead_letters:
        show.output(f"to list them: trunkline journal replay {directory} --dead --dry-run")


def _print_numbers(directory: Path, found: JournalStats) -> None:
    owner = "no process writes to it now"
    if found.owner is not None:
        owner = f"process {found.owner} writes to it" if found.owner else "another process writes to it"
    fates = f"{show.counted(found.fates + found.sealed_fates, 'row')}, {found.sealed_fates:,} of them sealed"
    show.output((str(directory), "bold"), f": {owner}, last number {found.last:,}")
    for name, text in (
        ("identity", found.identity or "none yet: it gets one when a program opens it for writing"),
        ("journal", f"{_messages(found.messages, found.batches, 'batch', 'batches')}, {show.size(found.bytes)}"),
        ("lake", f"{_messages(found.sealed_messages, found.files, 'file')}, {show.size(found.sealed_bytes)}"),
        ("fates", fates),
        ("waiting", f"{found.retries:,} for their next attempt, {show.counted(found.orphans, 'orphan')}"),
    ):
        show.output(f"  {name:8} {text}")
    if found.quarantined:
        damaged = show.counted(found.quarantined, "damaged batch", "damaged batches")
        show.output("  ", (f"{damaged} in quarantine", "red"), f": trunkline journal verify {directory}")
    if found.removed:
        show.output(f"  {'removed':8} {show.counted(found.removed, 'message')} by retention")
    show.output()


def _messages(messages: int, parts: int, part: str, many: str | None = None) -> str:
    return f"{show.counted(messages, 'message')} in {show.counted(parts, part, many)}"


@app.command()
def tail(
    directory: Directory,
    pattern: Pattern = EVERYTHING,
    count: Annotated[int, typer.Option("-n", "--count", help="How many of the last messages.", min=0)] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for new messages and show them, until Ctrl-C.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show the last messages, and new ones with --follow: time, number, topic, sender, payload."""
    with reading(directory) as reader:
        upto = reader.last()
        last = _last(reader, pattern, count, upto)
        for message in last:
            _print(message, json)
        if not last and count and not follow:
            show.notice(f"nothing matches {pattern!r}: `trunkline journal stats {directory}` lists the topics")
        pause = threading.Event()
        while follow:
            before, upto = upto, max(upto, reader.last())
            if upto > before:
                for message in reader.messages(pattern, first=before + 1, last=upto):
                    _print(message, json)
            pause.wait(POLL_S)


def _last(reader: Reader, pattern: str, count: int, upto: int) -> list[Message]:
    """The last messages up to a sequence number. Sequence numbers stay the same when messages are sealed meanwhile."""
    found: list[Message] = []
    stretch = max(count, NEAR)
    while len(found) < count and upto > 0:
        older = reader.messages(pattern, first=max(1, upto - stretch + 1), last=upto)
        found = [*deque(older, count - len(found)), *found]
        upto -= stretch
        stretch *= 4
    return found


def _print(message: Message, json: bool) -> None:
    if json:
        show.json(show.record(message))
    else:
        show.output(show.line(message))


@app.command()
def last(
    directory: Directory,
    topic: Annotated[str, typer.Argument(help="One topic, without wildcards.", metavar="TOPIC")],
    before: Annotated[int | None, typer.Option(help="The last one before this number.", min=1)] = None,
    json: AsJson = False,
) -> None:
    """Show the last message of a topic. Exits with 1 if there is none, or if it is damaged."""
    validate_topic(topic)
    with reading(directory) as reader:
        found = reader.last_of(topic, before)
    if found is not None:
        _print(found, json)
        return
    show.notice(f"nothing is stored on {topic!r}: `trunkline journal stats {directory}` lists the topics")
    raise typer.Exit(1)


@app.command()
def replay(
    directory: Directory,
    pattern: Pattern = EVERYTHING,
    dead: Annotated[
        bool, typer.Option("--dead", help="Replay dead letters: subscribers get them when they next start.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(help="Publish messages again, to the journal in this directory.", metavar="DIRECTORY"),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="With --into: below this topic, so that orders.eu becomes TOPIC.orders.eu.", metavar="TOPIC"),
    ] = None,
    subscriber: Annotated[str | None, typer.Option(help="With --dead: only those of this subscriber.")] = None,
    cause: Annotated[Cause | None, typer.Option(help="With --dead: only those with this cause.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="With --dead: only this message.")] = None,
    first: First = 1,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    rate: Annotated[float | None, typer.Option(help="With --into: the maximum number of messages per second.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be replayed, and change nothing.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Redeliver dead letters to the subscribers that failed (--dead), or publish a range of messages again (--into).

    The journal must not be in use. A program that has it open can call bus.replay_dead() and bus.replay() instead.
    """
    if dead == (into is not None):
        raise UsageError("pass --dead to replay dead letters, or --into DIRECTORY to replay a range of messages")
    for_dead = {"--subscriber": subscriber, "--cause": cause, "--id": message_id}
    for_range = {"--to": to, "--rate": rate, "--first": None if first == 1 else first}
    for_range |= {"--last": last, "--since": since, "--until": until}
    for name, value in (for_range if dead else for_dead).items():
        if value is not None:
            raise UsageError(f"{name} is used with {'--into' if dead else '--dead'}: leave it out, or add that option")
    validate_pattern(pattern)
    if to is not None:
        validate_topic(to)
    if rate is not None and not rate > 0:
        raise UsageError(f"--rate {rate:g} must be above 0; leave it out to go as fast as possible")
    if into is None:
        dead_letters.give_back(
            directory, Choice(topic=pattern, subscriber=subscriber, cause=cause, message_id=message_id), dry_run, json
        )
    else:
        _replay_range(directory, pattern, into, to, rate, dry_run, json, stretch(first, last, since, until))


def _replay_range(
    directory: Path,
    pattern: str,
    into: Path,
    to: str | None,
    rate: float | None,
    dry_run: bool,
    json: bool,
    span: dict[str, Any],
) -> None:
    if into.resolve() == directory.resolve() and to is None:
        raise UsageError(
            "replaying into the same journal needs --to TOPIC: otherwise the replayed messages would be replayed again"
        )

    async def work() -> Any:
        # A dry run does not need the lock, and creates no journal.
        async with connect("memory:", journal=None if dry_run else into, name="replay") as bus:
            return await bus.replay(directory, pattern, to=to, per_s=rate, dry_run=dry_run, **span)

    with owning(f"stop that process, or call there: await bus.replay({str(directory)!r}, {pattern!r}, …)"):
        done = asyncio.run(work())
    if json:
        show.json(done)
    else:
        show.output(str(done))
    if done.failed:
        raise typer.Exit(1)


@app.command()
def forget(
    directory: Directory,
    name: subscriptions.Name,
    yes: subscriptions.Yes = False,
    json: AsJson = False,
) -> None:
    """Delete a durable subscription and its pending messages. Retention no longer keeps messages for it.

    `stats` lists them. The journal must not be in use: for that of a running hub there is `trunkline forget`, and a
    program that has it open can call bus.forget_durable().
    """
    subscriptions.forget_in(directory, name, yes, json)


@app.command()
def seal(
    directory: Directory,
    everything: Annotated[bool, typer.Option("--all", help="Everything, not only what is due.")] = False,
    json: AsJson = False,
) -> None:
    """Move batches that are due from the journal to the lake, and join small files.

    The journal must not be in use. A program that has it open does this by itself.
    """
    with (
        owning("nothing to do: the process that writes the journal seals it"),
        Journal(directory, threaded=False) as journal,
    ):
        sealed = journal.seal(everything=everything)
        joined = journal.tender.join()
        gone = journal.tender.forget_replaced()
    if json:
        show.json({"sealed": sealed, "joined": joined, "deleted": gone})
        return
    show.output(
        f"{show.counted(sealed, 'message')} sealed, {show.counted(joined, 'small file')} joined,"
        f" {show.counted(gone, 'replaced file')} deleted"
    )
    if not sealed and not everything:
        show.output("nothing was due: --all also seals younger messages")


@app.command()
def verify(
    directory: Annotated[
        Path,
        typer.Argument(
            help="The directory of the journal.", show_default=False, callback=there_or_lost, metavar="DIRECTORY"
        ),
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Move damaged parts aside, and keep what is readable.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check every batch and every file against its checksum. Exits with 1 if something is damaged.

    --repair deletes nothing. It moves what it replaces to the folder `damaged`, and lists the messages that are lost.
    """
    repaired = None
    if repair:
        with owning("stop that process, and then repair; verifying and reading do not need the lock"):
            repaired = repair_it(directory)
    with show.progress("verifying") as progress:
        found = verify_it(directory, progress)
    if json:
        show.json({"good": found.good, **msgspec.to_builtins(found), "repaired": msgspec.to_builtins(repaired)})
    else:
        _print_verified(directory, found, repaired)
    if not found.good:
        raise typer.Exit(1)


def _print_verified(directory: Path, found: Verified, repaired: Repaired | None) -> None:
    for loss in repaired.lost if repaired else ():
        show.output(("lost", "red"), f" {_described(loss)}")
    for path in repaired.aside if repaired else ():
        show.output(f"moved aside: {directory / path}")
    show.output(
        f"{_messages(found.messages, found.batches, 'batch', 'batches')},"
        f" {_messages(found.sealed_messages, found.files, 'file')}, {show.counted(found.sealed_fates, 'sealed fate')}"
    )
    for finding in found.findings:
        show.output(("damaged", "red"), f" {_described(finding)}")
    if found.quarantined:
        show.output(f"{show.counted(found.quarantined, 'damaged batch', 'damaged batches')} in quarantine")
    if found.good:
        show.output(("all good", "green"))
    else:
        show.output(f"next step: trunkline journal verify {directory} --repair, when no program uses the journal")


def _described(finding: Finding) -> str:
    numbers = ""
    if finding.last:
        one = finding.first == finding.last
        numbers = f" (message {finding.first})" if one else f" (messages {finding.first} to {finding.last})"
    return f"{finding.where}: {finding.why}{numbers}"


@app.command()
def export(
    directory: Directory,
    file: Annotated[
        Path,
        typer.Argument(help="The file to write: .parquet, .arrow or .jsonl; - prints JSON lines.", metavar="FILE"),
    ],
    pattern: Pattern = EVERYTHING,
    first: First = 1,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    json: AsJson = False,
) -> None:
    """Copy messages to a file. Messages that arrive during the copy are not included."""
    span = stretch(first, last, since, until)
    with reading(directory) as reader:
        end = reader.last()
        span["last"] = end if last is None else min(last, end)
        if str(file) == "-":
            for message in reader.messages(pattern, **span):
                show.json(show.record(message), flush=False)
            return
        from trunkline.journal.export import Format, export_to

        kind = Format.of(file)
        of = reader.count(pattern, first - 1) if show.shows_progress() else 0
        with show.progress("exporting") as progress:
            rows = export_to(file, kind, _counted(reader.arrow(pattern, **span), progress, of), show.json_line)
        if json:
            show.json({"file": str(file), "messages": rows})
        else:
            show.output(f"{show.counted(rows, 'message')} in {file}, {show.size(file.stat().st_size)}")


def _counted(batches: Iterator[Any], progress: Callable[[int, int], None], of: int) -> Iterator[Any]:
    done = 0
    for batch in batches:
        done += batch.num_rows
        progress(done, max(done, of))
        yield batch


@app.command()
def explain(directory: Directory, message: MessageId, json: AsJson = False) -> None:
    """Show the fate of a message for each subscriber: as `trunkline explain ID --journal DIRECTORY`."""
    explain_in(directory, message, json=json)
