"""SQL over a journal: lake and tail are one table, it is read-only, and errors are one line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import trunkline as tl
from trunkline.cli.main import run
from trunkline.journal import Journal
from trunkline.journal.sql import query


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five messages in the lake, three that are not sealed, and two dead letters."""
    directory = tmp_path_factory.mktemp("sql") / "journal"

    async def live(owned: Journal, numbers: range) -> None:
        async with tl.connect("memory:", name="shop", journal=owned) as bus:

            @bus.on("orders.*", durable=True, retry=tl.Retry(attempts=1))
            async def bill(order: dict[str, int]) -> None:
                if order["n"] % 4 == 0:
                    raise LookupError("no such customer")

            for number in numbers:
                await bus.publish("orders.placed", json.dumps({"n": number}).encode(), content_type="application/json")
            await bus.quiet()
            await bus.flush()

    with Journal(directory) as owned:
        asyncio.run(live(owned, range(1, 6)))
        owned.seal(everything=True)
        asyncio.run(live(owned, range(6, 9)))
    assert list(directory.glob("messages/*/*.parquet"))
    return directory


def test_sealed_and_unsealed_messages_are_one_table(journal: Path) -> None:
    sql = "select seq, decode(payload)::json->>'n' as n from messages where topic = 'orders.placed' order by seq"
    assert [row["n"] for row in query(journal, sql).to_pylist()] == [str(number) for number in range(1, 9)]


def test_fates_and_dead_letters_can_be_joined_with_messages(journal: Path) -> None:
    found = query(
        journal,
        "select seq, d.error_type, d.attempts, m.topic from dead_letters d join messages m using (seq) order by seq",
    ).to_pylist()
    assert [(row["error_type"], row["attempts"], row["topic"]) for row in found] == [
        ("LookupError", 1, "orders.placed")
    ] * 2
    counted = query(journal, "select fate, sum(count) as n from fates where pattern = 'orders.*' group by fate")
    assert {row["fate"]: row["n"] for row in counted.to_pylist()} == {"delivered": 6, "dead": 2}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from mesages", '"messages"'),
        ("select topik from messages", '"topic"'),
        ("selct 1", "selct"),
        ("copy messages to 'x.csv'", "only read"),
        ("select 1; select 2", "one SELECT"),
        ("", "one SELECT"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name(journal: Path, sql: str, said: str) -> None:
    with pytest.raises(tl.UsageError) as refused:
        query(journal, sql)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_python_has_in_its_variables_is_no_table(journal: Path) -> None:
    secret = query(journal, "select 1 as n")
    assert secret.num_rows == 1
    with pytest.raises(tl.UsageError, match="secret does not exist"):
        query(journal, "select * from secret")


def test_the_command_prints_a_table_json_or_csv(
    journal: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "select seq, topic from messages where topic like 'orders%' order by seq"
    assert run(["sql", str(journal), text, "--rows", "2"]) == 0
    out, err = capfd.readouterr()
    assert out.split() == ["seq", "topic", "1", "orders.placed", "2", "orders.placed"]
    assert err == "more than 2 rows: --rows sets how many are shown\n"
    assert run(["sql", text, "--journal", str(journal), "--json"]) == 0
    assert [json.loads(line)["topic"] for line in capfd.readouterr().out.splitlines()] == ["orders.placed"] * 8
    monkeypatch.setenv("TRUNKLINE_JOURNAL", str(journal))
    assert run(["sql", text + " limit 1", "--csv"]) == 0
    assert capfd.readouterr().out == "seq,topic\n1,orders.placed\n"


def test_the_command_says_what_is_missing(
    journal: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRUNKLINE_JOURNAL", raising=False)
    for words, said in (
        (["select 1"], "which journal?"),
        ([str(tmp_path), "select 1"], "there is no journal in"),
        ([str(journal), "select", "1"], "as one argument"),
        ([str(journal), "select 1", "--json", "--csv"], "pass either --json or --csv, not both"),
    ):
        assert run(["sql", *words]) == 2
        err = capfd.readouterr().err
        assert said in err
        assert err.count("\n") == 1
