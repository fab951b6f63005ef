"""`python -m benchmarks.hub_cost`: the cost of a message in each process, for the case `hub` and its peers.

Shows the processor time in microseconds of the publisher, of the hub or the peer's server, and of the subscriber, each
from the moment it is ready. With fewer cores than processes, the sum limits the rate; otherwise the highest. Linux
only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.hub import pairs
from benchmarks.hubs import TRANSPORTS, UNIX
from benchmarks.processes import Crew, crew
from benchmarks.servers import together
from benchmarks.traffic import Pair, carry

INTERRUPTED = 130
ROUNDS = 3
MESSAGES = 200_000


class Cost(NamedTuple):
    """Microseconds per message."""

    took: float
    publisher: float
    server: float
    subscriber: float


def cost(count: int, pair: Pair, workers: Crew) -> Cost:
    with pair.server.running() as place:
        before_s = cpu_s(place.pid)
        publisher, subscriber = carry(pair, workers, count)
        server_s = cpu_s(place.pid) - before_s
    took_s = (subscriber.value - publisher.value) / 1e9
    return Cost(*(each * 1e6 / count for each in (took_s, publisher.cpu_s, server_s, subscriber.cpu_s)))


def cpu_s(pid: int) -> float:
    """The processor time of a process so far, in steps of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(transport: str, rounds: int, count: int) -> dict[str, Cost]:
    """The medians of each side, from interleaved rounds after a warm-up round."""
    sides = pairs(transport)
    workers = crew(2)
    found: dict[str, list[Cost]] = {name: [] for name in sides}
    with together(workers, *{pair.server for pair in sides.values()}):
        for number in range(rounds + 1):
            for name, pair in sides.items():
                each = cost(count if number else min(count, MESSAGES // 10), pair, workers)
                if number:
                    found[name].append(each)
    return {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in found.items()}


def main() -> int:
    """Exit code 0, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub_cost", description=__doc__)
    parser.add_argument("--transport", choices=TRANSPORTS, default=UNIX)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N")
    options = parser.parse_args()
    try:
        costs = measure(options.transport, options.rounds, options.messages)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    print(f"  {'µs a message':28}{'took':>8}{'publisher':>11}{'server':>9}{'subscriber':>12}{'sum':>8}")
    for name, each in costs.items():
        total = each.publisher + each.server + each.subscriber
        print(f"  {name:28}{each.took:8.2f}{each.publisher:11.2f}{each.server:9.2f}{each.subscriber:12.2f}{total:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
