"""The topology: senders, topics and subscribers in three layers, with rates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from trunkline.topic import matches
from trunkline.wire.snapshot import HubSnapshot

MAX_NODES = 24
"""The most topics, and the most subscribers, that have nodes of their own. The others share one node."""
OTHERS = "others"
LAYERS = ("senders", "topics", "subscribers")


class TopologyEdge(msgspec.Struct, frozen=True):
    left: str
    right: str
    layer: int
    """0: an edge from a sender to a topic; 1: from a topic to a subscriber."""
    rate: float


class TopologyGraph(msgspec.Struct, frozen=True):
    layers: tuple[list[str], list[str], list[str]]
    """The names of the nodes of each layer, in the order in which they are drawn."""
    edges: list[TopologyEdge]
    hidden: int
    """The number of topics and subscribers in the nodes `others`."""

    def flow(self, layer: int, name: str) -> float:
        """Messages per second through a node. A message counts once, however many subscribers a topic has."""
        coming = sum(each.rate for each in self.edges if each.layer == layer - 1 and each.right == name)
        going = [each.rate for each in self.edges if each.layer == layer and each.left == name]
        return coming or (sum(going) if layer == 0 else max(going, default=0.0))


def topology_of(
    snapshot: HubSnapshot, senders: Mapping[str, Iterable[str]], topic_rate: Callable[[str], float]
) -> TopologyGraph:
    """The topology of a hub. `senders` has the known topics of each sender. Internal topics of the bus are left out."""
    shown = [each.topic for each in snapshot.topics if not each.topic.startswith("_")]
    topics, hidden_topics = _most(shown, topic_rate)
    names = list(dict.fromkeys(each.name for each in snapshot.subscribers if not each.pattern.startswith("_")))
    patterns: dict[str, list[str]] = {}
    for each in snapshot.subscribers:
        patterns.setdefault(each.name, []).append(each.pattern)
    edges: dict[tuple[int, str, str], float] = {}

    def add(layer: int, left: str, right: str, rate: float) -> None:
        edges[layer, left, right] = edges.get((layer, left, right), 0.0) + rate

    wanted = names[:MAX_NODES]
    for topic in shown:
        place, rate = topic if topic in topics else OTHERS, topic_rate(topic)
        who = [sender for sender, of in senders.items() if topic in of]
        for sender in who:
            add(0, sender, place, rate / len(who))
        for name in names:
            if any(matches(pattern, topic) for pattern in patterns[name]):
                add(1, place, name if name in wanted else OTHERS, rate)
    found = [TopologyEdge(left, right, layer, rate) for (layer, left, right), rate in edges.items()]
    lefts = list(dict.fromkeys(each.left for each in found if each.layer == 0))
    rights = [*wanted, *([OTHERS] if len(names) > MAX_NODES else [])]
    middle = [*topics, *([OTHERS] if hidden_topics else [])]
    middle = _ordered(middle, found, 0, lefts)
    rights = _ordered(rights, found, 1, middle)
    return TopologyGraph((lefts, middle, rights), found, hidden_topics + max(0, len(names) - MAX_NODES))


def _most(topics: list[str], rate: Callable[[str], float]) -> tuple[list[str], int]:
    if len(topics) <= MAX_NODES:
        return topics, 0
    # The snapshot has the topics with the most messages first, and the sort keeps that order for equal rates.
    best = sorted(topics, key=lambda topic: -rate(topic))[:MAX_NODES]
    return best, len(topics) - MAX_NODES


def _ordered(nodes: list[str], edges: list[TopologyEdge], layer: int, lefts: list[str]) -> list[str]:
    """Nodes sorted by the mean position of their left neighbours, so that fewer lines cross."""
    at = {name: place for place, name in enumerate(lefts)}

    def place(name: str) -> float:
        found = [at[each.left] for each in edges if each.layer == layer and each.right == name and each.left in at]
        return sum(found) / len(found) if found else len(lefts)

    return sorted(nodes, key=place)
