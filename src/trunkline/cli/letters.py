"""Dead letters of a journal on the command line: list and redeliver them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from trunkline.cli import show
from trunkline.cli.access import owning, reading
from trunkline.delivery.deadletters import Cause, DeadLetter
from trunkline.journal.journal import Journal
from trunkline.journal.ledger import decode_letter, readable
from trunkline.journal.reader import Reader
from trunkline.topic import matches


class LetterFilter(msgspec.Struct, frozen=True):
    """Which dead letters."""

    pattern: str
    subscriber: str | None
    cause: Cause | None
    message_id: str | None

    def holds(self, letter: DeadLetter) -> bool:
        return (
            matches(self.pattern, letter.message.topic)
            and self.subscriber in (None, letter.subscriber)
            and self.cause in (None, letter.cause)
            and self.message_id in (None, letter.message.id)
        )

    def find(self, reader: Reader) -> list[DeadLetter]:
        rows = reader.query("SELECT letter FROM dead_letters ORDER BY at_ns")
        letters = (readable(decode_letter, data, "a dead letter") for (data,) in rows)
        return [letter for letter in letters if letter is not None and self.holds(letter)]


def give_back(directory: Path, choice: LetterFilter, dry_run: bool, json: bool) -> None:
    """Redeliver these dead letters when their subscribers next start, and list them."""
    letters = _give_back(directory, choice, dry_run)
    if json:
        show.json({"dry_run": dry_run, "letters": [as_dict(letter) for letter in letters]})
    else:
        _print(letters, dry_run)


def _give_back(directory: Path, choice: LetterFilter, dry_run: bool) -> list[DeadLetter]:
    if dry_run:
        with reading(directory) as reader:
            return choice.find(reader)
    with (
        owning("stop that process, or call there: await bus.replay_dead(); --dry-run does not need the lock"),
        Journal(directory, threaded=False) as journal,
    ):
        chosen = choice.find(journal.reader)
        journal.replay_dead([(letter.subscriber, letter.message.seq) for letter in chosen])
        return chosen


def as_dict(letter: DeadLetter) -> dict[str, object]:
    """For scripts."""
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


def table(letters: Sequence[DeadLetter]) -> None:
    show.table(
        "Dead letters",
        ["died", "subscriber", "cause", "topic", "id", "reason"],
        [
            [show.time_of(each.at_ns), each.subscriber, each.cause, each.message.topic, each.message.id, each.reason]
            for each in letters
        ],
    )


def _print(letters: list[DeadLetter], dry_run: bool) -> None:
    table(letters)
    if not letters:
        show.output("there are no such dead letters")
    elif dry_run:
        show.output(f"{show.count(len(letters), 'dead letter')} would be redelivered")
    else:
        names = ", ".join(sorted({letter.subscriber for letter in letters}))
        many = show.count(len(letters), "dead letter")
        show.output(f"{many} will be redelivered when the subscriber starts: {names}")
