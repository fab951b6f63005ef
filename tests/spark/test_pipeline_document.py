"""The programs of docs/pipeline.md, in the session of all tests: to start one for each takes longer than they do."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest
from pyspark.sql import SparkSession

from tests.test_docs import ON_SPARK, execute, programs

PROGRAMS = [
    # What the others show is tested elsewhere, too.
    pytest.param(blocks, id=f"line {line}", marks=[pytest.mark.long] if number else [])
    for number, (line, blocks) in enumerate(programs(ON_SPARK))
]


@pytest.mark.parametrize("blocks", PROGRAMS)
def test_code_runs(
    blocks: list[CodeType], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A program ends its session, and with it the Java of all other tests.
    monkeypatch.setattr(spark, "stop", lambda: None)
    execute(blocks)
