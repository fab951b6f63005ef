"""`trunkline pipeline`: build and query the tables of a warehouse, which Spark makes from journals."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from trunkline.cli import show
from trunkline.cli.options import AsJson, Directory, FirstJournal, Hub, MoreJournals, hub_at, journals_of, moment
from trunkline.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trunkline.spark.pipeline.run import Pipeline
    from trunkline.spark.pipeline.run_report import RunReport

app = typer.Typer(
    help="Build the tables of a warehouse with Spark, query them, and report on them.", no_args_is_help=True
)


@app.callback()
def needs_spark() -> None:
    if None in map(find_spec, ("pyspark", "pyarrow", "pandas")):
        raise MissingExtra("spark", "the pipeline (Spark)")


WarehouseAt = Annotated[
    Path | None, typer.Option(help="The directory of the tables; by default `warehouse` beside the journal's files.")
]
Master = Annotated[
    str | None, typer.Option(help="Spark's master; otherwise $TRUNKLINE_SPARK_MASTER, or all cores here.")
]
From = Annotated[str | None, typer.Option("--from", help="From this time, such as 2026-11-16T10:00:00Z.")]
To = Annotated[str | None, typer.Option("--to", help="Up to this time, which is not included.")]
MAX_ROWS = 100
DAY_S = 86_400


def warehouse_of(journal: Path, warehouse: Path | None) -> Path:
    return warehouse if warehouse is not None else journal / "warehouse"


@contextmanager
def spark_on(master: str | None, *, few_rows: bool = False) -> Iterator[SparkSession]:
    """A Spark session. For few rows, its Java virtual machine starts faster but has a lower peak speed."""
    from trunkline.spark import session
    from trunkline.spark.session.start import FOR_FEW_ROWS

    settings = FOR_FEW_ROWS if few_rows else {}
    if show.shows_progress():
        with show.note.status("Spark starts"):
            spark = session(master, settings=settings)
    else:
        spark = session(master, settings=settings)
    # Spark's handler calls Java to cancel all jobs, at whatever point it interrupts, and prints the result.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        yield spark
    finally:
        spark.stop()


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """A log filter: py4j logs Ctrl-C as an error with a traceback, which is not shown."""
    return not str(record.msg).startswith("KeyboardInterrupt")


@contextmanager
def working(
    journals: list[Path],
    warehouse: Path | None,
    master: str | None,
    *,
    add_journals: bool = False,
    once: bool = True,
    keep_days: float | None = None,
    **settings: Any,
) -> Iterator[Pipeline]:
    """A pipeline that shows its progress, `once` or repeatedly. Spark is started only when there is something to do."""
    from trunkline.spark.pipeline.run import Pipeline
    from trunkline.spark.pipeline.warehouse import Warehouse
    from trunkline.spark.settings import PipelineSettings

    place = warehouse_of(journals[0], warehouse)
    with Warehouse(place) as there:
        if there.manifest.run and settings.get("watermark_s") is None:
            settings["watermark_s"] = there.manifest.watermark_s
    wanted = PipelineSettings(**{name: value for name, value in settings.items() if value is not None})
    if keep_days is not None:
        wanted = msgspec.structs.replace(wanted, keep_s=_keep_s(keep_days, wanted.changing_s))
    with ExitStack() as stack:

        def start(few_rows: bool) -> SparkSession:
            return stack.enter_context(spark_on(master, few_rows=few_rows and once))

        def progress(what: str, done: int, total: int) -> None:
            if not stages:
                stages.append(stack.enter_context(show.stages()))
            stages[0](what, done, total)

        stages: list[Callable[[str, int, int], None]] = []
        with Pipeline(start, journals, place, wanted, progress=progress, add_journals=add_journals) as pipeline:
            yield pipeline


def _keep_s(days: float, least_s: float) -> float:
    if not days * DAY_S >= least_s:
        least = math.ceil(least_s / DAY_S * 1000) / 1000
        raise UsageError(
            f"--keep-days must be at least {least:g}, not {days:g}: hours within the watermark and twice the horizon"
            " of the end of the stream still change"
        )
    return days * DAY_S


@app.command()
def run(
    directory: FirstJournal = None,
    journal: MoreJournals = None,
    warehouse: WarehouseAt = None,
    add_journal: Annotated[
        bool, typer.Option("--add-journal", help="Add a journal that the warehouse does not hold yet.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running and process new messages, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option(help="With --follow: seconds between two checks for new messages.", min=0.1)
    ] = 5.0,
    master: Master = None,
    watermark_s: Annotated[
        float | None, typer.Option(help="How many seconds a publisher's clock may differ from the journal's.", min=0)
    ] = None,
    horizon_s: Annotated[
        float | None, typer.Option(help="How many seconds after a request its response may arrive.", min=0.001)
    ] = None,
    step_rows: Annotated[int | None, typer.Option(help="The number of messages per step.", min=1)] = None,
    keep_days: Annotated[
        float | None, typer.Option(help="Remove hours from the tables that are older than this many days.")
    ] = None,
    delta: Annotated[
        bool | None,
        typer.Option("--delta/--no-delta", help="Keep a Delta log beside each table, for other engines to read."),
    ] = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Skip what cannot be read, and record what was skipped.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Add the new messages of the journal to the tables, once or with --follow continuously.

    Several journals go into one warehouse with --journal A --journal B; the column `journal` says which is which.
    """
    several = journals_of(directory, journal)
    given = {"watermark_s": watermark_s, "horizon_s": horizon_s, "step_rows": step_rows, "skip_damaged": skip_damaged}
    given |= {"delta": delta, "keep_days": keep_days}
    plain = not (follow or add_journal or watermark_s is not None or delta is not None or keep_days is not None)
    if plain and _is_nothing_new(several, warehouse_of(several[0], warehouse), json):
        return
    with working(several, warehouse, master, add_journals=add_journal, once=not follow, **given) as pipeline:
        _show_report(pipeline.run(), json)
        pause = threading.Event()
        while follow:
            pause.wait(every)
            report = pipeline.run()
            if report.steps:
                _show_report(report, json)


