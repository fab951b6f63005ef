"""docs/tables.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from trunkline.spark.tables import document
from trunkline.spark.tables.catalog import every
from trunkline.spark.tables.document import text

DOCUMENT = Path(__file__).parents[2] / "docs" / "tables.md"


def test_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == text(), "run `make tables`"


def test_every_column_has_a_meaning_and_names_are_unique() -> None:
    tables = every(())
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names)
        assert "hour" in names
        assert all(column.meaning for column in table.columns)


def test_tables_know_nothing_of_the_pipeline_that_makes_them() -> None:
    folder = Path(document.__file__).parent
    found = {
        path.name for path in folder.glob("*.py") if "trunkline.spark.pipeline" in path.read_text(encoding="utf-8")
    }
    assert not found
