"""`trunkline pipeline`: the tables of a warehouse, made of a journal by Spark."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Directory, Hub, hub_at, moment
from trunkline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trunkline.spark.pipeline.run import Pipeline, RunReport

app = typer.Typer(
    help="Build the tables of a warehouse with Spark, query them, and report on them.", no_args_is_help=True
)

WarehouseAt = Annotated[
    Path | None, typer.Option(help="The directory of the tables; by default `warehouse` beside the journal's files.")
]
Master = Annotated[
    str | None, typer.Option(help="Spark's master; otherwise $TRUNKLINE_SPARK_MASTER, or all cores here.")
]
From = Annotated[str | None, typer.Option("--from", help="From this time, such as 2026-11-16T10:00:00Z.")]
To = Annotated[str | None, typer.Option("--to", help="Up to this time, which is not included.")]
MAX_ROWS = 100


def warehouse_of(journal: Path, warehouse: Path | None) -> Path:
    return warehouse if warehouse is not None else journal / "warehouse"


@contextmanager
def spark_on(master: str | None) -> Iterator[SparkSession]:
    from trunkline.spark import session

    if show.shows_progress():
        with show.note.status("Spark starts"):
            spark = session(master)
    else:
        spark = session(master)
    # Spark's own handler asks Java to cancel everything, from wherever it interrupts, and says what came of that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        yield spark
    finally:
        spark.stop()


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """The gateway to Java logs a Ctrl-C as an error, with a traceback."""
    return not str(record.msg).startswith("KeyboardInterrupt")


@contextmanager
def working(journal: Path, warehouse: Path | None, master: str | None, **settings: Any) -> Iterator[Pipeline]:
    """A pipeline with a progress bar. Raises WarehouseLocked before Spark starts if another pipeline is running."""
    from trunkline.spark.pipeline.settings import PipelineSettings
    from trunkline.spark.pipeline.warehouse import Warehouse

    place = warehouse_of(journal, warehouse)
    # Taken and given back: whoever must wait should not wait for Spark first.
    with Warehouse(place) as there:
        if there.manifest.run and settings.get("watermark_s") is None:
            settings["watermark_s"] = there.manifest.watermark_s
    wanted = PipelineSettings(**{name: value for name, value in settings.items() if value is not None})
    with spark_on(master) as spark, show.stages() as stage:
        from trunkline.spark.pipeline.run import Pipeline

        with Pipeline(spark, journal, place, wanted, progress=stage) as pipeline:
            yield pipeline


@app.command()
def run(
    journal: Directory,
    warehouse: WarehouseAt = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running and process new messages, until Ctrl-C.")
    ] = False,
    every_s: Annotated[
        float, typer.Option(help="With --follow: seconds between two checks for new messages.", min=0.1)
    ] = 5.0,
    master: Master = None,
    watermark_s: Annotated[
        float | None, typer.Option(help="How many seconds a publisher's clock may differ from the journal's.")
    ] = None,
    horizon_s: Annotated[
        float | None, typer.Option(help="How many seconds after a request its response may arrive.")
    ] = None,
    step_rows: Annotated[int | None, typer.Option(help="The number of messages per step.", min=1)] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Skip what cannot be read, and record what was skipped.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Add the new messages of the journal to the tables, once or with --follow continuously."""
    given = {"watermark_s": watermark_s, "horizon_s": horizon_s, "step_rows": step_rows, "skip_damaged": skip_damaged}
    with working(journal, warehouse, master, **given) as pipeline:
        _show_report(pipeline.run(), json)
        pause = threading.Event()
        while follow:
            pause.wait(every_s)
            report = pipeline.run()
            if report.steps:
                _show_report(report, json)


def _show_report(report: RunReport, json: bool) -> None:
    if json:
        show.json(report._asdict())
        return
    if not report.steps:
        show.output("nothing new")
        return
    hours = f"{report.hours[0]} to {report.hours[-1]}" if report.hours else "no hours"
    show.output(
        (f"run {report.run}", "bold"),
        f": {show.count(report.messages, 'message')}, {show.count(report.fates, 'row')} of fates, {hours}",
    )
    if report.late:
        show.output(f"  {show.count(report.late, 'message')} beyond the watermark: placed by the journal's time")
    if report.duplicates:
        show.output(f"  {show.count(report.duplicates, 'message')} skipped: their ids are duplicates")


@app.command()
def rebuild(
    journal: Directory,
    warehouse: WarehouseAt = None,
    since: From = None,
    until: To = None,
    master: Master = None,
    json: AsJson = False,
) -> None:
    """Rebuild the tables from bronze, for the hours from --from up to --to."""
    begin, end = _utc(since, "--from"), _utc(until, "--to")
    with working(journal, warehouse, master) as pipeline:
        hours = pipeline.rebuild(begin, end)
    if json:
        show.json({"hours": hours})
    else:
        show.output(f"{show.count(len(hours), 'hour')} rebuilt")


def _utc(text: str | None, option: str) -> Any:
    when = moment(text, option)
    if when is None:
        return None
    from datetime import UTC

    return when.astimezone(UTC).replace(tzinfo=None)