def _is_nothing_new(journals: list[Path], warehouse: Path, json: bool) -> bool:
    """Whether the journals have no new messages. This does not import Spark."""
    from trunkline.spark.pipeline.outlook import last_run
    from trunkline.spark.pipeline.run_report import RunReport

    run = last_run(journals, warehouse)
    if run is not None:
        _show_report(RunReport(run, 0, 0, [], 0, 0, 0), json)
    return run is not None


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
        f": {show.counted(report.messages, 'message')}, {show.counted(report.fates, 'row')} of fates, {hours}",
    )
    if report.late:
        show.output(f"  {show.counted(report.late, 'message')} beyond the watermark: placed by the journal's time")
    if report.duplicates:
        show.output(f"  {show.counted(report.duplicates, 'message')} skipped: their ids are duplicates")


@app.command()
def rebuild(
    directory: FirstJournal = None,
    journal: MoreJournals = None,
    warehouse: WarehouseAt = None,
    since: From = None,
    until: To = None,
    master: Master = None,
    json: AsJson = False,
) -> None:
    """Rebuild the tables from bronze, for the hours from --from up to --to.

    Tables that an older version wrote are moved aside, and all hours are built from the journal.
    """
    from trunkline.spark.pipeline.warehouse import Warehouse

    begin, end = _utc(since, "--from"), _utc(until, "--to")
    several = journals_of(directory, journal)
    aside = Warehouse(warehouse_of(several[0], warehouse)).set_aside_older()
    if aside is not None:
        show.notice(f"the tables of an older version are in {aside}: delete them if nobody needs them")
    with working(several, warehouse, master) as pipeline:
        hours = pipeline.rebuild(begin, end) if pipeline.warehouse.manifest.run else pipeline.run().hours
    if json:
        show.json({"hours": hours})
    else:
        show.output(f"{show.counted(len(hours), 'hour')} rebuilt")


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
    upto = f"{show.counted(found.messages, 'message')} of {found.journal}, up to number {found.seq:,}"
    show.output((f"run {found.run}", "bold"), f": {upto}")
    show.output(f"  {behind}")
    if found.upto:
        show.output(f"  the last one was accepted at {found.upto}")
    if found.late or found.duplicates:
        show.output(f"  {found.late:,} beyond the watermark, {found.duplicates:,} duplicate ids skipped")
    for topic, count in found.removed_unread.items():
        what = f": {show.counted(count, 'message')} on {topic}, by retention, before the pipeline read them"
        show.output("  ", ("removed", "red"), what)
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
def vacuum(
    journal: Directory,
    warehouse: WarehouseAt = None,
    older_than_s: Annotated[
        float | None, typer.Option(help="Remove files replaced longer ago than this; by default an hour.", min=0)
    ] = None,
    json: AsJson = False,
) -> None:
    """Remove files that runs have replaced. Does not start Spark."""
    from trunkline.spark.pipeline.warehouse import Warehouse

    place = Warehouse(warehouse_of(journal, warehouse))
    place.look()
    with place:
        count = place.vacuum(older_than_s)
    if json:
        show.json({"files": count})
    else:
        show.output(f"{show.counted(count, 'file')} removed")


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
        from trunkline.spark.pipeline.views import register
        from trunkline.spark.session.query_errors import one_line

        with one_line(register(spark, place)):
            found = spark.sql(query)
            taken = (found.limit(rows + 1) if rows else found).toArrow()
    values = taken.slice(0, rows or None).to_pylist()
    if json:
        for row in values:
            show.json(row, flush=False)
        return
    show.table("", taken.column_names, [[_cell(value) for value in row.values()] for row in values])
    if rows and taken.num_rows > rows:
        show.notice(f"more than {show.counted(rows, 'row')}: --rows 0 shows all")
    elif not values:
        show.notice("no rows")


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return "" if value is None else value if isinstance(value, int) and not isinstance(value, bool) else str(value)


@app.command()
def tables(json: AsJson = False) -> None:
    """List the tables and the meaning of their columns."""
    from trunkline.spark.pipeline.views import described

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
    file: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("trunkline.html"),
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
    rate: Annotated[float | None, typer.Option(help="The maximum number of messages per second.")] = None,
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
            found = await publish(spark, place, query, bus, to=to, per_s=rate, dry_run=dry_run)
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
