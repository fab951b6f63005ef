"""Metrics of a hub and a bus for Prometheus: names by its conventions, bounded labels, counters that never fall."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import trunkline as tl
from tests.hub.hubs import Place, until
from trunkline.dashboard.metrics import export_bus, export_hub
from trunkline.delivery.subscribers import MAX_PATTERNS, OTHER_PATTERNS
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker
from trunkline.testing import Simulation, simulate, world

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")


def values(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels."""
    text = generate_latest(registry).decode()
    return {
        (
            sample.name,
            *(sample.labels[name] for name in ("name", "pattern", "fate") if name in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_hub_exports_what_it_counts() -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        hub = await place.start()
        registry = CollectorRegistry()
        export_hub(hub, registry)
        async with place.bus("one") as one, place.bus("another") as two:
            stream = await two.subscribe("orders.*", name="audit").open()
            dropping = await two.subscribe("orders.placed", capacity=2, overflow="drop_oldest").open()
            for number in range(5):
                await one.publish("orders.placed", number)
            await one.flush()
            for _ in range(5):
                await stream.recv(timeout_s=5)
            await asyncio.sleep(1)
            found = values(registry)
            assert found["trunkline_hub_clients",] == 2
            assert found["trunkline_hub_published_messages_total",] == 5
            assert found["trunkline_deliveries_total", "orders.*", "delivered"] == 5
            assert found["trunkline_deliveries_total", "orders.placed", "dropped"] == 3
            assert found["trunkline_deliveries_in_flight", "orders.placed"] == 2
            await stream.aclose()
            await dropping.aclose()
            await asyncio.sleep(1)
            later = values(registry)
        counters = {key for key in found if key[0].endswith("_total")}
        assert all(later[key] >= found[key] for key in counters)
        assert later["trunkline_deliveries_total", "orders.*", "delivered"] == 5
        await place.stop()

    simulate(main)


def test_a_hub_with_a_journal_is_collected_in_its_event_loop_too(tmp_path: Path) -> None:
    """Like prometheus_client's ASGI app. The loop does not wait for the journal: it shows its last reading."""

    async def main() -> None:
        address = f"unix://{tmp_path}/hub.sock"
        hub = Hub(JournalBroker(Journal(tmp_path / "journal"), owns_journal=True))
        await hub.listen(address)
        registry = CollectorRegistry()
        export_hub(hub, registry)
        async with tl.connect(address, name="one") as one:
            async with one.subscribe("orders.*", name="audit", durable=True):
                pass
            await one.publish_many("other", range(50))
            await one.publish_many("orders.placed", range(3))
            first = values(registry)
            assert first["trunkline_hub_published_messages_total",] == 53
            assert ("trunkline_dead_letters",) not in first
            behind = ("trunkline_durable_behind_messages", "audit")
            await until(lambda: values(registry).get(behind) == 3, "the journal has been read")
            assert values(registry)["trunkline_dead_letters",] == 0
            await one.publish_many("orders.placed", range(2))
            found = await asyncio.to_thread(values, registry)
            assert found[behind] == 5
            assert values(registry)[behind] == 5
        await hub.aclose()

    asyncio.run(main())


def test_ids_and_passing_names_never_become_labels() -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        hub = await place.start()
        registry = CollectorRegistry()
        export_hub(hub, registry)
        async with place.bus("one") as one:
            for number in range(2 * MAX_PATTERNS):
                async with one.subscribe(f"sensor.{number}"):
                    await one.publish(f"sensor.{number}", 1)
            for _ in range(20):
                async with one.subscribe(one.broker.reply_topic()):
                    pass
            found = values(registry)
            patterns = {key[1] for key in found if key[0] == "trunkline_deliveries_total"}
            assert len(patterns) <= MAX_PATTERNS + 1
            assert OTHER_PATTERNS in patterns
            assert not any(pattern.startswith("_reply.") and pattern != "_reply.>" for pattern in patterns)
            assert sum(found[key] for key in found if key[0] == "trunkline_deliveries_total") <= 2 * MAX_PATTERNS
        await place.stop()

    simulate(main)


def test_a_bus_exports_what_its_stats_know() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation)) as bus:
            registry = CollectorRegistry()
            export_bus(bus, registry)
            handled: list[int] = []

            @bus.on("a")
            async def take(number: int) -> None:
                handled.append(number)
                if number == 2:
                    raise ValueError("two")

            for number in range(3):
                await bus.publish("a", number)
            await bus.publish("nobody", 1)
            await asyncio.sleep(60)
            found = values(registry)
            assert found["trunkline_bus_published_messages_total",] >= 4
            assert found["trunkline_bus_unrouted_messages_total",] >= 1
            assert found["trunkline_deliveries_total", "a", "delivered"] == 2
            assert found["trunkline_deliveries_total", "a", "dead"] == 1
            assert found["trunkline_dead_letters",] == 1
            bus.dead_letters.clear()
            assert values(registry)["trunkline_deliveries_total", "a", "dead"] == 1

    simulate(main)


def test_a_bus_has_no_more_labels_than_a_hub() -> None:
    async def main(simulation: Simulation) -> None:
        async with tl.connect(world=world(simulation)) as bus:
            registry = CollectorRegistry()
            export_bus(bus, registry)
            for number in range(2 * MAX_PATTERNS):
                async with bus.subscribe(f"sensor.{number}"):
                    await bus.publish(f"sensor.{number}", 1)
            patterns = {key[1] for key in values(registry) if key[0] == "trunkline_deliveries_total"}
            assert len(patterns) <= MAX_PATTERNS + 1
            assert OTHER_PATTERNS in patterns

    simulate(main)


@pytest.mark.slow
def test_up_serves_metrics_to_any_scraper(tmp_path: Path) -> None:
    program = "import sys; from trunkline.cli import main; sys.exit(main())"
    place = f"unix://{tmp_path}/hub.sock"
    command = [sys.executable, "-c", program, "up", "--json", "--listen", place, "--metrics", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stdout is not None
            url = json.loads(hub.stdout.readline())["metrics"]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=60) as answer:
                text = answer.read().decode()
            assert "\ntrunkline_hub_clients 0.0\n" in text
            if PROMTOOL is not None:
                lint = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
                assert (lint.returncode, lint.stderr) == (0, "")
        finally:
            hub.terminate()
    assert hub.returncode == 0


@pytest.mark.slow
def test_a_place_that_is_no_port_is_an_error() -> None:
    program = "import sys; from trunkline.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "up", "--metrics", "here"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "--metrics 'here' is not a port: write 9420" in done.stderr


@pytest.mark.slow
@needs_promtool
def test_alert_rules_are_valid_and_fire() -> None:
    assert PROMTOOL is not None
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([PROMTOOL, *words], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
def test_what_the_dashboard_asks_for_is_valid(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    panels = json.loads((DEPLOY / "grafana/trunkline.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert asked
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked)]
    # JSON is YAML, too.
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", "panels.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    async def main(simulation: Simulation) -> set[str]:
        place = Place(world(simulation))
        hub = await place.start()
        hub.counts["dropped"] += 1
        hub.counts["internal_errors"] += 1
        registry = CollectorRegistry()
        export_hub(hub, registry)
        async with place.bus("one") as one, one.subscribe("a"):
            names = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
        await place.stop()
        return names

    exported = simulate(main)
    texts = [(DEPLOY / name).read_text() for name in ("prometheus/alerts.yml", "grafana/trunkline.json")]
    used = {
        word.removesuffix("_total")
        for text in texts
        for word in text.replace("(", " ").replace("{", " ").replace("[", " ").replace('"', " ").split()
        if word.startswith("trunkline_")
    }
    assert used
    assert used <= exported


def test_a_bus_serves_its_metrics_with_one_line() -> None:
    async def main() -> str:
        registry = CollectorRegistry()
        async with tl.connect(hooks=[tl.hooks.Metrics(registry)]) as bus:

            @bus.on("orders.*")
            async def take(number: int) -> None: ...

            with tl.serve_metrics(bus, 0, registry=registry) as port:
                for number in range(3):
                    await bus.publish("orders.placed", number)
                await bus.quiet()
                return await asyncio.to_thread(scraped, port)

    text = asyncio.run(main())
    assert "\ntrunkline_bus_published_messages_total 3.0\n" in text
    assert '\ntrunkline_deliveries_total{fate="delivered",pattern="orders.*"} 3.0\n' in text
    assert "\ntrunkline_handling_seconds_count 3.0\n" in text
    if PROMTOOL is not None:
        lint = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
        assert (lint.returncode, lint.stderr) == (0, "")


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def test_how_long_messages_and_handlers_take_is_a_histogram() -> None:
    async def main(simulation: Simulation) -> None:
        registry = CollectorRegistry()
        async with tl.connect(world=world(simulation), hooks=[tl.hooks.Metrics(registry)]) as bus:

            @bus.on("a")
            async def take(seconds: float) -> None:
                await asyncio.sleep(seconds)
                if seconds == 3:
                    raise tl.Reject("three is too long")

            for seconds in (0.02, 3, 0.02):
                await bus.publish("a", seconds)
            await bus.quiet()

        def value(name: str, **labels: str) -> float:
            found = registry.get_sample_value(name, labels)
            assert found is not None
            return found

        assert value("trunkline_handling_seconds_count") == 3
        assert value("trunkline_handling_seconds_sum") == pytest.approx(3.04)
        assert value("trunkline_handling_seconds_bucket", le="0.05") == 2
        # The second waited for the first, the third for both.
        assert value("trunkline_delivery_latency_seconds_sum") == pytest.approx(0.02 + 3.02)
        assert value("trunkline_delivery_latency_seconds_count") == 3

    simulate(main)