@app.command()
def status(journal: Directory, warehouse: WarehouseAt = None, json: AsJson = False) -> None:
    """Show how far the tables are behind the journal, and what each holds. Does not start Spark."""
    from trunkline.spark.pipeline.status import status as status_of

    found = status_of(journal, warehouse_of(journal, warehouse))
    if json:
        show.json(found)
        return
    behind = (
        f"{found.behind:,} behind the journal, {found.lag_s:,.1f} s" if found.behind else "nothing new in the journal"
    )
    show.output((f"run {found.run}", "bold"), f": {show.count(found.messages, 'message')}, up to number {found.seq:,}")
    show.output(f"  {behind}")
    if found.upto:
        show.output(f"  the last one was accepted at {found.upto}")
    if found.late or found.duplicates:
        show.output(f"  {found.late:,} beyond the watermark, {found.duplicates:,} duplicate ids skipped")
    for each in found.left_out:
        show.output("  ", ("left out", "red"), f": {each.path}, numbers {each.first} to {each.last}: {each.why}")
    show.output()
    show.table(
        "Tables",
        ["table", "from", "to", "hours", "files", "bytes"],
        [[each.table, each.first, each.last, each.hours, each.files, show.size(each.bytes)] for each in found.tables],
        numbers=3,
    )


@app.command()
def sql(
    journal: Directory,
    query: Annotated[str, typer.Argument(help="Such as 'select topic, count(*) from messages group by topic'.")],
    warehouse: WarehouseAt = None,
    rows: Annotated[int, typer.Option(help="The number of rows to show; 0 for all.", min=0)] = MAX_ROWS,
    master: Master = None,
    json: AsJson = False,
) -> None:
    """Query the tables with SQL: each is a view. `trunkline pipeline tables` lists them with their columns."""
    from trunkline.spark.pipeline.warehouse import Warehouse

    place = warehouse_of(journal, warehouse)
    Warehouse(place).look()
    with spark_on(master) as spark:
        from pyspark.errors import AnalysisException, ParseException

        from trunkline.spark.tables.views import register

        register(spark, place)
        try:
            found = spark.sql(query)
            taken = (found.limit(rows + 1) if rows else found).toArrow()
        except (AnalysisException, ParseException) as error:
            raise UsageError(str(error).splitlines()[0]) from None
    values = taken.slice(0, rows or None).to_pylist()
    if json:
        for row in values:
            show.json(row, flush=False)
        return
    show.table("", taken.column_names, [[_cell(value) for value in row.values()] for row in values])
    if rows and taken.num_rows > rows:
        show.notice(f"more than {rows} rows: --rows 0 shows all")
    elif not values:
        show.notice("no rows")


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return "" if value is None else value if isinstance(value, int) and not isinstance(value, bool) else str(value)


@app.command()
def tables(json: AsJson = False) -> None:
    """List the tables and the meaning of their columns."""
    from trunkline.spark.tables.views import described

    for each in described():
        if json:
            columns = [column._asdict() for column in each.columns]
            show.json({"table": each.name, "layer": each.layer, "about": each.about, "columns": columns})
            continue
        show.output((each.name, "bold"), f" ({each.layer}): {each.about}")
        show.table("", ["column", "type", "meaning"], [[*column] for column in each.columns])


@app.command()
def report(
    journal: Directory,
    warehouse: WarehouseAt = None,
    file: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("trunkline.html"),
    since: From = None,
    until: To = None,
    master: Master = None,
    json: AsJson = False,
) -> None:
    """Write a report as one self-contained HTML file: traffic, latency, failures, and message flows."""
    from trunkline.spark.pipeline.warehouse import Warehouse

    place = warehouse_of(journal, warehouse)
    Warehouse(place).look()
    begin, end = _utc(since, "--from"), _utc(until, "--to")
    with spark_on(master) as spark:
        from trunkline.spark.report import report as write

        path = write(spark, place, file, since=begin, until=end)
    if json:
        show.json({"file": str(path)})
    else:
        show.output(f"{path} written: {show.size(path.stat().st_size)}")


@app.command()
def replay(
    journal: Directory,
    query: Annotated[str, typer.Argument(help="An SQL query that returns message numbers in a column `seq`.")],
    warehouse: WarehouseAt = None,
    hub: Hub = "",
    to: Annotated[
        str | None, typer.Option(help="Publish below this topic, so that other subscribers do not get it.")
    ] = None,
    per_s: Annotated[float | None, typer.Option(help="The maximum number of messages per second.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which messages it would be, and publish nothing.")
    ] = False,
    master: Master = None,
    json: AsJson = False,
) -> None:
    """Publish the messages that a query selects again, in order, through a hub."""
    import asyncio

    from trunkline.connect import connect
    from trunkline.spark.pipeline.warehouse import Warehouse

    place = warehouse_of(journal, warehouse)
    Warehouse(place).look()

    async def work(spark: SparkSession) -> Any:
        from trunkline.spark.replay import replay as publish

        address = "memory:" if dry_run else hub_at(hub)
        async with connect(address, name="replay") as bus:
            found = await publish(spark, place, query, bus, to=to, per_s=per_s, dry_run=dry_run)
            await bus.flush()
            return found

    with spark_on(master) as spark:
        done = asyncio.run(work(spark))
    if json:
        show.json(done)
    else:
        show.output(str(done))
    if done.failed:
        raise typer.Exit(1)
