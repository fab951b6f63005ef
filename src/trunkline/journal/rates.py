"""How many messages a journal has accepted over time, and how long deliveries took. For plots.

Sealed messages are counted as if they were spread evenly over the time of their file.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trunkline.journal.reader import Reader

ACCEPTED = "SELECT at_ns / :step, sum(last - first + 1) FROM batches WHERE at_ns >= :since GROUP BY 1"
DELAYS = (
    "SELECT f.at_ns - b.at_ns FROM (SELECT first, at_ns FROM fates WHERE fate = 'delivered' ORDER BY number DESC"
    " LIMIT ?) f JOIN batches b ON b.first = (SELECT max(first) FROM batches WHERE first <= f.first)"
    " WHERE b.last >= f.first"
)


def accepted_over_time(reader: Reader, since_ns: int, step_ns: int) -> dict[int, float]:
    """Messages accepted since then, by the index of their time step."""
    counts: Counter[int] = Counter()
    for step, count in reader.query(ACCEPTED, {"since": since_ns, "step": step_ns}):
        counts[step] += count
    found: dict[int, float] = dict(counts)
    for file in reader.files():
        if file.until_at_ns < since_ns:
            continue
        first, last = file.at_ns // step_ns, file.until_at_ns // step_ns
        for step in range(max(first, since_ns // step_ns), last + 1):
            found[step] = found.get(step, 0.0) + file.rows / (last - first + 1)
    return found


def delivery_delays_ns(reader: Reader, most: int) -> list[int]:
    """The delays of the newest deliveries, sorted: from the commit of a range's first message to its fate."""
    return sorted(max(0, delay) for (delay,) in reader.query(DELAYS, (most,)))
