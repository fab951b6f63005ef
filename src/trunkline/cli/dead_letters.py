"""Dead letters: of a hub or an engine (`trunkline dead-letters`), of a journal (`trunkline journal replay --dead`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.brokers.store import KeptDeadLetter, KeptDeadLetters
from trunkline.cli import show
from trunkline.cli.access import owning, reading
from trunkline.cli.options import AsJson, Hub, hub_at
from trunkline.connect import connect_engine, connect_hub, is_engine
from trunkline.delivery.dead_letters import Cause, Choice, DeadLetter
from trunkline.hub.serve import run
from trunkline.journal.dead_letters import letters_in
from trunkline.journal.journal import Journal
from trunkline.journal.reader import Reader
from trunkline.topic import EVERYTHING, validate_pattern
from trunkline.wire.control import LetterFailure

app = typer.Typer(
    help="The dead letters that a hub keeps in its journal, or a NATS or Redis server.", no_args_is_help=True
)

T = TypeVar("T")
CONNECT_S = 2.0
Subscriber = Annotated[str | None, typer.Option(help="Only those of this subscriber.")]
Topic = Annotated[str, typer.Option(help="Only those on topics that match.", metavar="PATTERN")]
WhyDead = Annotated[Cause | None, typer.Option(help="Only those with this cause.")]


def ask(hub: str, question: Callable[[KeptDeadLetters], Awaitable[T]]) -> T:
    """Run a query on a hub or an engine. Raises HubUnavailable if nothing answers there.

    Prints a notice if it keeps no dead letters.
    """
    url = hub_at(hub)

    async def work() -> T:
        if is_engine(url):
            async with connect_engine(url, name="trunkline", engine=EngineSettings(connect_s=CONNECT_S)) as engine:
                if not await engine.dead_letters.keeps():
                    show.notice("this server keeps no dead letters: enable JetStream on it")
                return await question(engine.dead_letters)
        async with connect_hub(url, name="trunkline", connection=ConnectionSettings(connect_s=CONNECT_S)) as broker:
            if not await broker.dead_letters.keeps():
                show.notice("this hub keeps no dead letters: start it with a journal, trunkline up --journal DIRECTORY")
            return await question(broker.dead_letters)

    return run(work())


@app.command("list")
def list_letters(
    subscriber: Subscriber = None,
    topic: Topic = EVERYTHING,
    cause: WhyDead = None,
    rows: Annotated[int, typer.Option("--rows", "-n", help="Show at most this many, the oldest first.", min=1)] = 100,
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """List dead letters, oldest first, on topics that you may subscribe to."""
    validate_pattern(topic)
    found = ask(
        hub,
        # One more row than is shown, to find out whether there are more.
        lambda letters: letters.find(subscriber=subscriber, topic=topic, cause=cause, limit=rows + 1, brief=True),
    )
    if json:
        for each in found[:rows]:
            show.json(_as_dict(each))
    else:
        _table([each.letter for each in found[:rows]])
    if len(found) > rows:
        show.notice(f"there are more than {rows:,}: raise --rows, or narrow the selection")


@app.command("show")
def show_letter(
    message_id: Annotated[str, typer.Argument(help="The id of the message.", metavar="ID")],
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """Show a dead letter in full: cause, attempts and traceback, once for each subscriber that failed."""
    found = ask(hub, lambda letters: letters.find(message_id=message_id))
    if not found:
        show.notice(f"there is no dead letter {message_id}: `trunkline dead-letters list` lists all of them")
        raise typer.Exit(1)
    for each in found:
        if json:
            show.json(_as_dict(each) | _rest(each))
        else:
            _print(each)


@app.command()
def replay(
    message_id: Annotated[str | None, typer.Argument(help="Only this message.", metavar="ID")] = None,
    subscriber: Subscriber = None,
    topic: Topic = EVERYTHING,
    cause: WhyDead = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be replayed, and change nothing.")
    ] = False,
    hub: Hub = "",
    json: AsJson = False,
) -> None:
    """Redeliver dead letters to the subscribers that failed: durable subscriptions, and connected members of groups.

    A durable subscription that is not connected gets its letters when it reconnects. The dead letters of a plain
    subscriber can only be replayed in its own process, with bus.replay_dead(). Exits with 1 if one was not replayed.
    """
    validate_pattern(topic)

    async def work(letters: KeptDeadLetters) -> tuple[list[KeptDeadLetter], list[LetterFailure]]:
        chosen = await letters.find(message_id=message_id, subscriber=subscriber, topic=topic, cause=cause, brief=True)
        return chosen, [] if dry_run else await letters.replay([each.letter for each in chosen])

    chosen, failures = ask(hub, work)
    if json:
        show.json({"dry_run": dry_run, "letters": [_as_dict(each) for each in chosen], "failures": failures})
    else:
        _show_replayed(chosen, failures, dry_run)
    if failures:
        raise typer.Exit(1)


def _show_replayed(chosen: Sequence[KeptDeadLetter], failures: Sequence[LetterFailure], dry_run: bool) -> None:
    _table([each.letter for each in chosen])
    for failure in failures:
        show.notice(f"message {failure.seq} was not replayed: {failure.text}")
    count = sum(each.returns for each in chosen) if dry_run else len(chosen) - len(failures)
    if dry_run and chosen:
        show.output(f"{show.counted(count, 'dead letter')} would be redelivered")
    elif chosen:
        show.output(f"{show.counted(count, 'dead letter')} redelivered")


# Output


def _table(found: Sequence[DeadLetter]) -> None:
    _rows(found)
    if not found:
        show.output("there are none")


def _as_dict(kept: KeptDeadLetter) -> dict[str, Any]:
    return {**_summary(kept.letter), "attempts": kept.letter.message.attempts, "returns": kept.returns}


def _rest(kept: KeptDeadLetter) -> dict[str, Any]:
    letter = kept.letter
    return {
        "error_type": letter.error_type,
        "traceback": letter.traceback,
        "history": [
            {"attempt": each.number, "time": show.time_of(each.at_ns), "error": each.error} for each in letter.attempts
        ],
        "whole": kept.whole,
        "message": show.record(letter.message),
    }


def _print(kept: KeptDeadLetter) -> None:
    letter = kept.letter
    show.output((letter.subscriber, "bold"), f" failed on {letter.message.id} on {letter.message.topic}")
    show.output(show.line(letter.message) if kept.whole else "the message is too large to be shown")
    show.output(f"{show.time_of(letter.at_ns)}  {letter.cause}: {letter.reason}")
    for each in letter.attempts:
        show.output(f"  attempt {each.number}  {show.time_of(each.at_ns)}  {each.error}")
    for line in letter.traceback.splitlines():
        show.output(f"  {line}")
    show.output("it can be redelivered" if kept.returns else "it cannot be redelivered from here: no such subscription")
    show.output()


# In a journal


def _find(reader: Reader, choice: Choice) -> list[DeadLetter]:
    return [letter for letter in letters_in(reader) if choice.holds(letter)]


def give_back(directory: Path, choice: Choice, dry_run: bool, json: bool) -> None:
    """Redeliver these dead letters when their subscribers next start, and list them."""
    letters = _give_back(directory, choice, dry_run)
    if json:
        show.json({"dry_run": dry_run, "letters": [_summary(letter) for letter in letters]})
    else:
        _print_given_back(letters, dry_run)


def _give_back(directory: Path, choice: Choice, dry_run: bool) -> list[DeadLetter]:
    if dry_run:
        with reading(directory) as reader:
            return _find(reader, choice)
    with (
        owning("stop that process, or call there: await bus.replay_dead(); --dry-run does not need the lock"),
        Journal(directory, threaded=False) as journal,
    ):
        chosen = _find(journal.reader, choice)
        journal.replay_dead([letter.key for letter in chosen])
        return chosen


def _summary(letter: DeadLetter) -> dict[str, object]:
    """A dead letter as a record for JSON output."""
    message = letter.message
    return {
        "id": message.id,
        "seq": message.seq,
        "topic": message.topic,
        "subscriber": letter.subscriber,
        "cause": letter.cause.value,
        "reason": letter.reason,
        "died": show.time_of(letter.at_ns),
    }


def _rows(letters: Sequence[DeadLetter]) -> None:
    show.table(
        "Dead letters",
        ["died", "subscriber", "cause", "topic", "id", "reason"],
        [
            [show.time_of(each.at_ns), each.subscriber, each.cause, each.message.topic, each.message.id, each.reason]
            for each in letters
        ],
    )


def _print_given_back(letters: list[DeadLetter], dry_run: bool) -> None:
    _rows(letters)
    if not letters:
        show.output("there are no such dead letters")
    elif dry_run:
        show.output(f"{show.counted(len(letters), 'dead letter')} would be redelivered")
    else:
        names = ", ".join(sorted({letter.subscriber for letter in letters}))
        many = show.counted(len(letters), "dead letter")
        show.output(f"{many} will be redelivered when the subscriber starts: {names}")
