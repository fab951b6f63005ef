"""Every example runs to its end, quickly, and shows what it says it shows."""

from __future__ import annotations

import ast
import asyncio
import importlib
from pathlib import Path

import pytest

import trunkline as tl
from trunkline.testing.loop import VirtualLoop

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")

# What must be in the output, line by line, in this order.
SHOWS = {
    "basic_usage": [
        "published   orders.placed with priority 75: Order(id='a1', total=9.5)",
        "sent        packer has 2 messages, driver has 1",
        "requested   a1 costs 9.5",
        "dead letter refund on orders.refund: Reject: b2 was never paid",
        "stats       7 messages, 1 failed, 0 pending",
        "  orders.*#1: delivered",
        "  refund: dead (rejected by the handler: Reject: b2 was never paid)",
    ],
    "agent_coordination": [
        "  ann hears from coordinator: you lead the others",
        "30 tasks shared, the squares add up to 8555",
        "  ann did 10",
        "  ben did 10",
        "  cid did 10",
        "  cid hears from coordinator: well done, go home",
    ],
    "hub": [
        "two workers are here, 12 jobs are shared between them",
        "one worker died over a job, and all 12 are done: [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]",
    ],
    "camera": [
        "recorded: 300 frames of (120, 160), none missing; one consumer was killed",
    ],
    "actors": [
        "6 rolls, warm",
        "refused: bricks do not bake",
        "2 loaves, warm",
        "monitor: {'_to.bakery.counter': 2, '_to.bakery.oven': 3, '_to.bakery.cellar': 1}",
        "audit: 5 requests",
        "morgue: ['handler failed', 'no such actor']",
    ],
    "kernel": [
        "the person gets 3 and prints 'mine', the agent gets [1, 2, 3]",
        "the agent errs: AttributeError: 'list' object has no attribute 'push'",
        "line by line: 3",
        "line by line: 1",
        "line by line: 2",
        "5 executions were seen on the bus",
    ],
    "custom_handlers": [
        "refused: card numbers do not travel on this bus",
        "an order of 500 by agent-1 would go by the rules: agents, large",
        "archive orders.new from agent-7",
        "review  {'total': 250, 'country': 'fr'}",
        "review  {'total': 5}",
        "tax     {'total': 250, 'country': 'fr'}",
        "dead letters: [('broken', 2), ('broken', 2)]",
    ],
    "leases": [
        "ann has the camera",
        "ann renew: done",
        "ann release: done",
        "ben has the camera",
        "keeper: the lease of ben has ended",
        "cid has the camera",
        "cid release: done",
        "ben release: too late",
    ],
    "notifier": [
        "notify: CRITICAL oven: smoke",
        "notify: HIGH     oven: 200 degrees and rising",
        "notify: CRITICAL press: hand in the light barrier",
        "5 messages wait in the log, the most urgent first:",
        "  100 hand in the light barrier",
        "   25 door closed",
        "notifier: 5 offered, 2 filtered out, 3 delivered",
    ],
    "runner": [
        "runs.started  measure ",
        "runs.started  divide  ",
        "runs.started  sleep   ",
        "runs.failed   divide  ZeroDivisionError('nothing to divide by')",
        "runs.finished measure ",
        "stop sleep: True",
        "results: ['measure done', None, None]",
        "stop sleep: False for it is runs.stopped",
    ],
    "observers": [
        "audit:",
        "   1 PUBLISH  shop -> orders.placed",
        "   3 DIRECT   shop -> packer",
        "   4 REQUEST  shop -> prices",
        "dead letters:",
        "  bill: ValueError: no invoice has the number 13 (_dead.orders.placed: 13)",
    ],
    "threads": [
        "door: 300 sent, 300 arrived, each sensor in order: True",
        "blocking: the squares [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]",
        "blocking: it rains",
        "blocking: balanced True, left unfinished []",
    ],
    "durable": [
        "  a1: packed a tea",
        "  a2: packed a cup",
        "  a3: begun, and then the power goes",
        "  on disk: a1 delivered, a2 delivered, a3 in flight, a4 in flight, a5 in flight",
        "  a3: packed a tea",
        "  a5: packed a cup",
        "  on disk: a1 delivered, a2 delivered, a3 delivered, a4 dead, a5 delivered",
        "  a4: packed a hat",
        "  1 dead letter replayed",
        "  on disk: a1 delivered, a2 delivered, a3 delivered, a4 delivered, a5 delivered",
    ],
    "shop": [
        "  orders placed, each priced by request  60",
        "  billed at the second attempt           6",
        "  cause                                  invalid payload",
        "  replayed to it alone, and now          delivered",
        "  claimed by its request                 {'tea': 120}",
        "    billing: delivered",
        "    dashboard: dropped (drop_oldest: the inbox is full (10))",
        "  the slow dashboard still got           10 orders, the last is 61",
        "The books balance.",
    ],
}


ON_VIRTUAL_TIME = {"leases"}
"""Their story is about who is in time. Virtual time makes it the same story on a busy machine."""


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_example(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    main = importlib.import_module(f"examples.{name}").main
    with asyncio.Runner(loop_factory=VirtualLoop if name in ON_VIRTUAL_TIME else None) as runner:
        result = runner.run(main())
    assert result == (0 if name == "shop" else None)
    lines = iter(capsys.readouterr().out.splitlines())
    for wanted in SHOWS[name]:
        # `in` continues after the last line found, so the order is checked as well.
        assert wanted in lines, f"examples/{name}.py does not show {wanted!r}, or not after the line before"


def test_the_shop_fails_if_the_books_do_not_balance(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    shop = importlib.import_module("examples.shop")
    monkeypatch.setattr(shop, "MEASURE_S", 0.01)
    monkeypatch.setattr(tl.Account, "balanced", property(lambda account: False))
    assert asyncio.run(shop.main()) == 1
    assert capsys.readouterr().out.endswith("The books DO NOT balance.\n")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_use_public_names_only(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) < {"shop": 151, "camera": 85}.get(path.stem, 60)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("trunkline"), "import trunkline as tl, and use its names"
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("trunkline.") for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tl":
            assert hasattr(tl, node.attr), f"trunkline has no {node.attr}"
