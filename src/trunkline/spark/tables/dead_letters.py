"""Dead letters: messages that could not be handled. Dead letters of one bug have the same fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.delivery.dead_letters import Cause
from trunkline.spark.tables.table import SILVER, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAMES = 5
"""The number of innermost frames of a traceback in a fingerprint."""
CAUSES = "|".join(Cause)


def build(inputs: Inputs) -> DataFrame:
    letter = F.struct("at", "cause", "reason", "error_type", "traceback", "attempts")
    letters = inputs.letters.groupBy("seq", "subscriber").agg(F.max(letter).alias("letter"))
    rows = _deaths(inputs).join(letters, ["seq", "subscriber"], "left")
    rows = rows.select(
        "seq",
        "id",
        "topic",
        "sender",
        "subscriber",
        "published",
        F.col("dead.time").alias("died"),
        "deaths",
        F.coalesce("letter.cause", _cause("dead.reason")).alias("cause"),
        F.coalesce("letter.reason", _reason("dead.reason")).alias("reason"),
        "letter.error_type",
        "letter.traceback",
        "letter.attempts",
        (F.col("fate") == "delivered").alias("replayed"),
        F.when(F.col("fate") == "delivered", F.col("settled")).alias("replayed_at"),
        "hour",
    )
    alike = Window.partitionBy("hour", "fingerprint")
    return rows.withColumn("fingerprint", fingerprint()).withColumns(
        {
            "first_seen": F.min("died").over(alike),
            "last_seen": F.max("died").over(alike),
            "senders": F.array_sort(F.collect_set("sender").over(alike)),
        }
    )


def failures(dead_letters: DataFrame) -> DataFrame:
    """One row per fingerprint, the most frequent first, for any rows of this table. The sample is the latest."""
    latest = F.max_by(F.struct("cause", "error_type", "reason", "traceback"), F.struct("died", "seq", "subscriber"))
    found = dead_letters.groupBy("fingerprint").agg(
        F.count("*").alias("count"),
        F.min("died").alias("first_seen"),
        F.max("died").alias("last_seen"),
        F.array_sort(F.collect_set("sender")).alias("senders"),
        F.array_sort(F.collect_set("subscriber")).alias("subscribers"),
        F.count_if("replayed").alias("replayed"),
        latest.alias("sample"),
    )
    return found.select(*(name for name in found.columns if name != "sample"), "sample.*").orderBy(
        F.desc("count"), "fingerprint"
    )


def fingerprint() -> Expression:
    """A hash of `subscriber`, `cause`, `error_type`, and `traceback` or else `reason`: sixteen hexadecimal digits."""
    where = F.coalesce(F.nullif(_frames("traceback"), F.lit("")), _gist("reason"), F.lit(""))
    parts = (F.coalesce(name, F.lit("")) for name in ("subscriber", "cause", "error_type"))
    return F.substring(F.sha2(F.concat_ws("\n", *parts, where), 256), 1, 16)


def _deaths(inputs: Inputs) -> DataFrame:
    """The deliveries with a fate `dead`, with the last such fate as `dead`, and their number as `deaths`."""
    dead = inputs.fates.where("fate = 'dead' and first = last").groupBy(F.col("first").alias("seq"), "subscriber")
    deaths = dead.agg(F.max(F.struct("number", "reason", "time")).alias("dead"), F.count("*").alias("deaths"))
    return inputs.table("deliveries").join(deaths, ["seq", "subscriber"])


def _cause(text: str) -> Expression:
    """The cause in the text of a fate, `cause: reason`. It is used if the dead letter no longer exists."""
    return F.nullif(F.regexp_extract(text, f"^({CAUSES}): ", 1), F.lit(""))


def _reason(text: str) -> Expression:
    return F.regexp_replace(text, f"^({CAUSES}): ", "")


def _frames(traceback: str) -> Expression:
    # Without directories: the same program can be in another directory on another machine.
    named = F.regexp_replace(traceback, r'File "[^"]*[/\\]', 'File "')
    frames = F.regexp_extract_all(named, F.lit(r'File "([^"]*", line \d+, in [^\n]*)'), F.lit(1))
    return F.concat_ws("\n", F.slice(F.reverse(frames), 1, FRAMES))


def _gist(reason: str) -> Expression:
    """A reason without the parts that differ from message to message: quoted texts, ids, numbers."""
    text = F.regexp_replace(reason, r"""(?<!\w)("[^"]*"|'[^']*')""", "…")
    text = F.regexp_replace(text, r"(?i)\b(0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|(?=[a-f]*[0-9])[0-9a-f]{8,})\b", "…")
    return F.regexp_replace(text, r"\d+", "0")


TABLE = QueryTable(
    "dead_letters",
    SILVER,
    "A row is a message that a subscriber could not handle, also if it was replayed since",
    (
        Column("seq", "bigint", "the number of the message"),
        Column("id", "string", "the message's id"),
        Column("topic", "string", "where it was published"),
        Column("sender", "string", "who published it"),
        Column("subscriber", "string", "the subscriber that failed on it"),
        Column("published", "timestamp", "where the message is placed"),
        Column("died", "timestamp", "when it was given up; if that was several times, the last"),
        Column("deaths", "int", "how often it was given up: more than once if a replay failed"),
        Column("cause", "string", "invalid payload, handler failed, …; null if neither letter nor fate say so"),
        Column("reason", "string", "the last error, of the letter or else of the fate"),
        Column("error_type", "string", "the class of the last error; null without a letter"),
        Column("traceback", "string", "where it was raised; null without a letter"),
        Column("attempts", "int", "how often it was tried; null without a letter"),
        Column("fingerprint", "string", "the same for failures of one subscriber at one place: 16 hexadecimal digits"),
        Column("first_seen", "timestamp", "when the first of this fingerprint and hour died"),
        Column("last_seen", "timestamp", "when the last of them died"),
        Column("senders", "array<string>", "who published messages of this fingerprint and hour"),
        Column("replayed", "boolean", "whether it was delivered in the end"),
        Column("replayed_at", "timestamp", "when that was"),
        Column("hour", "timestamp", "the hour of the message"),
    ),
    build,
    needs=("deliveries",),
    has_rows=lambda contents: "dead" in contents.fates,
    rules=(
        "There is a row for each message and subscriber with a row of `fates` about this message alone that says"
        " `dead`; `deaths` counts these, and `died` is the time of the one with the highest `number`",
        "The letter is the last one by `at`. `replayed` is whether `deliveries` says `delivered` now",
        "Without a letter, `cause` and `reason` are those of the fate: its reason is `cause: reason`",
        "`fingerprint` is the beginning of the SHA-256 of `subscriber`, `cause`, `error_type` (empty if null) and the"
        f" place, joined by line feeds. The place is the last {FRAMES} frames of the traceback, the innermost first,"
        ' a line each, as `shop.py", line 7, in bill`, without the directory. If there are none it is `reason`, in'
        " which quoted texts, UUIDs and hexadecimal numbers are `…`, and other numbers `0`",
    ),
)
