"""`trunkline up`, `status`, `pub`, `sub`, `request` and `trace`, as they are called in a shell."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import DEADLINE_S, Ran, at_large
from tests.hub.up import Up, up

PROGRAM = "import sys; from trunkline.cli import main; sys.exit(main())"


def call(hub: Up | None, *words: str, given: str = "") -> Ran:
    """A command that ends by itself, and needs no process of its own."""
    where = ["--hub", hub.address] if hub is not None else []
    return at_large(*words, *where, given=given)


@contextlib.contextmanager
def running(hub: Up, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until it is interrupted."""
    command = [sys.executable, "-c", PROGRAM, *words, "--hub", hub.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("hub")) as running_hub:
        yield running_hub


def status(hub: Up) -> dict[str, Any]:
    done = call(hub, "status", "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_status_says_how_it_is(hub: Up) -> None:
    found = status(hub)
    assert found["healthy"] is True
    assert 0 < found["ping_s"] < DEADLINE_S
    assert found["clients"] == 1
    assert found["listening"] == [hub.address]
    done = call(hub, "status")
    assert done.code == 0
    assert done.out.startswith("healthy, answers within ")


RULES = """
[[hub.rules]]
who = "uid:*"
may = ["publish", "subscribe"]
"""


def test_with_rules_status_needs_a_right_and_says_which(tmp_path: Path) -> None:
    with up(tmp_path, config=RULES) as ruled:
        done = call(ruled, "status")
        assert done.code == 1
        assert "may not administer on >" in done.err
        assert call(ruled, "pub", "orders.placed", "1").code == 0


def test_without_a_hub_there_is_an_error_that_helps(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none.sock"
    done = call(None, "status", "--timeout", "0.2", "--hub", nowhere)
    assert done.code == 1
    assert f"no hub at {nowhere}" in done.err
    assert done.err.endswith(f"start one with `trunkline up --listen {nowhere}`, or pass the URL of a hub as --hub\n")
    assert "embed" not in done.err
    assert "Traceback" not in done.err


def test_explain_without_a_hub_does_not_say_that_the_hub_does_not_know(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none.sock"
    done = call(None, "explain", "some-id", "--hub", nowhere)
    assert done.code == 1
    assert f"error: no hub at {nowhere}" in done.err
    assert "does not know" not in done.err


def test_what_is_published_is_shown(hub: Up) -> None:
    before = status(hub)["subscriptions"]
    with running(hub, "sub", "a.>", "--count", "3", "--json") as listener:
        # Until the subscription is there: a bus has two for its answers.
        deadline = time.monotonic() + DEADLINE_S
        while status(hub)["subscriptions"] < before + 3:
            assert time.monotonic() < deadline, "it does not subscribe"
        assert call(hub, "pub", "a.b", '{"x": 1}').code == 0
        done = call(hub, "pub", "a.c", "-", given="one\n2\n")
        assert done.code == 0
        assert done.out == "2 published\n"
        out, _ = listener.communicate(timeout=DEADLINE_S)
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["topic"], each["payload"]) for each in found] == [("a.b", {"x": 1}), ("a.c", "one"), ("a.c", 2)]
    assert {each["sender"] for each in found} == {"trunkline pub"}


def test_a_request_that_nobody_answers(hub: Up) -> None:
    done = call(hub, "request", "nobody", "1", "--timeout", "600")
    assert done.code == 1
    assert "nobody subscribes to 'nobody'" in done.err


def test_pub_prints_the_id_and_explain_knows_it(hub: Up) -> None:
    done = call(hub, "pub", "a.id", "1")
    assert (done.code, len(done.out.split())) == (0, 1)
    explained = call(hub, "explain", done.out.strip(), "--json")
    assert json.loads(explained.out)["message"]["topic"] == "a.id"


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ('{"x": 1', "the payload is not JSON: Expecting ',' delimiter at column 8, near '{\"x\": 1'"),
        ("[1, 2,]", "the payload is not JSON: "),
        ('{"x": NaN}', "a value that JSON does not support"),
    ],
)
def test_broken_json_is_an_error_with_its_place(payload: str, where: str) -> None:
    for command in ("pub", "request"):
        ran = at_large(command, "a.b", payload, "--hub", "unix:///nowhere/x.sock")
        assert (ran.code, ran.out) == (2, "")
        assert where in ran.err
        assert "--text to send it as text" in ran.err


def test_a_broken_line_is_an_error_with_its_number(hub: Up) -> None:
    lines = call(hub, "pub", "a.b", "-", given='1\n{"x": 1\n')
    assert (lines.code, "line 2 is not JSON" in lines.err) == (2, True)
    assert call(hub, "pub", "a.b", '{"x": 1', "--text").code == 0


