"""Charts in SVG: areas and lines over time, bars, a waterfall, and message flows. Pure functions that return text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 28
COLOURS = ("#3b6fb6", "#e08a2e", "#4f9d69", "#b5493f", "#7f6bb3", "#2f9aa0", "#c46a9b", "#8a8f98")
WARN = "#c0392b"


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}"'
        f' xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value: float) -> str:
    """A number as an axis label."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def _steps(highest: float, count: int = 4) -> list[float]:
    """Round numbers from 0 up to at least the highest value."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    return [step * index for index in range(math.ceil(highest / step) + 1)]


class _Frame:
    """The axes of a chart over time."""

    def __init__(self, start_s: int, bin_s: int, bins: int, highest: float, height: int, unit: str) -> None:
        self.height = height
        self.bins = max(bins, 1)
        self.steps = _steps(highest)
        self._start_s = start_s
        self._bin_s = bin_s
        self._unit = unit

    def x(self, index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * index / self.bins

    def y(self, value: float) -> float:
        return self.height - BOTTOM - (self.height - TOP - BOTTOM) * value / self.steps[-1]

    def axes(self) -> list[str]:
        parts = []
        for step in self.steps:
            y = self.y(step)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            parts.append(_text(LEFT - 6, y + 4, number(step) + self._unit, anchor="end", kind="axis"))
        ticks = min(6, self.bins)
        for tick in range(ticks + 1):
            index = self.bins * tick / ticks
            moment = datetime.fromtimestamp(self._start_s + index * self._bin_s, UTC)
            whole = self.bins * self._bin_s > 2 * 86_400
            anchor = "start" if tick == 0 else "end" if tick == ticks else "middle"
            parts.append(
                _text(
                    self.x(index),
                    self.height - 8,
                    f"{moment:%m-%d %H:%M}" if whole else f"{moment:%H:%M}",
                    anchor=anchor,
                    kind="axis",
                )
            )
        return parts


def areas(series: dict[str, list[int]], start_s: int, bin_s: int, title: str) -> str:
    """Stacked areas, with names and totals as tooltips."""
    bins = max((len(values) for values in series.values()), default=0)
    totals = [sum(values[index] for values in series.values()) for index in range(bins)]
    frame = _Frame(start_s, bin_s, bins, max(totals, default=0), 260, "")
    parts = frame.axes()
    below = [0] * bins
    for place, (name, values) in enumerate(series.items()):
        above = [low + value for low, value in zip(below, values, strict=True)]
        # Steps, not slopes: there are no values between two bins.
        top = " ".join(f"{frame.x(at):.1f},{frame.y(value):.1f}" for i, value in enumerate(above) for at in (i, i + 1))
        down = " ".join(
            f"{frame.x(at):.1f},{frame.y(below[i]):.1f}" for i in reversed(range(bins)) for at in (i + 1, i)
        )
        colour = COLOURS[place % len(COLOURS)]
        parts.append(
            f'<polygon points="{top} {down}" fill="{colour}" opacity="0.85">'
            f"<title>{escape(name)}: {sum(values):,}</title></polygon>"
        )
        below = above
    return _svg(frame.height, parts, title)


def lines(series: dict[str, list[float | None]], start_s: int, bin_s: int, title: str, unit: str) -> str:
    bins = max((len(values) for values in series.values()), default=0)
    highest = max((value for values in series.values() for value in values if value is not None), default=0)
    frame = _Frame(start_s, bin_s, bins, highest, 220, unit)
    parts = frame.axes()
    for place, (name, values) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        run: list[str] = []
        for index, value in enumerate([*values, None]):
            if value is not None:
                x, y = frame.x(index + 0.5), frame.y(value)
                run.append(f"{x:.1f},{y:.1f}")
                dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}">'
                parts.append(f"{dot}<title>{escape(name)}: {value:,.2f}{unit}</title></circle>")
                continue
            if len(run) > 1:
                parts.append(f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            run = []
    return _svg(frame.height, parts, title)


def legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><i style="background:{COLOURS[place % len(COLOURS)]}"></i>{escape(name)}</li>'
        for place, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def bars(rows: Sequence[tuple[str, float, str]], title: str, colour: str = COLOURS[0]) -> str:
    """Horizontal bars: a name, a length, and a note for each."""
    row, gap, name_width = 22, 6, 260
    highest = max((value for _, value, _ in rows), default=0) or 1
    parts = []
    for place, (name, value, note) in enumerate(rows):
        y = TOP + place * (row + gap)
        length = max(1.0, (WIDTH - name_width - 150) * value / highest)
        parts.append(_text(name_width - 8, y + row - 7, _short(name, 36), anchor="end"))
        parts.append(
            f'<rect x="{name_width}" y="{y}" width="{length:.1f}" height="{row}" rx="3" fill="{colour}">'
            f"<title>{escape(name)}: {escape(note)}</title></rect>"
        )
        parts.append(_text(name_width + length + 6, y + row - 7, note, kind="axis"))
    return _svg(TOP * 2 + len(rows) * (row + gap), parts, title)


def waterfall(rows: Sequence[tuple[str, float, float, bool]], title: str) -> str:
    """A waterfall: for each row a name, start and end in milliseconds, and whether it failed."""
    row, gap, name_width = 18, 5, 330
    end = max((stop for _, _, stop, _ in rows), default=0) or 1
    begin = min((start for _, start, _, _ in rows), default=0)
    scale = (WIDTH - name_width - 90) / max(end - begin, 1e-9)
    parts = []
    for place, (name, start, stop, failed) in enumerate(rows):
        y = TOP + place * (row + gap)
        x = name_width + (start - begin) * scale
        width = max(3.0, (stop - start) * scale)
        colour = WARN if failed else COLOURS[place % 3]
        parts.append(_text(name_width - 8, y + row - 5, _short(name, 46), anchor="end"))
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{row}" rx="2" fill="{colour}">'
            f"<title>{escape(name)}: {start:,.1f} to {stop:,.1f} ms</title></rect>"
        )
        # For a row without a duration, show its time.
        label = f"{stop - start:,.1f} ms" if stop > start else f"+{start - begin:,.1f} ms"
        parts.append(_text(x + width + 5, y + row - 5, label, kind="axis"))
    return _svg(TOP * 2 + len(rows) * (row + gap), parts, title)


def flows(links: Sequence[tuple[str, str, str, int]], title: str) -> str:
    """Message flows from senders to topics to subscribers; the width is the traffic."""
    columns = [_totals(links, place) for place in range(3)]
    gap, node, top = 8, 12, 26
    most = max((sum(column.values()) for column in columns), default=0) or 1
    tallest = max((len(column) for column in columns), default=1)
    height = max(220, tallest * 34)
    scale = (height - top - gap * tallest) / most
    xs = (170.0, WIDTH / 2 - node / 2, WIDTH - 170.0 - node)
    places: list[dict[str, float]] = []
    parts = [_text(x, 14, text, kind="axis") for x, text in zip(xs, ("senders", "topics", "subscribers"), strict=True)]
    for column_at, column in enumerate(columns):
        y = float(top)
        spots: dict[str, float] = {}
        for name, total in column.items():
            spots[name] = y
            size = max(2.0, total * scale)
            parts.append(
                f'<rect x="{xs[column_at]:.1f}" y="{y:.1f}" width="{node}" height="{size:.1f}"'
                f' fill="{COLOURS[column_at]}">'
                f"<title>{escape(name)}: {total:,}</title></rect>"
            )
            x = xs[column_at] - 6 if column_at == 0 else xs[column_at] + node + 6
            anchor = "end" if column_at == 0 else "start"
            parts.append(_text(x, y + min(size, 14) / 2 + 5, _short(name, 24), anchor=anchor))
            y += size + gap
        places.append(spots)
    bands = []
    for left in (0, 1):
        used: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for pair, total in _pairs(links, left).items():
            size = max(1.0, total * scale)
            y1 = places[left][pair[0]] + used[0].get(pair[0], 0.0)
            y2 = places[left + 1][pair[1]] + used[1].get(pair[1], 0.0)
            used[0][pair[0]] = used[0].get(pair[0], 0.0) + size
            used[1][pair[1]] = used[1].get(pair[1], 0.0) + size
            x1, x2 = xs[left] + node, xs[left + 1]
            middle = (x1 + x2) / 2
            y1, y2 = y1 + size / 2, y2 + size / 2
            path = f"M{x1:.1f},{y1:.1f} C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
            bands.append(
                f'<path d="{path}" class="flow" stroke-width="{size:.1f}">'
                f"<title>{escape(pair[0])} to {escape(pair[1])}: {total:,}</title></path>"
            )
    return _svg(height + 12, [*bands, *parts], title)


def _totals(links: Sequence[tuple[str, str, str, int]], place: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for link in links:
        name = str(link[place])
        found[name] = found.get(name, 0) + link[3]
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _pairs(links: Sequence[tuple[str, str, str, int]], left: int) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for link in links:
        pair = (str(link[left]), str(link[left + 1]))
        found[pair] = found.get(pair, 0) + link[3]
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))
