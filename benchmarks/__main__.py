"""`python -m benchmarks`: list the cases, run one, or run them all."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence

from benchmarks.cases import CASES, ON_HUB
from benchmarks.harness import BUDGET_S, MAX_ROUNDS, MIN_ROUNDS, Case, run
from benchmarks.hubs import TRANSPORTS, UNIX
from benchmarks.report import as_json, as_table, listing, surroundings

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 also if a target is missed: `met` says so. 2 for wrong usage, 130 for Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.case is not None and options.all:
        parser.error("give a case or --all, not both")
    if options.case is None and not options.all:
        print(listing(CASES))
        return 0
    if options.case is not None and options.case not in CASES:
        nearest = difflib.get_close_matches(options.case, CASES, n=1, cutoff=0.0)[0]
        parser.error(f"unknown case {options.case!r}: did you mean {nearest!r}?")
    if options.transport is not None and not options.all and options.case not in ON_HUB:
        parser.error(f"{options.case!r} uses no transport: those that do are {', '.join(ON_HUB)}")
    chosen = _chosen(list(CASES) if options.all else [options.case], options.transport)
    try:
        for case in chosen:
            result = run(case, surroundings(), budget_s=options.seconds, rounds=options.rounds)
            print(as_json(result) if options.json else as_table(case, result) + "\n", flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    return 0


def _chosen(names: Sequence[str], transport: str | None) -> list[Case]:
    """With a transport, only those that have one."""
    if transport is None or transport == UNIX:
        return [CASES[name] for name in names if transport is None or name in ON_HUB]
    return [ON_HUB[name](transport) for name in names if name in ON_HUB]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("case", nargs="?", help="which case to run; without it, they are listed")
    parser.add_argument("--all", action="store_true", help="run all cases, one after another")
    parser.add_argument("--json", action="store_true", help="print one JSON object per case, on one line")
    parser.add_argument(
        "--seconds",
        type=_positive_float,
        default=BUDGET_S,
        metavar="N",
        help=f"budget per case, 60 by default; {MIN_ROUNDS} rounds are run all the same",
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
