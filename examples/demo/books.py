"""Chapters 9 and 10: Spark makes tables of the journal, and the books are compared with what the agents counted."""

from __future__ import annotations

import json
from typing import Any

import trunkline as tl
from examples.demo.story import AGENTS, Story

FATES = ("delivered", "filtered", "expired", "dropped", "dead", "in_flight")
QUERY = """\
select subscriber, fate, count(*) as messages
from deliveries where topic = 'orders.placed'
group by all order by all"""
ACCOUNTING = f"""\
select topic, subscriber, sum(accepted) as accepted, {", ".join(f"sum({fate}) as {fate}" for fate in FATES)}
from accounting group by all order by all"""

Row = dict[str, Any]


class Books:
    """After the shop is closed: the journal, and the tables that Spark makes from it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.tell, self.processes, self.output = story.tell, story.processes, story.output

    async def run(self) -> None:
        await self.close()
        await self.tables()
        await self.balance()

    def counted(self) -> dict[tuple[str, str], dict[str, int]]:
        """The fates of messages according to the agents: the invoices they sent, and their own counts."""
        looks, billed, analysed = self.story.looks, len(self.story.billed), self.story.analysed
        return {
            ("orders.placed", "billing"): {"delivered": billed},
            ("orders.placed", "dashboard"): {
                "delivered": sum(len(look.shown) for look in looks),
                "dropped": looks[-1].dropped,
            },
            ("invoices.sent", "analyst"): {"delivered": analysed.taken, "filtered": analysed.filtered},
        }

    # 9

    async def close(self) -> None:
        self.tell.chapter("Spark makes tables of it all, and a report")
        self.tell.say("First the shop closes: the agents leave, then the kernel, then the hub.")
        async with self.tell.waiting("the shop to close"):
            codes = [await self.processes.stop(name) for name in AGENTS if name != "billing-2"]
            await self.processes.stop("kernel")
            codes.append(await self.processes.stop("hub"))
        self.tell.check("5 agents and the hub have ended with exit code 0", codes, [0] * len(AGENTS))

    async def tables(self) -> None:
        version = (await self.answer("Spark to start"))["version"]
        self.tell.say(f"Spark {version} makes tables of the journal, as `trunkline pipeline run` does.")
        await self.processes.ask("spark", "run")
        async with self.tell.waiting("Spark to read the journal") as waiting:
            while "table" in (done := json.loads(await self.processes.read("spark"))):
                waiting.what = f"Spark, step {done['done'] + 1} of {done['of']}: {done['table']}"
        with tl.journal.Reader(self.output.journal) as journal:
            self.tell.check(
                "all {} messages of the journal are in the tables", done["messages"], journal.count(">", after=0)
            )
        self.tell.say("You can ask anything, in SQL:")
        for line in ("", *QUERY.splitlines(), ""):
            self.tell.line(f"    {line}".rstrip())
        rows = await self.sql(QUERY)
        for row in rows:
            self.tell.line(f"    {row['subscriber']:12}{row['fate']:12}{row['messages']:>6}")
        self.tell.line()
        found = {(row["subscriber"], row["fate"]): row["messages"] for row in rows}
        counted = {
            (subscriber, fate): count
            for (topic, subscriber), fates in self.counted().items()
            if topic == "orders.placed"
            for fate, count in fates.items()
        }
        self.tell.check("the agents say the same", found, counted)
        await self.ask("the report", "report", str(self.output.report))
        report = self.output.report.read_text()
        self.tell.check("the report is written", ("orders.placed" in report, "LookupError" in report), (True, True))

    # 10

    async def balance(self) -> None:
        self.tell.chapter("The books balance")
        self.tell.say(
            """For each topic and each subscriber, accepted = delivered + filtered + expired + dropped + dead + in
            flight. So no message is missing, and none counts twice."""
        )
        rows = {(row["topic"], row["subscriber"]): row for row in await self.sql(ACCOUNTING)}
        columns = ("accepted", *FATES)
        self.tell.line()
        self.tell.line(f"{'':14}" + "".join(f"{name.replace('_', ' '):>{len(name) + 1}}" for name in columns))
        for key in self.counted():
            values = "".join(f"{rows[key][name]:>{len(name) + 1}}" for name in columns)
            self.tell.line(f"    {key[1]:10}{values}")
        self.tell.line()
        wrong = [key for key, row in rows.items() if row["accepted"] != sum(row[fate] for fate in FATES)]
        self.tell.check(f"the sums are right for all {len(rows)} pairs of topic and subscriber", wrong, [])
        with tl.journal.Reader(self.output.journal) as journal:
            for (topic, subscriber), fates in self.counted().items():
                books = {"accepted": journal.count(topic, after=0), **dict.fromkeys(FATES, 0), **fates}
                found = {name: rows[topic, subscriber][name] for name in columns}
                self.tell.check(f"{subscriber}: the agents say the same, and so does the journal", found, books)

    # Spark is a process that answers questions in JSON

    async def answer(self, what: str) -> Row:
        async with self.tell.waiting(what):
            answer: Row = json.loads(await self.processes.read("spark"))
        return answer

    async def ask(self, what: str, *question: str) -> Row:
        await self.processes.ask("spark", *question)
        return await self.answer(what)

    async def sql(self, query: str) -> list[Row]:
        rows: list[Row] = (await self.ask("the answer", "sql", query))["rows"]
        return rows
