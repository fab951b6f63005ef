"""The guide to a fleet is correct: its program runs on every broker, and its table of features matches the brokers."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from trunkline import Feature, MemoryBroker
from trunkline.brokers.engine.broker import ALWAYS, WITH_STORE
from trunkline.brokers.redis.driver import RedisDriver
from trunkline.journal import JournalBroker

GUIDE = Path(__file__).parents[2] / "docs" / "fleet.md"
BEGIN, END = "<!-- features -->\n", "<!-- /features -->"
BROKERS = {
    "`memory:`": MemoryBroker.features,
    "with a journal": JournalBroker.features,
    "hub": frozenset(Feature),
    "`nats:`": WITH_STORE | ALWAYS,
    "`nats:` without JetStream": ALWAYS,
    "`redis:`": RedisDriver.features | ALWAYS,
}


def table() -> str:
    rows = [["feature", *BROKERS], ["---"] * (len(BROKERS) + 1)]
    for feature in Feature:
        rows.append([feature.value, *("yes" if feature in offered else "" for offered in BROKERS.values())])
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |").replace("|  |", "| |") for row in rows)


def test_the_table_of_features_is_what_brokers_state() -> None:
    text = GUIDE.read_text()
    begin = text.index(BEGIN) + len(BEGIN)
    assert text[begin : text.index(END)] == table(), f"write this into {GUIDE.name}:\n{table()}"


SERVERS: dict[str, Callable[[Path], NatsServer | RedisServer]] = {
    "nats": NatsServer,
    "redis": lambda folder: RedisServer("redis", folder),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_the_program_of_the_guide_runs_on(kind: str, tmp_path: Path) -> None:
    code = GUIDE.read_text().partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    body = [node for node in ast.parse(code).body if not isinstance(node, ast.Assert)]
    exec(compile(ast.Module(body, []), str(GUIDE), "exec"), names)
    with SERVERS[kind](tmp_path / kind) as server:
        assert asyncio.run(names["program"](f"{server.url}?connect_s=60&synced=true")) == list(range(100))
