"""`trunkline journal`: look into a journal, replay from it, and keep it in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trunkline.cli import show
from trunkline.connect import connect
from trunkline.delivery.deadletters import Cause
from trunkline.errors import UsageError
from trunkline.journal.export import Format, export_to
from trunkline.journal.journal import Journal
from trunkline.journal.ledger import decode_letter
from trunkline.journal.reader import Reader
from trunkline.journal.stats import stats as stats_of
from trunkline.journal.verify import repair as repair_it
from trunkline.journal.verify import verify as verify_it
from trunkline.topic import EVERYTHING, matches

app = typer.Typer(help="Look into a journal, replay from it, keep it in order.", no_args_is_help=True)

POLL_S = 0.2

Directory = Annotated[Path, typer.Argument(help="The directory of the journal.", show_default=False)]
Pattern = Annotated[str, typer.Argument(help="Only topics that match: * is one token, > the rest.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON value a line, for scripts.")]
First = Annotated[int, typer.Option(help="From this sequence number.", min=1)]
Last = Annotated[int | None, typer.Option(help="Up to this sequence number, included.")]
Since = Annotated[str | None, typer.Option(help="From this time, such as 2026-11-16T10:00:00Z; without a zone: UTC.")]
Until = Annotated[str | None, typer.Option(help="Up to this time, not included.")]


def moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a time: write it as 2026-11-16T10:00:00Z") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


@app.command()
def stats(directory: Directory, json: AsJson = False) -> None:
    """What the journal holds: messages by topic, durable subscriptions and how far they are, what failed."""
    found = stats_of(directory)
    if json:
        show.json(found)
        return
    owner = f"written to by process {found.owner}" if found.owner else "nobody writes to it now"
    show.out.print(f"[bold]{directory}[/]: {owner}, last number {found.last:,}")
    show.out.print(
        f"  journal  {found.messages:,} messages in {found.batches:,} batches, {show.size(found.bytes)}\n"
        f"  lake     {found.sealed_messages:,} messages in {found.files:,} files, {show.size(found.sealed_bytes)}\n"
        f"  fates    {found.fates + found.sealed_fates:,} rows, {found.sealed_fates:,} of them sealed\n"
        f"  waiting  {found.retries:,} for their next attempt, {found.orphans:,} orphans"
    )
    if found.quarantined:
        show.out.print(f"  [red]{found.quarantined:,} damaged batches in quarantine[/]: trunkline journal verify")
    if found.removed:
        show.out.print(f"  removed  {found.removed:,} messages by retention")
    show.out.print()
    columns = ["topic", "messages", "bytes", "last"]
    show.table("Topics", columns, [[t.topic, t.messages, show.size(t.bytes), t.last] for t in found.topics], numbers=3)
    show.table(
        "Durable subscriptions",
        ["name", "pattern", "updated", "at", "behind"],
        [[c.name, c.pattern, show.time_of(c.updated_ns), c.high, c.behind] for c in found.cursors],
        numbers=2,
    )
    show.table("Dead letters", ["cause", "count"], [[*pair] for pair in found.dead_letters.items()], numbers=1)


@app.command()
def tail(
    directory: Directory,
    pattern: Pattern = EVERYTHING,
    count: Annotated[int, typer.Option("-n", "--count", help="So many of the last.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay, and show what comes.")] = False,
    json: AsJson = False,
) -> None:
    """The last messages, and with --follow those that come."""
    with Reader(directory) as reader:
        after = reader.last()
        for message in reader.tail(pattern, count):
            _print(message, json)
        while follow:
            for message in reader.messages(pattern, first=after + 1):
                after = message.seq
                _print(message, json)
            time.sleep(POLL_S)


def _print(message: Any, json: bool) -> None:
    if json:
        show.json(show.record(message))
    else:
        show.out.print(show.line(message), markup=False)


@app.command()
def replay(
    directory: Directory,
    pattern: Pattern = EVERYTHING,
    dead: Annotated[
        bool, typer.Option("--dead", help="Dead letters: their subscribers get them when they next start.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="Publish messages again into the journal in this directory.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="With --into: below this topic, instead of where they were.")] = None,
    subscriber: Annotated[str | None, typer.Option(help="With --dead: only those of this subscriber.")] = None,
    cause: Annotated[Cause | None, typer.Option(help="With --dead: only those with this cause.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="With --dead: only this message.")] = None,
    first: First = 1,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    rate: Annotated[float | None, typer.Option(help="With --into: at most so many messages a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be replayed.")] = False,
    json: AsJson = False,
) -> None:
    """Give dead letters back to those who failed, or publish a range of messages again.

    A program that uses the journal replays with bus.replay_dead() and bus.replay(); this is for when none does.
    """
    if dead == (into is not None):
        raise UsageError("say what to replay: --dead for dead letters, or --into DIRECTORY for a range of messages")
    if dead:
        _replay_dead(directory, pattern, subscriber, cause, message_id, dry_run, json)
        return
    assert into is not None
    times = {"since": moment(since, "--since"), "until": moment(until, "--until")}

    async def work() -> Any:
        if into.resolve() == directory.resolve() and to is None:
            raise UsageError("into the same journal needs --to: otherwise each message would follow itself")
        async with connect("memory:", journal=into, name="replay") as bus:
            return await bus.replay(
                directory, pattern, first=first, last=last, to=to, per_s=rate, dry_run=dry_run, **times
            )

    done = asyncio.run(work())
    if json:
        show.json(done)
    else:
        show.out.print(str(done))
    if done.failed:
        raise typer.Exit(1)


def _replay_dead(
    directory: Path,
    pattern: str,
    subscriber: str | None,
    cause: Cause | None,
    message_id: str | None,
    dry_run: bool,
    json: bool,
) -> None:
    with Reader(directory) as reader:
        letters = [decode_letter(data) for (data,) in reader.query("SELECT letter FROM dead_letters ORDER BY at_ns")]
    chosen = [
        letter
        for letter in letters
        if matches(pattern, letter.message.topic)
        and subscriber in (None, letter.subscriber)
        and cause in (None, letter.cause)
        and message_id in (None, letter.message.id)
    ]
    if not dry_run and chosen:
        with Journal(directory) as journal:
            journal.replay_dead([(letter.subscriber, letter.message.seq) for letter in chosen])
    if json:
        show.json(
            {
                "dry_run": dry_run,
                "letters": [
                    {"id": letter.message.id, "subscriber": letter.subscriber, "cause": letter.cause.value}
                    for letter in chosen
                ],
            }
        )
        return
    show.table(
        "Dead letters",
        ["died", "subscriber", "topic", "id", "reason"],
        [
            [show.time_of(each.at_ns), each.subscriber, each.message.topic, each.message.id, each.reason[:80]]
            for each in chosen
        ],
    )
    what = "would go back" if dry_run else "go back when their subscribers next start"
    show.out.print(f"{len(chosen):,} dead letters {what}")


@app.command()
def seal(
    directory: Directory,
    everything: Annotated[bool, typer.Option("--all", help="Everything, not only what is due.")] = False,
    json: AsJson = False,
) -> None:
    """Move what is due from the journal to the lake, and join small files."""
    with Journal(directory, threaded=False) as journal:
        sealed = journal.seal(everything=everything)
        joined = journal.tender.join()
        gone = journal.tender.forget_replaced()
    if json:
        show.json({"sealed": sealed, "joined": joined, "deleted": gone})
    else:
        show.out.print(f"{sealed:,} messages sealed, {joined:,} small files joined, {gone:,} replaced files deleted")


@app.command()
def verify(
    directory: Directory,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put aside what is damaged, and keep what can be read of it.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check every batch and every file against its checksum. Ends with 1 if something is damaged."""
    if repair:
        repaired = repair_it(directory)
        if json:
            show.json(repaired)
        else:
            for loss in repaired.lost:
                show.out.print(f"[red]lost[/] {loss.where}: {loss.why}{_numbers(loss.first, loss.last)}")
            for path in repaired.aside:
                show.out.print(f"put aside: {path}")
    with show.progress("verifying") as progress:
        found = verify_it(directory, progress)
    if json:
        show.json(found)
    else:
        show.out.print(
            f"{found.batches:,} batches with {found.messages:,} messages,"
            f" {found.files:,} files with {found.rows:,} rows"
        )
        for finding in found.findings:
            numbers = _numbers(finding.first, finding.last)
            show.out.print(f"[red]damaged[/] {finding.where}: {finding.why}{numbers}")
        if found.quarantined:
            show.out.print(f"{found.quarantined:,} batches are in quarantine")
        show.out.print("[green]all good[/]" if found.good else "next step: trunkline journal verify --repair")
    if not found.good:
        raise typer.Exit(1)


