"""Shared by the cases with Spark: a durable hub, and a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.servers import Place, Server, pid_of, process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
_UP = "import sys; from trunkline.cli import main; sys.exit(main())"


@contextmanager
def _hub(folder: Path) -> Iterator[Place]:
    settings = folder / "hub.toml"
    settings.write_text(f'[hub.journal]\ndirectory = "{folder / "journal"}"\n')
    listen = f"unix://{folder / 'hub.sock'}"
    command = [sys.executable, "-c", _UP, "up", "--json", "--listen", listen, "--config", str(settings)]
    with process(command, folder / "hub.log", r'"listening":\["([^"]+)"\]') as ready:
        yield Place(ready[1], pid_of(ready))


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    from trunkline.spark import session

    with session(f"local[{PARTITIONS}]") as spark:
        yield spark


HUB = Server(_hub)
SPARK = Server(_spark)
