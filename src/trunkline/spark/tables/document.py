"""`python -m trunkline.spark.tables.document docs/tables.md`: the tables column by column, from what makes them."""

from __future__ import annotations

import sys
from pathlib import Path

from trunkline.spark.tables.catalog import every

HEAD = """# The tables

Made of a journal by [the pipeline](pipeline.md). Times are in UTC. A row lies at its `hour`: that of the message, the
request or the minute it is about. Written by `make tables` from the code that makes them: do not edit.

Beside these there is a table for each channel with a schema, `typed_` and the channel's name: `seq`, `id`, `topic`,
`sender`, `published`, and a column for each field of the schema, for the messages that conform to it.
"""


def text() -> str:
    parts = [HEAD]
    for layer in ("bronze", "silver", "gold"):
        parts.append(f"## {layer.capitalize()}\n")
        for table in every(()):
            if table.layer != layer:
                continue
            rows = "".join(f"| `{each.name}` | `{each.type}` | {each.meaning} |\n" for each in table.columns)
            parts.append(
                f"### {table.name}\n\n{table.about}.\n\n| column | type | meaning |\n| --- | --- | --- |\n{rows}"
            )
    return "\n".join(parts)


def main() -> int:
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