def test_trace_shows_what_is_said(hub: Up) -> None:
    with running(hub, "trace", "trunkline pub", "--json") as watcher:
        assert watcher.stdout is not None
        while not select.select([watcher.stdout], [], [], 0)[0]:
            # It may still be on its way there.
            assert call(hub, "pub", "a.b", "1").code == 0
        assert call(hub, "pub", "a.b", "1").code == 0
        said: list[dict[str, Any]] = [json.loads(watcher.stdout.readline()) for _ in range(3)]
        assert {each["client"] for each in said} == {"trunkline pub"}
        assert {each["direction"] for each in said} <= {"in", "out"}
        # The beginning of a command, or the end of the one before.
        begin = {"WELCOME", "MAPS", "SUBSCRIBE", "SUBSCRIBED", "TOPIC", "TOPIC_INFO"}
        end = {"TAKEN", "HEARTBEAT", "BEAT", "UNSUBSCRIBE", "DONE", "GOODBYE"}
        assert {each["type"] for each in said} <= begin | end


def test_trace_is_readable_until_ctrl_c(hub: Up) -> None:
    with running(hub, "trace", "trunkline pub") as watcher:
        assert watcher.stderr is not None
        assert watcher.stderr.readline() == "tracing; Ctrl-C ends it\n"
        assert call(hub, "pub", "a.b", "1").code == 0
        assert watcher.stdout is not None
        line = watcher.stdout.readline()
        watcher.send_signal(signal.SIGINT)
        _, said = watcher.communicate(timeout=DEADLINE_S)
    assert re.fullmatch(r"\S+  trunkline pub (→|←) hub  [A-Z_]+  \{.*\}\n", line), line
    assert (watcher.returncode, said) == (130, "")