def _numbers(first: int, last: int) -> str:
    return f" (messages {first:,} to {last:,})" if last else ""


@app.command()
def export(
    directory: Directory,
    file: Annotated[Path, typer.Argument(help="Where to: .parquet, .arrow or .jsonl; - for lines of JSON here.")],
    pattern: Pattern = EVERYTHING,
    first: First = 1,
    last: Last = None,
    since: Since = None,
    until: Until = None,
    json: AsJson = False,
) -> None:
    """Copy messages into a file of their own."""
    begin, end = moment(since, "--since"), moment(until, "--until")
    with Reader(directory) as reader:
        if str(file) == "-":
            for message in reader.messages(pattern, first=first, last=last, since=begin, until=end):
                show.json(show.record(message))
            return
        of = reader.count(pattern, first - 1)
        with show.progress("exporting") as progress:
            batches = reader.arrow(pattern, first=first, last=last, since=begin, until=end)
            rows = export_to(file, Format.of(file), _counted(batches, progress, of), show.record)
    if json:
        show.json({"file": str(file), "messages": rows})
    else:
        show.out.print(f"{rows:,} messages in {file}, {show.size(file.stat().st_size)}")


def _counted(batches: Iterator[Any], progress: Any, of: int) -> Iterator[Any]:
    done = 0
    for batch in batches:
        done += batch.num_rows
        progress(done, max(done, of))
        yield batch


@app.command()
def explain(
    directory: Directory,
    message_id: Annotated[str, typer.Argument(help="The id of a message.")],
    json: AsJson = False,
) -> None:
    """What became of a message, for each subscriber."""
    with Reader(directory) as reader:
        message = reader.find(message_id, everywhere=True)
        outcomes = [] if message is None else reader.outcomes(message)
    if json:
        show.json({"message": None if message is None else show.record(message), "outcomes": outcomes})
    elif message is None:
        show.out.print(f"{message_id} is not in this journal")
    else:
        show.out.print(show.line(message), markup=False)
        rows: list[list[object]] = [
            [o.subscriber, o.fate.value, show.time_of(o.at_ns) if o.at_ns else "", o.reason] for o in outcomes
        ]
        show.table("", ["subscriber", "fate", "time", "reason"], rows or [["nobody", "", "", ""]])
    if message is None:
        raise typer.Exit(1)
