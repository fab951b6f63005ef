"""SQL errors in one line, with the nearest name. Spark's own text is a page long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from trunkline.errors import UsageError

NO_TABLE, NO_COLUMN = "TABLE_OR_VIEW_NOT_FOUND", "UNRESOLVED_COLUMN"
PREFIX = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
STATE = re.compile(r"\.? SQLSTATE: \w+")


@contextmanager
def one_line(tables: Iterable[str]) -> Iterator[None]:
    """An error of a query over these tables, as a UsageError."""
    # PySpark logs the error with Java's stack before it can be caught.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    try:
        yield
    except PySparkException as error:
        raise UsageError(_said(error, list(tables))) from error


def _said(error: PySparkException, tables: list[str]) -> str:
    condition, values = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith(NO_TABLE):
        name = values.get("relationName", "").replace("`", "")
        return f"there is no table {name}{nearest(name, tables) or '.'} `trunkline pipeline tables` lists them"
    if condition.startswith(NO_COLUMN):
        name = values.get("objectName", "").replace("`", "")
        there = [each.strip(" `").rpartition(".")[2].strip("`") for each in values.get("proposal", "").split(",")]
        return f"there is no column {name}{nearest(name, there) or '.'} `trunkline pipeline tables` lists them"
    return STATE.sub("", PREFIX.sub("", str(error).strip().splitlines()[0]))


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean messages?`, or an empty text if no name is similar."""
    found = get_close_matches(name.rpartition(".")[2].lower(), list(known), 1, 0.6)
    return f": did you mean {found[0]}?" if found else ""
