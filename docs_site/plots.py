"""Pictures of benchmarks/results.json: how many times as fast as each peer, on a logarithmic scale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from math import log10
from pathlib import Path
from typing import Any

RATIOS = "pictures/ratios.svg"
WIDTH, LABELS, ROW, LINE = 860, 400, 36, 15
LEAST, MOST = 0.5, 300.0


def pictures(root: Path) -> Iterator[tuple[str, str]]:
    found = json.loads((root / "benchmarks" / "results.json").read_text())
    yield RATIOS, ratios(found)


def ratios(found: dict[str, Any]) -> str:
    """A bar for each question and peer. The line is where both are equally fast."""
    rows = [(each, peer, times) for each in found["results"] for peer, times in each["peers"].items()]
    height = ROW * (len(rows) + 1)
    even = _x(1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>How many times as fast as each peer</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (each, peer, times) in enumerate(rows):
        y = ROW * index + 8
        left, right = sorted((even, _x(times)))
        width = max(right - left, 1)
        colour = "#2f6f8f" if times >= 1 else "#b5651d"
        question, peer = escape(each["question"]), escape(f"compared with {peer}")
        parts += [
            f'<text x="{LABELS - 8}" y="{y + 10}" text-anchor="end" fill="#222">{question}</text>',
            f'<text x="{LABELS - 8}" y="{y + 10 + LINE}" text-anchor="end" fill="#666" font-size="12">{peer}</text>',
            f'<rect x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 16}" fill="{colour}"/>',
            f'<text x="{right + 6:.1f}" y="{y + 17}" fill="#222">{times:g} ×</text>',
        ]
    parts += [
        f'<line x1="{even:.1f}" x2="{even:.1f}" y1="4" y2="{height - 26}" stroke="#222"/>',
        f'<text x="{even:.1f}" y="{height - 8}" text-anchor="middle" fill="#222">equally fast</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(times: float) -> float:
    span = log10(MOST) - log10(LEAST)
    return LABELS + (WIDTH - LABELS - 60) * (log10(times) - log10(LEAST)) / span
