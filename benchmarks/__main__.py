"""`python -m benchmarks`: list the cases, run some or all, or check that the promises are kept."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from benchmarks import check
from benchmarks.cases import CASES, ON_HUB, promised_cases
from benchmarks.harness import BUDGET_S, MAX_ROUNDS, MIN_ROUNDS, Case, run
from benchmarks.hubs import TRANSPORTS, UNIX
from benchmarks.report import as_json, as_table, listing, surroundings

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if `--check` finds a broken promise; 2 for wrong usage; 130 for Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.cases and options.all:
        parser.error("give cases or --all, not both")
    if options.check:
        return _stoppable(partial(_check, parser, options))
    if options.full:
        parser.error("--full belongs to --check")
    if not options.cases and not options.all:
        print(listing(CASES))
        return 0
    _known(parser, options.cases, CASES)
    for name in options.cases if options.transport is not None else ():
        if name not in ON_HUB:
            parser.error(f"{name!r} uses no transport: those that do are {', '.join(ON_HUB)}")
    chosen = _chosen(options.cases or list(CASES), options.transport)
    return _stoppable(partial(_run, options, chosen))


def _stoppable(work: Callable[[], int]) -> int:
    try:
        return work()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace, cases: Sequence[Case]) -> int:
    for case in cases:
        result = run(case, surroundings(), budget_s=options.seconds or BUDGET_S, rounds=options.rounds)
        print(as_json(result) if options.json else as_table(case, result) + "\n", flush=True)
    return 0


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Progress goes to stderr with `--json`, whose output is one object per promise."""
    if options.transport is not None or options.rounds is not None:
        parser.error("--check has its own rounds, and the transports that something is promised for")
    promised = promised_cases()
    _known(parser, options.cases, CASES | promised)
    for name in options.cases:
        if name not in promised:
            parser.error(f"{name!r} has no target: it is measured, but nothing is promised")
    cases = {name: promised[name] for name in options.cases or promised}
    progress = sys.stderr if options.json else sys.stdout
    note = partial(print, file=progress, flush=True)
    verdicts = check.check(cases, options.seconds or check.CHECK_S, note, full=options.full)
    if options.json:
        for verdict in verdicts:
            print(msgspec.json.encode(verdict).decode())
    else:
        print("\n" + check.table(verdicts))
    return 0 if check.kept(verdicts, named=bool(options.cases)) else 1


def _known(parser: argparse.ArgumentParser, names: Sequence[str], known: Mapping[str, Case]) -> None:
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            parser.error(f"unknown case {name!r}: did you mean {nearest!r}?")


def _chosen(names: Sequence[str], transport: str | None) -> list[Case]:
    """The cases with these names. If a transport is given, only those in ON_HUB."""
    if transport is None or transport == UNIX:
        return [CASES[name] for name in names if transport is None or name in ON_HUB]
    return [ON_HUB[name](transport) for name in names if name in ON_HUB]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help="which cases to run; without any, they are listed")
    parser.add_argument("--all", action="store_true", help="run all cases, one after another")
    parser.add_argument(
        "--check", action="store_true", help="run what has a target; exit with 1 if one is missed by more than a fifth"
    )
    parser.add_argument("--full", action="store_true", help="with --check: also what takes long, and in its full size")
    parser.add_argument("--json", action="store_true", help="print one JSON object per case, on one line")
    parser.add_argument(
        "--seconds",
        type=_positive_float,
        metavar="N",
        help=f"budget per case, {BUDGET_S:g} by default, {check.CHECK_S:g} with --check;"
        f" {MIN_ROUNDS} rounds are run all the same",
    )
    parser.add_argument(
        "--rounds",
        type=_positive_int,
        metavar="N",
        help=f"exactly so many rounds, instead of as many as fit ({MIN_ROUNDS} to {MAX_ROUNDS})",
    )
    parser.add_argument(
        "--transport",
        choices=TRANSPORTS,
        help=f"how clients reach the hub, {UNIX} by default; with --all, only the cases with a hub are run",
    )
    return parser


def _positive_int(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _positive_float(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
