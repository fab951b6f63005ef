"""`python -m benchmarks.journal_peers`: measures only the peers of the journal.

Each server is started once. All are measured in rounds with alternating order. A round is long enough to include syncs
that occur once a second. Peers marked `synced` sync before they acknowledge, as the journal does. There are no targets
against them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

import msgspec

from benchmarks import jetstream, redis_stream
from benchmarks.disk import append_p50
from benchmarks.harness import Measure, fit, order, significant, take
from benchmarks.servers import Server, together

INTERRUPTED = 130
ROUNDS = 3
MEASURE_S = 2.0
SIZE = 1000

SERVERS: tuple[Server[str], ...] = (
    jetstream.JETSTREAM,
    jetstream.SYNCED,
    redis_stream.EVERYSEC,
    redis_stream.SYNCED,
)
PEERS: dict[str, tuple[str, Measure]] = {
    "JetStream publish_async": ("messages/s", jetstream.publish_rate),
    "JetStream publish_async, synced": ("messages/s", partial(jetstream.publish_rate, server=jetstream.SYNCED)),
    "Redis XADD": ("messages/s", redis_stream.add_rate),
    "Redis XADD, synced": ("messages/s", partial(redis_stream.add_rate, server=redis_stream.SYNCED)),
    "JetStream pull with ack": ("messages/s", jetstream.replay_rate),
    "append and fdatasync": ("µs, p50", append_p50),
}


class Figures(msgspec.Struct):
    peer: str
    unit: str
    median: float
    rounds: list[float]


def measure(rounds: int, seconds: float, note: Callable[[str], None]) -> list[Figures]:
    """Measure every peer in interleaved rounds. `note` is called with the progress."""
    with together(*SERVERS):
        note("fitting sizes")
        sizes = {name: fit(peer, SIZE, seconds) for name, (_, peer) in PEERS.items()}
        figures = {name: Figures(name, unit, 0.0, []) for name, (unit, _) in PEERS.items()}
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}")
            for name in order(list(PEERS), number):
                figures[name].rounds.append(significant(take(PEERS[name][1], sizes[name]).value))
        for each in figures.values():
            each.median = statistics.median(each.rounds)
        return list(figures.values())


def main() -> int:
    """Exit code 0, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journal_peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    parser.add_argument("--seconds", type=float, default=MEASURE_S, metavar="N", help="about so long per measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object per peer")
    options = parser.parse_args()
    note: Callable[[str], None] = (lambda text: None) if options.json else partial(print, flush=True)
    try:
        for each in measure(options.rounds, options.seconds, note):
            if options.json:
                print(msgspec.json.encode(each).decode())
            else:
                print(f"  {each.peer:33}{each.median:12,.0f} {each.unit:12}{each.rounds}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
