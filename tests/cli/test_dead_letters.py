"""`trunkline dead-letters` in a shell: dead letters of a hub are listed, shown and redelivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.cli.commands import DEADLINE_S, Ran, at_large
from tests.hub.up import Up, up


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Up]:
    with up(tmp_path, durable=True) as running:
        yield running


def call(hub: Up, *words: str) -> Ran:
    return at_large("dead-letters", *words, "--hub", hub.address)


def lines(done: Ran) -> list[dict[str, Any]]:
    assert "Traceback" not in done.err, done.err
    return done.lines()


def let_die(hub: Up, **options: Any) -> list[str]:
    """A subscriber fails on three orders, and leaves. Returns the ids of the messages."""

    async def life() -> list[str]:
        tried = asyncio.Semaphore(0)
        async with tl.connect(hub.address, name="shop") as bus:

            @bus.on("orders.*", name="billing", retry=tl.Retry(attempts=1), **options)
            async def billing(number: int) -> None:
                tried.release()
                raise ValueError(f"card [declined] \x1b[31m{number}") if number else tl.Reject("never")

            await bus.flush()
            ids = [await bus.publish("orders.placed", number) for number in range(3)]
            async with asyncio.timeout(DEADLINE_S):
                for _ in ids:
                    await tried.acquire()
                await bus.quiet()
            return ids

    return asyncio.run(life())


def handle(hub: Up, count: int) -> list[int]:
    """The subscriber reconnects, and handles this many messages."""

    async def life() -> list[int]:
        handled: list[int] = []
        done = asyncio.Event()
        async with tl.connect(hub.address, name="shop") as bus:

            @bus.on("orders.*", name="billing", durable=True)
            async def billing(number: int) -> None:
                handled.append(number)
                if len(handled) == count:
                    done.set()

            async with asyncio.timeout(DEADLINE_S):
                await done.wait()
                await bus.quiet()
        return handled

    return asyncio.run(life())


def test_they_are_listed_and_chosen(hub: Up) -> None:
    ids = let_die(hub, durable=True)
    found = lines(call(hub, "list", "--json"))
    assert [each["id"] for each in found] == ids
    assert {(each["subscriber"], each["topic"], each["returns"]) for each in found} == {
        ("billing", "orders.placed", True)
    }
    rejected = lines(call(hub, "list", "--cause", "rejected by the handler", "--json"))
    assert [each["id"] for each in rejected] == ids[:1]
    assert lines(call(hub, "list", "--subscriber", "nobody", "--json")) == []
    assert lines(call(hub, "list", "--topic", "invoices.>", "--json")) == []
    few = call(hub, "list", "--rows", "2")
    assert few.code == 0
    assert (ids[0] in few.out, ids[1] in few.out, ids[2] in few.out) == (True, True, False)
    assert "raise --rows" in few.err
    assert "\x1b" not in few.out
    assert call(hub, "list", "--topic", "a..b").code == 2


def test_one_is_shown_with_its_traceback(hub: Up) -> None:
    ids = let_die(hub, durable=True)
    shown = call(hub, "show", ids[1])
    assert shown.code == 0
    assert f"billing failed on {ids[1]} on orders.placed" in shown.out
    assert "raise ValueError" in shown.out
    assert "\x1b" not in shown.out
    (found,) = lines(call(hub, "show", ids[1], "--json"))
    assert found["message"]["payload"] == 1
    assert "ValueError: card [declined]" in found["traceback"]
    assert [each["attempt"] for each in found["history"]] == [1]
    missing = call(hub, "show", "nobody")
    assert missing.code == 1
    assert "trunkline dead-letters list" in missing.err


NASTY = "a\x1b]0;owned\x07\x1b[2J\nall good\r\x9b31m\x7f"
"""An id that would name the window, clear the terminal, and add a line of its own."""


def test_nothing_that_came_from_outside_reaches_the_terminal_as_it_is(hub: Up) -> None:
    async def life() -> None:
        async with tl.connect(hub.address, name="shop") as bus:

            @bus.on("orders.*", name=f"bill {NASTY}", retry=tl.Retry(attempts=1))
            async def billing(number: int) -> None:
                raise ValueError(NASTY)

            await bus.flush()
            await bus.publish("orders.placed", 1, id=NASTY, headers={NASTY: NASTY})
            async with asyncio.timeout(DEADLINE_S):
                await bus.quiet()

    asyncio.run(life())
    journal = hub.journal
    for words in (
        ("dead-letters", "show", NASTY, "--hub", hub.address),
        ("dead-letters", "list", "--hub", hub.address),
        ("dead-letters", "replay", NASTY, "--hub", hub.address),
        ("dead-letters", "show", f"{NASTY} not there", "--hub", hub.address),
        ("journal", "tail", journal),
        ("journal", "explain", journal, NASTY),
        ("journal", "explain", journal, f"{NASTY} not there"),
        ("journal", "replay", journal, "--dead", "--dry-run"),
        ("journal", "stats", journal),
    ):
        done = at_large(*words)
        said = done.out + done.err
        assert said.strip(), words
        assert "Traceback" not in said or "show" in words
        assert not [each for each in said if not each.isprintable() and each != "\n"], said
        assert "all good" not in said.splitlines(), said


def test_they_are_given_back_to_a_durable_subscription_that_is_away(hub: Up) -> None:
    ids = let_die(hub, durable=True)
    dry = call(hub, "replay", "--dry-run")
    assert (dry.code, dry.out.splitlines()[-1]) == (0, "3 dead letters would be redelivered")
    (one,) = lines(call(hub, "replay", ids[2], "--json"))
    assert [each["id"] for each in one["letters"]] == [ids[2]]
    assert one["failures"] == []
    hub.end()
    hub.start()
    done = call(hub, "replay")
    assert (done.code, done.out.splitlines()[-1]) == (0, "2 dead letters redelivered")
    assert sorted(handle(hub, 3)) == [0, 1, 2]
    assert call(hub, "list").out == "there are none\n"


def test_what_only_its_own_process_can_take_back_stays(hub: Up) -> None:
    ids = let_die(hub)
    done = call(hub, "replay")
    assert done.code == 1
    assert "bus.replay_dead()" in done.err
    assert [each["id"] for each in lines(call(hub, "list", "--json"))] == ids


def test_a_hub_without_a_journal_says_so(tmp_path: Path) -> None:
    with up(tmp_path) as hub:
        done = call(hub, "list")
        assert (done.code, done.out) == (0, "there are none\n")
        assert "--journal" in done.err