def test_up_ends_well_when_told_so(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with up(tmp_path) as hub:
            process = hub._process
            assert process is not None
            process.send_signal(number)
            assert process.wait(DEADLINE_S) == 0
            assert "Traceback" not in hub.log()
    assert not (tmp_path / "hub.sock").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_ended_cleans_up(hub: Up, number: int, code: int) -> None:
    with running(hub, "sub", "ended.here", "--json") as listener:
        assert listener.stdout is not None
        # A client is connected before it has subscribed.
        while "ended.here" not in call(hub, "subscribers", "--json").out:
            assert listener.poll() is None
        assert call(hub, "pub", "ended.here", "1").code == 0
        assert listener.stdout.readline()
        listener.send_signal(number)
        _, said = listener.communicate(timeout=DEADLINE_S)
        assert (listener.returncode, said) == (code, "")


def test_a_socket_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    place = f"unix://{tmp_path}/{'x' * 120}.sock"
    for words in (["up", "--listen", place], ["status", "--hub", place]):
        done = call(None, *words)
        assert done.code == 2
        assert "is too long for a socket: at most" in done.err


def test_two_hubs_do_not_share_a_place(hub: Up) -> None:
    done = call(None, "up", "--listen", hub.address)
    assert done.code == 1
    assert done.err == (
        f'error: a hub is already running at {hub.address}: use it with connect("{hub.address}"),'
        " or pass another place with --listen\n"
    )
    assert status(hub)["healthy"]


def test_settings_that_make_no_sense_are_named(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text("[hub]\nheartbeats = 5\n")
    done = call(None, "up", "--config", str(config))
    assert done.code == 2
    assert "did you mean 'heartbeat_s'?" in done.err


def test_channels_are_created_listed_described_and_destroyed(hub: Up, tmp_path: Path) -> None:
    schema = tmp_path / "reading.json"
    schema.write_text('{"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}')
    words = ("channels", "create", "readings", "--pattern", "readings.>", "--priority", "80", "--schema", str(schema))
    assert call(hub, *words).out == "readings created\n"
    (line,) = call(hub, "channels", "list", "--json").out.splitlines()
    found = json.loads(line)
    assert (found["channel"], found["pattern"], found["qos"]["priority"]) == ("readings", "readings.>", 80)
    assert "priority 80" in call(hub, "channels", "list").out
    assert call(hub, "channels", "describe", "readings").out.startswith("readings on readings.>, owner uid:")
    refused = call(hub, "pub", "readings.x", '{"celsius": "warm"}')
    assert refused.code == 1
    assert "$.celsius" in refused.err
    assert call(hub, "channels", "destroy", "readings").code == 0
    assert call(hub, "channels", "list").out == "there are none\n"
    gone = call(hub, "channels", "describe", "readings")
    assert gone.code == 1
    assert "readings" in gone.err


def test_schemas_are_stored_in_versions(hub: Up, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}')
    first = json.loads(call(hub, "schemas", "put", "order", str(file), "--json").out)
    assert first["version"] == "1.0.0"
    assert json.loads(call(hub, "schemas", "get", "order").out) == json.loads(file.read_text())
    file.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}')
    broken = call(hub, "schemas", "put", "order", str(file))
    assert broken.code == 1
    assert "$.id" in broken.err
    assert "1.0.0" in call(hub, "schemas", "list", "order").out
    file.write_text("[]")
    assert call(hub, "schemas", "put", "order", str(file)).code == 2


AGENT = """
import asyncio, sys
import trunkline as tl

async def main():
    async with tl.connect(sys.argv[1], name="agent2") as bus:
        await bus.broker.ping()
        print("there", flush=True)
        while bus.health().state is not tl.BusState.CLOSED:
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_ping_and_control_of_a_bus(hub: Up) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, hub.address], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "there\n"
        done = call(hub, "ping", "agent2")
        assert done.code == 0, done.err
        assert done.out.startswith("agent2 is open, answers within ")
        assert re.search(r"\n  handlers +0\n", done.out)
        for command, state in (("pause", "paused"), ("resume", "open"), ("drain", "draining")):
            done = call(hub, "control", "agent2", command, "--json")
            assert done.code == 0, done.err
            health = json.loads(done.out)
            assert (health["name"], health["state"]) == ("agent2", state)
            assert 0 < health["ping_s"] < DEADLINE_S
        assert agent.wait(DEADLINE_S) == 0
    finally:
        agent.kill()
        agent.communicate()
    done = call(hub, "ping", "agent2", "--timeout", "0.2")
    assert (done.code, done.out) == (1, "")
    assert "nobody subscribes to '_control.agent2'" in done.err
    assert "no bus at this hub has the name 'agent2'" in done.err
    assert "trunkline sub '_heartbeat.>'" in done.err
    assert call(hub, "control", "agent2", "fly").code == 2
    done = call(hub, "ping", "not a name")
    assert (done.code, "has spaces" in done.err) == (2, True)


def test_with_rules_control_needs_a_right_and_says_which(tmp_path: Path) -> None:
    with up(tmp_path, config=RULES) as ruled:
        done = call(ruled, "ping", "agent2")
        assert done.code == 1
        assert "may not publish on _control.agent2" in done.err
        assert "the right to administer on _to.agent2" in done.err


def test_clients_and_subscribers_are_listed(hub: Up) -> None:
    with running(hub, "sub", "watched.>") as listener:
        assert listener.stderr is not None
        assert "listening to watched.>" in listener.stderr.readline()
        clients = [json.loads(line) for line in call(hub, "clients", "--json").out.splitlines()]
        assert {"trunkline sub", "trunkline clients"} <= {each["name"] for each in clients}
        done = call(hub, "subscribers")
        assert done.code == 0, done.err
        head, *rows = done.out.splitlines()
        assert head.split()[:4] == ["subscriber", "pattern", "client", "state"]
        (row,) = [row for row in rows if "watched.>" in row]
        assert "trunkline sub" in row


def test_status_names_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    with up(tmp_path, durable=True) as kept:
        with running(kept, "sub", "orders", "--durable", "bill") as listener:
            assert listener.stderr is not None
            assert "listening to orders" in listener.stderr.readline()
        assert call(kept, "pub", "other", "1").code == 0
        done = call(kept, "status")
        assert (done.code, done.out[:8]) == (0, "healthy,"), done.out
        assert call(kept, "pub", "orders", "1").code == 0
        assert call(kept, "pub", "other", "1").code == 0
        done = call(kept, "status")
        assert done.code == 1
        assert done.out.startswith("1 problem, answers within ")
        assert "the durable subscription bill (orders) has no subscriber, and is 1 message behind" in done.out
        assert "trunkline forget bill" in done.out
        found = json.loads(call(kept, "status", "--json").out)
        assert found["healthy"] is False
        assert [each["kind"] for each in found["problems"]] == ["not connected"]
        listed = [json.loads(line) for line in call(kept, "subscribers", "--json").out.splitlines()]
        (cursor,) = json.loads(call(None, "journal", "stats", str(kept.journal), "--json").out)["cursors"]
        assert [each["behind"] for each in listed if each["name"] == "bill"] == [cursor["behind"]] == [1]
