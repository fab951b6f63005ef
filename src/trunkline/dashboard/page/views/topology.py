"""The topology: senders, topics and subscribers from left to right, with rates."""

from __future__ import annotations

from html import escape

from nicegui import ui

from trunkline.cli import show
from trunkline.dashboard.page.elements import address, box, card, empty, text
from trunkline.dashboard.page.model.model import PageModel
from trunkline.dashboard.page.model.text import rate
from trunkline.dashboard.page.model.topology import LAYERS, OTHERS, TopologyGraph
from trunkline.dashboard.page.shell import framed

WIDTH, NODE, ROW, TOP = 1180, 260, 36, 34
MAX_CHARS = 34


def register(model: PageModel) -> None:
    @ui.page("/topology")
    def topology() -> None:
        with framed(model, "Topology", "/topology") as shell:
            with card():
                picture = ui.html("", sanitize=False).classes("tl-svg")
                none = box("")
                note = text("", "tl-note")
            with none:
                empty("Nothing has been published yet, and there are no subscribers.")

            async def refresh() -> None:
                model.look()
                graph = await model.topology()
                if graph is None:
                    return
                drawn = any(graph.layers)
                none.set_visibility(not drawn)
                picture.content = draw(graph) if drawn else ""
                note.text = f"{graph.hidden:,} nodes with less traffic are drawn as one" if graph.hidden else ""

            shell.every(1.0, refresh)


def draw(graph: TopologyGraph) -> str:
    """The topology as SVG. Each node has its own row, so that labels do not overlap. All text is escaped."""
    tallest = max(1, *(len(layer) for layer in graph.layers))
    height = TOP + tallest * ROW
    xs = (0, (WIDTH - NODE) // 2, WIDTH - NODE)
    places: list[dict[str, float]] = []
    for layer in graph.layers:
        gap = (height - TOP) / max(1, len(layer))
        places.append({name: TOP + gap * (at + 0.5) for at, name in enumerate(layer)})
    parts = [f'<text x="{x + 8}" y="14" class="h">{name}</text>' for x, name in zip(xs, LAYERS, strict=True)]
    most = max((edge.rate for edge in graph.edges), default=0.0) or 1.0
    for edge in graph.edges:
        y1, y2 = places[edge.layer].get(edge.left), places[edge.layer + 1].get(edge.right)
        if y1 is None or y2 is None:
            continue
        x1, x2 = xs[edge.layer] + NODE, xs[edge.layer + 1]
        middle = (x1 + x2) / 2
        width = 1.2 + 6 * (edge.rate / most) ** 0.5 if edge.rate else 1.0
        title = f"{show.plain(edge.left)} to {show.plain(edge.right)}: {rate(edge.rate)} per second"
        parts.append(
            f'<path d="M{x1},{y1:.1f} C{middle},{y1:.1f} {middle},{y2:.1f} {x2},{y2:.1f}"'
            f' stroke-width="{width:.1f}" opacity="{0.55 if edge.rate else 0.22}"><title>{escape(title)}</title></path>'
        )
    for at, layer in enumerate(graph.layers):
        for name in layer:
            parts.append(_node(at, xs[at], places[at][name], name, graph.flow(at, name)))
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="topology">{"".join(parts)}</svg>'


def _node(layer: int, x: int, y: float, name: str, flow: float) -> str:
    plain = show.plain(name)
    speed = (
        f'<text x="{x + NODE - 10}" y="{y + 4.5:.1f}" text-anchor="end" class="r">{rate(flow)}/s</text>' if flow else ""
    )
    room = MAX_CHARS - (9 if flow else 0)
    # A long name is shortened in the middle: both its beginning and its end are needed to identify it.
    shown = plain if len(plain) <= room else f"{plain[: room // 2 - 1]}…{plain[-(room - room // 2) :]}"
    return (
        f'<a href="{escape(_address(layer, name))}"><title>{escape(plain)}</title>'
        f'<rect class="n" x="{x}" y="{y - 14:.1f}" width="{NODE}" height="28" rx="7"/>'
        f'<text x="{x + 10}" y="{y + 4.5:.1f}">{escape(shown)}</text>{speed}</a>'
    )


def _address(layer: int, name: str) -> str:
    """The address of the view with more about a sender, a topic or a subscriber."""
    if layer == 2:
        return address("/subscribers", filter="" if name == OTHERS else name)
    field = ("text", "topic")[layer]
    return address("/messages", **{field: "" if name == OTHERS else name})
