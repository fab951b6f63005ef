"""`python -m trunkline.spark.tables.document docs/tables.md`: writes the reference of all tables."""

from __future__ import annotations

import sys
from pathlib import Path

from trunkline.spark.tables.catalog import every
from trunkline.spark.tables.table import BuiltTable

HEAD = """# The tables

Made of a journal by [the pipeline](pipeline.md). Times are in UTC. A row lies at its `hour`: that of the message, the
request or the minute it is about. Written by `make tables` from the code that makes them: do not edit.

Beside these there is a table for each channel with a schema, `typed_` and the channel's name: `seq`, `id`, `topic`,
`sender`, `published`, and a column for each field of the schema, for the messages that conform to it. A schema that is
not that of an object with named fields gives one column, `value`. Whole numbers are `bigint`, numbers `double`, texts
with the format `date-time` `timestamp`; values without a Spark type are JSON text. A value that the type of its column
cannot hold is null.

Words that are used below:

- The **horizon** is the setting `horizon_s`, an hour. Where hours are compared it is rounded up to whole hours.
- A **range** is a row of `fates` with `first` below `last`. It is about the messages with these numbers whose topic its
  `pattern` matches. A row with `first` equal to `last` is about that message, whatever its topic.
- A percentile is the value that so many percent are not above (nearest rank), to within 1.1 percent. Negative times
  count as 0. Without values it is null.
- A **sketch** has, in order, each bucket with values, and how many these are. The bucket `n` is for times above
  e^((n - 1) / 50) up to e^(n / 50) microseconds, and -1 for those below one microsecond. Sketches are merged by adding
  the counts of equal buckets. A percentile is the middle of its bucket, e^((n - 0.5) / 50). Without values a sketch is
  null.
"""


def text() -> str:
    parts = [HEAD]
    for layer in ("bronze", "silver", "gold"):
        parts.append(f"## {layer.capitalize()}\n")
        for table in every(()):
            if table.layer != layer:
                continue
            rows = "".join(f"| `{each.name}` | `{each.type}` | {each.meaning} |\n" for each in table.columns)
            rules = "".join(f"- {rule}.\n" for rule in table.rules) if isinstance(table, BuiltTable) else ""
            about = f"{table.about}.\n\n{rules}\n" if rules else f"{table.about}.\n\n"
            parts.append(f"### {table.name}\n\n{about}| column | type | meaning |\n| --- | --- | --- |\n{rows}")
    return "\n".join(parts)


def main() -> int:
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
