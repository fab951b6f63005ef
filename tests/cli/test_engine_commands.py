"""Commands with `--hub nats://…` and `redis://…` work, or refuse in one line that names an alternative."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from tests.cli.commands import at_large
from trunkline.program import run_loop

DEADLINE_S = 60.0
SHOWS_CLIENTS = {"nats": "`nats server report connections`", "redis": "`redis-cli client list`"}


@pytest.fixture(scope="module", params=["nats", "redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # libuv makes a pipe with the first loop of a process, and keeps it.
    run_loop(asyncio.sleep(0))
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer("redis", folder) as running:
        yield f"{running.url}?synced=true"


def test_channels_and_schemas(server: str, tmp_path: Path) -> None:
    schema = tmp_path / "whole.json"
    schema.write_text(json.dumps({"type": "integer"}))
    made = at_large("channels", "create", "numbers", "--durable", "--schema", schema, "--hub", server)
    assert (made.code, made.err, made.out) == (0, "", "numbers created\n")
    (channel,) = at_large("channels", "list", "--hub", server, "--json").lines()
    assert (channel["channel"], channel["qos"]) == ("numbers", {"durable": True})
    assert at_large("schemas", "get", "numbers", "--hub", server).value() == {"type": "integer"}
    (known,) = at_large("schemas", "list", "--hub", server, "--json").lines()
    assert (known["name"], known["version"]) == ("numbers", "1.0.0")

    async def publish() -> None:
        async with asyncio.timeout(DEADLINE_S), tl.connect(server) as bus:
            with pytest.raises(tl.SchemaBroken):
                await bus.publish("numbers", "no number")

    asyncio.run(publish())
    assert at_large("channels", "destroy", "numbers", "--hub", server).out == "numbers removed\n"
    gone = at_large("channels", "describe", "numbers", "--hub", server)
    assert (gone.code, gone.err) == (1, "error: the hub refused: there is no channel numbers\n")


def test_dead_letters_and_explain(server: str) -> None:
    """A letter of a group is redelivered to it. One of a plain subscriber can only be shown."""

    async def work() -> None:
        well, failed = asyncio.Event(), 0
        async with asyncio.timeout(DEADLINE_S), tl.connect(server, name="one") as bus:

            @bus.on("bills", group="bill", durable=True, retry=tl.Retry(attempts=1))
            async def bill(number: int) -> None:
                nonlocal failed
                if not failed:
                    failed += 1
                    raise ValueError(f"bad {number}")
                well.set()

            @bus.on("bills", name="looks", retry=tl.Retry(attempts=1))
            async def look(number: int) -> None:
                raise ValueError("never")

            await bus.flush()
            message_id = await bus.publish("bills", 7)
            letters = await wait_for_letters(2)
            assert {each["subscriber"]: each["returns"] for each in letters} == {"bill": True, "looks": False}
            shown = await asyncio.to_thread(at_large, "dead-letters", "show", message_id, "--hub", server)
            assert "ValueError: bad 7" in shown.out
            assert "Traceback" in shown.out
            fates = await asyncio.to_thread(at_large, "explain", message_id, "--hub", server, "--json")
            assert {each["subscriber"]: each["fate"] for each in fates.value()["outcomes"]} == {
                "bill": "dead",
                "looks": "dead",
            }
            replayed = await asyncio.to_thread(at_large, "dead-letters", "replay", message_id, "--hub", server)
            assert replayed.code == 1
            assert "looks is not durable: call bus.replay_dead() in its own process" in replayed.err
            assert "1 dead letter redelivered" in replayed.out
            await well.wait()
            assert [each["subscriber"] for each in await wait_for_letters(1)] == ["looks"]

    async def wait_for_letters(count: int) -> list[dict[str, object]]:
        while True:
            found = await asyncio.to_thread(at_large, "dead-letters", "list", "--hub", server, "--json")
            if found.code or len(found.lines()) == count:
                assert (found.code, found.err) == (0, "")
                return found.lines()

    asyncio.run(work())
    unknown = at_large("explain", "nobody", "--hub", server)
    assert unknown.code == 1
    assert unknown.err.startswith("no process on this server knows nobody")


@pytest.mark.parametrize("command", ["clients", "subscribers", "status", "top", "trace", "page"])
def test_what_only_a_hub_can_say(command: str, server: str) -> None:
    ran = at_large(command, "--hub", server)
    kind = "redis" if server.startswith("redis") else "nats"
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("error: this needs a hub, and ")
    assert SHOWS_CLIENTS[kind] in ran.err
