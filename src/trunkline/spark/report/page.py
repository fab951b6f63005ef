"""The HTML page of a report: charts and tables, with its own styles and no external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trunkline.plural import counted
from trunkline.spark.report import svg
from trunkline.spark.report.figures import Figures

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667085; --line: #e3e6ec; --paper: #fff; --card: #f7f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #2c3340; --paper: #12161d; --card: #1a2029; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 32px 24px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 40px 0 8px; }
p { color: var(--soft); margin: 4px 0 12px; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; margin: 20px 0; }
.numbers div { background: var(--card); border-radius: 10px; padding: 12px 14px; }
.numbers b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.numbers span { color: var(--soft); font-size: 13px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12px; } svg text.axis { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .flow { fill: none; stroke: #8aa4c8; opacity: 0.35; }
svg .flow:hover { opacity: 0.8; }
.legend { list-style: none; padding: 0; margin: 6px 0 0; display: flex; flex-wrap: wrap; gap: 4px 16px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
table { width: 100%; border-collapse: collapse; font-size: 13px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
td, th { padding: 6px 8px; border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; } td { overflow-wrap: anywhere; }
.alarm { border-left: 4px solid #c0392b; background: var(--card); padding: 10px 14px; border-radius: 6px; }
.well { border-left: 4px solid #4f9d69; background: var(--card); padding: 10px 14px; border-radius: 6px; }
"""

SLOW_MS = 10_000.0
"""Latencies above this are shown in seconds."""


def page(figures: Figures) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Trunkline: {escape(figures.since)} to {escape(figures.until)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>Traffic of the bus</h1><p>{escape(figures.since)} to {escape(figures.until)} UTC,"
        f" made {escape(figures.made)}</p>",
        _numbers(figures),
        _books(figures),
        _section("Traffic over time", f"Messages in each {_width(figures.bin_s)}, by topic.", _traffic(figures)),
        _section("Latency of requests", _latency_of(figures), _latency(figures)),
        _section("Who talks to whom", "Delivered messages, from senders over topics to subscribers.", _flows(figures)),
        _section("Top talkers", "Senders by messages.", _talkers(figures)),
        _section("A conversation", _which(figures), _waterfall(figures)),
        _section(
            "Dead letters by cause",
            "Each row is one cause: failures with the same traceback are grouped.",
            _dead(figures),
        ),
        _section("Slow consumers", "Minutes with a lag above the limit, or with losses.", _slow(figures)),
        "</body></html>",
    ]
    return "\n".join(parts)


def _section(title: str, about: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2><p>{escape(about)}</p>{body}"


def _nothing(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _width(seconds: int) -> str:
    if seconds < 3600:
        return f"{seconds // 60} min" if seconds != 60 else "minute"
    return f"{seconds / 3600:g} h"


def _numbers(figures: Figures) -> str:
    answered = f"{100 * figures.answered / figures.requests:.1f} %" if figures.requests else "none asked"
    values = (
        (svg.number(figures.messages), "messages"),
        (f"{svg.number(figures.bytes)}B", "of payload"),
        (f"{figures.topics:,}", "topics"),
        (f"{figures.senders:,}", "senders"),
        (svg.number(figures.requests), "requests"),
        (answered, "of requests answered"),
        (f"{figures.dead:,}", "dead letters"),
    )
    return (
        "<div class='numbers'>"
        + "".join(f"<div><b>{escape(a)}</b><span>{b}</span></div>" for a, b in values)
        + "</div>"
    )


def _books(figures: Figures) -> str:
    return _unread(figures) + _alarms(figures)


def _unread(figures: Figures) -> str:
    if not figures.removed:
        return ""
    topics = ", ".join(f"{escape(topic)} ({count:,})" for topic, count in figures.removed.items())
    total = counted(sum(figures.removed.values()), "message")
    why = "retention removed them before the pipeline read them"
    return f"<div class='alarm'><b>{total} are missing here:</b> {why}. {topics}</div>"


def _alarms(figures: Figures) -> str:
    if not figures.alarms:
        return "<div class='well'>The books balance: every message has a fate, or is in flight.</div>"
    rows = [(each.topic, each.subscriber, each.hour, f"{each.unaccounted:,}") for each in figures.alarms]
    table = _table(("topic", "subscriber", "hour", "unaccounted"), rows, numbers=1)
    return f"<div class='alarm'><b>The books do not balance.</b>{table}</div>"


def _traffic(figures: Figures) -> str:
    if not figures.traffic:
        return _nothing("No messages.")
    return svg.areas(figures.traffic, figures.start_s, figures.bin_s, "Traffic over time") + svg.legend(
        list(figures.traffic)
    )


def _latency_of(figures: Figures) -> str:
    """A note on the requests that the chart includes and leaves out."""
    text = f"Time to the first answer, of the {figures.answered:,} requests that were answered, to 1 %."
    others = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(figures.without_latency.items()))
    return f"{text} Not shown: {others}." if others else text


def _latency(figures: Figures) -> str:
    series, unit = figures.latency, "ms"
    found = [value for values in series.values() for value in values if value is not None]
    if not found:
        return _nothing("No answered requests.")
    if max(found) >= SLOW_MS:
        unit = "s"
        series = {
            name: [None if value is None else value / 1000 for value in values] for name, values in series.items()
        }
    picture = svg.lines(series, figures.start_s, figures.bin_s, "Latency of requests", f" {unit}")
    return picture + svg.legend(list(figures.latency))


def _flows(figures: Figures) -> str:
    return svg.flows(figures.links, "Who talks to whom") if figures.links else _nothing("Nothing was delivered.")


def _talkers(figures: Figures) -> str:
    rows = [(each.name, each.messages, f"{each.messages:,} ({svg.number(each.bytes)}B)") for each in figures.talkers]
    return svg.bars(rows, "Top talkers") if rows else _nothing("Nobody spoke.")


def _which(figures: Figures) -> str:
    return f"The one with the most messages: {figures.waterfall_of}" if figures.waterfall else "The one with the most."


def _waterfall(figures: Figures) -> str:
    return svg.waterfall(figures.waterfall, "A conversation") if figures.waterfall else _nothing("There was none.")


def _dead(figures: Figures) -> str:
    if not figures.failures:
        return _nothing("There are none.")
    picture = svg.bars(
        [(f"{each.cause}: {each.reason}", each.letters, f"{each.letters:,}") for each in figures.failures],
        "Dead letters by cause",
        svg.WARN,
    )
    rows = [
        (each.cause, each.reason, each.subscribers, each.first, each.last, f"{each.letters:,}")
        for each in figures.failures
    ]
    return picture + _table(("cause", "reason", "subscribers", "first seen", "last seen", "letters"), rows, numbers=1)


def _slow(figures: Figures) -> str:
    if not figures.slow:
        return _nothing("There are none.")
    rows = [(name, minutes, f"{worst:,.0f} ms", f"{dropped:,}") for name, minutes, worst, dropped in figures.slow]
    return _table(("subscriber", "slow for", "worst p99", "dropped"), rows, numbers=2)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    last = len(columns) - numbers
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if at >= last else ''}>{escape(str(cell))}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
