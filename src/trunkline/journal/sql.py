"""SQL over a journal, lake and tail, with DuckDB, for quick queries without Java. Needs the extra `sql`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from trunkline.errors import MissingExtra, UsageError
from trunkline.journal.range import FOREVER
from trunkline.journal.reader import Reader
from trunkline.journal.records import letters
from trunkline.journal.sealed import File

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

TABLES = ("messages", "fates", "dead_letters")
LETTER_COLUMNS = {
    "subscriber": "string",
    "seq": "int64",
    "at": "time",
    "topic": "string",
    "id": "string",
    "cause": "string",
    "reason": "string",
    "error_type": "string",
    "traceback": "string",
    "attempts": "int32",
}


def query(directory: str | Path, sql: str, *, max_rows: int | None = None) -> pa.Table:
    """The rows, or the first rows, of a SELECT over the current `messages`, `fates` and `dead_letters`.

    Raises UsageError for anything but one valid SELECT, and MissingExtra without DuckDB.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("sql", "SQL over a journal (DuckDB)") from error
    with duckdb.connect() as database:
        _prepare(database)
        try:
            _check_is_select(database, sql)
            with Reader(directory) as reader:
                for name in TABLES:
                    _create(database, reader, name, wanted=name in sql.lower())
                found = database.sql(sql)
                return (found if max_rows is None else found.limit(max_rows)).to_arrow_table()
        except duckdb.Error as error:
            raise UsageError(_in_one_line(str(error))) from None


def _prepare(database: duckdb.DuckDBPyConnection) -> None:
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET python_enable_replacements = false")
    database.execute("SET autoinstall_known_extensions = false")


def _check_is_select(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = database.extract_statements(sql)
    if [statement.type.name for statement in statements] != ["SELECT"]:
        raise UsageError("a journal is only read: write one SELECT statement")


def _in_one_line(error: str) -> str:
    """DuckDB's error with its suggestion, without the excerpt of the query."""
    text_of_error = " ".join(error.partition("\nLINE ")[0].split())
    kind, _, text = text_of_error.partition(": ")
    return f"{text or kind} (tables: {', '.join(TABLES)})" if kind == "Catalog Error" else text or kind


def _create(database: duckdb.DuckDBPyConnection, reader: Reader, name: str, *, wanted: bool) -> None:
    """Create a view. Tables that the query does not mention are empty, and exist only for suggestions."""
    if not wanted:
        files: list[File] = []
        tail: list[pa.Table] = []
    elif name == "dead_letters":
        files, tail = [], [_letters(reader)]
    else:
        files, tail = _moment(reader, name)
    empty = _schema(name).empty_table()
    database.register(f"{name}_tail", _table([empty, *tail]))
    parts = [f"SELECT * FROM {name}_tail"]
    if files:
        paths = [str(reader.directory / file.path) for file in files]
        database.read_parquet(paths, union_by_name=True, hive_partitioning=False).create_view(f"{name}_sealed")
        parts.insert(0, f"SELECT * FROM {name}_sealed")
    columns = ", ".join(f'"{column}"' for column in empty.column_names)
    # By name: columns that are missing in a file of an older layout become null.
    database.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM ({' UNION ALL BY NAME '.join(parts)})")


def _table(parts: list[Any]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([part.cast(parts[0].schema) for part in parts])


def _schema(name: str) -> pa.Schema:
    import pyarrow as pa

    from trunkline.journal.lake import SCHEMAS

    if name in SCHEMAS:
        return SCHEMAS[name].remove_metadata()
    kinds = {"string": pa.string(), "int64": pa.int64(), "int32": pa.int32(), "time": pa.timestamp("us", "UTC")}
    return pa.schema([(column, kinds[kind]) for column, kind in LETTER_COLUMNS.items()])


def _moment(reader: Reader, name: str) -> tuple[list[File], list[pa.Table]]:
    """Sealed files and unsealed rows in one snapshot."""
    import pyarrow as pa

    from trunkline.journal import layout

    if name == "fates":
        files, fates = reader.moment_of_fates(0, FOREVER)
        batches: Iterable[pa.RecordBatch] = [layout.of_fates(fates)]
    else:
        files, rows = reader.moment(0, FOREVER)
        batches = layout.of_rows(rows, reader.on_damage)
    return files, [pa.Table.from_batches([batch]) for batch in batches]


def _letters(reader: Reader) -> pa.Table:
    import pyarrow as pa

    schema = _schema("dead_letters")
    rows = [{**asdict(each), "at": each.at_ns // 1000} for each in letters(reader, 0, FOREVER)]
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
