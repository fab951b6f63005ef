"""The story, chapter by chapter. Each `check` compares what happened with what must have happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

import trunkline as tl
from examples.demo.actors import PRICES
from examples.demo.agents import ITEMS, Invoice, Look, Mean, MeanOf, Order
from examples.demo.narrator import Narrator
from examples.demo.output import Output
from examples.demo.processes import Processes

FIRST, BAD, LATER = range(1, 41), 41, range(42, 62)
ALL = range(1, 62)
PICTURES = 200
AGENTS = ["desk", "prices", "billing-1", "billing-2", "dashboard", "analyst"]
WAIT_S = 60.0
SEEN_EVERY_S = 0.05


def price(number: int) -> float:
    """The price of an order, computed independently of the shop."""
    return PRICES[ITEMS[number % len(ITEMS)]]


class Story:
    """Chapters 1 to 8: what happens in the shop while the hub runs."""

    def __init__(self, tell: Narrator, processes: Processes, output: Output) -> None:
        self.tell, self.processes, self.output = tell, processes, output
        self.ids: dict[int, str] = {}
        """The id of the message that carries an order, by the order's number."""
        self.billed: list[Invoice] = []
        self.looks: list[Look] = []

    async def run(self) -> None:
        self.address = await self.hub()
        async with AsyncExitStack() as stack:
            self.bus = await stack.enter_async_context(tl.connect(self.address, name="story"))
            self.invoices = await stack.enter_async_context(self.bus.subscribe("invoices.*", name="bookkeeper"))
            await self.agents()
            await self.trade()
            await self.failure()
            await self.too_slow()
            await self.killed()
            await self.explained()
            await self.repaired()
        await self.camera()

    # 1

    async def hub(self) -> str:
        self.tell.chapter("A hub starts, with a journal")
        self.tell.say(
            """The hub moves messages between processes. With a journal, a message is on disk before its publisher
            goes on; what becomes of it is recorded, too."""
        )
        self.tell.line("  $ trunkline up --journal DIRECTORY")
        async with self.tell.waiting("the hub to start"):
            await self.processes.start("hub", "trunkline", "up", "--journal", self.output.journal, "--json")
            started = json.loads(await self.processes.read("hub"))
        self.tell.check("the hub listens, and its topics are durable", started["durable"], True)
        return str(started["listening"][0])

    # 2

    async def agents(self) -> None:
        self.tell.chapter("Agents, an actor system and a Jupyter kernel talk over it")
        self.tell.say(
            """Each is a process of its own: a desk that takes orders, an actor that knows the prices, two workers
            that share the billing, a dashboard, an analyst, and a Jupyter kernel."""
        )
        async with self.bus.subscribe("agents.ready", name="door") as door, self.tell.waiting("the agents"):
            share = ("trunkline", "kernel", "share", "--start", "python3", "--hub", self.address)
            await self.processes.start("kernel", *share, ends_by=signal.SIGINT)
            for name in AGENTS:
                await self.processes.start(name, "examples.demo.agents", name, self.address)
            ready = [(await receive(door)).decode(str) for _ in AGENTS]
            self.kernel = await self.processes.read("kernel")
        self.tell.check("{} agents are connected, and a kernel is shared", len(ready), len(AGENTS))

    async def trade(self) -> None:
        self.tell.say("The desk takes 40 orders. It asks the actor for each price, and publishes the order.")
        await self.place(FIRST)
        await self.bill(len(FIRST))
        with tl.journal.Reader(self.output.journal) as journal:
            self.tell.check("{} prices were asked of the actor", journal.count("_to.shop.prices", after=0), len(FIRST))
            self.tell.check("{} orders are in the journal", journal.count("orders.placed", after=0), len(FIRST))
        self.tell.check("every order has one invoice, of the right amount", self.amounts(), expected(FIRST))
        workers = Counter(invoice.by for invoice in self.billed)
        self.tell.check("{} have shared the work", " and ".join(sorted(workers)), "billing-1 and billing-2")
        self.tell.say("The analyst takes invoices of 5 euros and more. The kernel computes their mean.")
        await self.mean(expected(FIRST))

    # 3

    async def failure(self) -> None:
        self.tell.chapter("A handler fails, and its message becomes a dead letter")
        self.tell.say(
            f"""Order {BAD} is in a currency without an exchange rate. The handler raises an error, three times. Then
            the message is put aside with its cause, and the worker goes on with others."""
        )
        async with self.bus.subscribe("_dead.>", name="watchman") as deaths, self.tell.waiting("the dead letter"):
            order = Order(BAD, "pot", price(BAD), currency="XYZ")
            self.ids[BAD] = await self.bus.publish("orders.placed", order)
            notice = await receive(deaths)
        self.tell.check(f"the dead letter is order {BAD}", notice.correlation_id, self.ids[BAD])
        (self.letter,) = [kept.letter for kept in await self.letters.find()]
        self.tell.check('the hub keeps its cause: "{}"', self.letter.reason, "LookupError: no rate for XYZ")
        self.tell.check("it was tried {} times", len(self.letter.attempts), 3)

    @property
    def letters(self) -> Any:
        assert isinstance(self.bus.broker, tl.HubBroker)
        return self.bus.broker.dead_letters

    # 4

    async def too_slow(self) -> None:
        self.tell.chapter("A consumer is too slow")
        self.tell.say(
            f"""The dashboard has room for ten orders, and has not read any yet. Nobody waits for it: the oldest
            orders are dropped, counted, and recorded with the reason. Now it reads, up to order {BAD}."""
        )
        look = await self.look(BAD)
        self.tell.check("it shows the last ten orders: {}", span(look.shown), f"{BAD - 9} to {BAD}")
        dropped = BAD - 10
        self.tell.check("{} orders were dropped, by its own count", look.dropped, dropped)
        reasons = await self.settled("dashboard", range(1, dropped + 1))
        self.tell.check("the journal has {} of them", len(reasons), dropped)
        self.tell.check('with the reason "{}"', " ".join(set(reasons)), "dropped: drop_oldest: the inbox is full (10)")

    # 5

    async def killed(self) -> None:
        self.tell.chapter("A worker is killed, and another takes over")
        self.tell.say(
            """The desk takes 20 more orders. The bank of billing-2 no longer answers, so billing-2 is stuck on one of
            them, and is killed with kill -9. What it held goes to another worker."""
        )
        async with (
            self.bus.subscribe("billing.stuck", name="alarm") as alarm,
            self.tell.waiting("billing-2"),
        ):
            await self.bus.request("billing-2.bank", False, timeout_s=WAIT_S)
            await self.place(LATER)
            self.stuck = (await receive(alarm)).decode(int)
        ended = await self.processes.kill("billing-2")
        self.tell.check(f"billing-2 held order {self.stuck}, and ended by signal {{}}", -ended, 9)
        before = len(self.billed)
        await self.bill(len(LATER))
        taken_over = {invoice.order: invoice.by for invoice in self.billed[before:]}
        self.tell.check("billing-1 got that order, and billed it", taken_over[self.stuck], "billing-1")
        self.tell.check("every order has one invoice again", self.amounts(), expected([*FIRST, *LATER]))

    # 6

    async def explained(self) -> None:
        self.tell.chapter("What became of three messages?")
        self.tell.say("The journal has an answer for each message and each subscriber.")
        full = "dropped: drop_oldest: the inbox is full (10)"
        wanted = {
            FIRST[0]: {"billing": "delivered", "dashboard": full},
            BAD: {"billing": f"dead: handler failed: {self.letter.reason}", "dashboard": "delivered"},
            self.stuck: {"billing": "delivered", "dashboard": full},
        }
        for number, fates in wanted.items():
            for subscriber, fate in fates.items():
                found = await self.settled(subscriber, [number])
                self.tell.check(f"order {number:<2}  {subscriber:10} {{}}", " ".join(found), fate)

    # 7

    async def repaired(self) -> None:
        self.tell.chapter("The dead letter is repaired and replayed")
        self.tell.say(
            f"Order {BAD} gets a currency that is known. It goes to the subscriber that failed, and to no other."
        )
        refused = await self.letters.replay([self.letter], payload=Order(BAD, "pot", price(BAD)))
        self.tell.check("the hub gave the letter back", refused, [])
        await self.bill(1)
        self.tell.check("all {} orders are billed now, each once", len(self.amounts()), len(expected(ALL)))
        self.tell.check("no dead letter is left", await self.letters.find(), [])
        fates = await self.settled("billing", [BAD])
        self.tell.check(f"order {BAD}  billing    {{}}", " ".join(fates), "delivered")
        await self.mean(expected(ALL))
        look = await self.look(ALL[-1])
        self.tell.check("the dashboard reads again: {}", span(look.shown), f"{ALL[-1] - 9} to {ALL[-1]}")

    # 8

    async def camera(self) -> None:
        self.tell.chapter("A camera sends pictures through shared memory")
        if find_spec("iceoryx2") is None:
            self.tell.say("Not on this system: shared memory needs Linux, and the extra `memory`.")
            return
        self.tell.say(
            """A camera in the shop's window takes 200 pictures a second. A recorder and a viewer read them where they
            are, without a copy. The viewer stops in the middle, and is killed with kill -9 while it holds a picture."""
        )
        where = (os.environ.get("TRUNKLINE_RUNTIME", ""), str(os.getpid()))
        async with self.tell.waiting("the camera"):
            await self.processes.start("camera", "examples.demo.camera", "film", *where)
            await self.processes.read("camera")
            for name, work in (("recorder", "record"), ("viewer", "view")):
                await self.processes.start(name, "examples.demo.camera", work, *where)
            seen = int(await self.processes.read("viewer"))
            ended = await self.processes.kill("viewer")
            taken = json.loads(await self.processes.read("recorder"))
            sent = json.loads(await self.processes.read("camera"))
        self.tell.check(f"the viewer saw {seen} pictures, and ended by signal {{}}", -ended, 9)
        self.tell.check("the camera went on: it sent {} pictures", sent["sent"], PICTURES)
        self.tell.check("it still waits for the recorder, and no longer for the viewer", sent["given up on"], 1)
        self.tell.check("the recorder read {} of them", taken["read"], PICTURES)
        self.tell.check("none is missing, and none is torn", (taken["missed"], taken["whole"]), (0, PICTURES))

    # What several chapters need

    async def place(self, numbers: range) -> None:
        """Have the desk take orders; when it answers, they are on the hub's disk."""
        async with self.tell.waiting("the desk to take the orders"):
            ids = await self.bus.request("desk.place", list(numbers), reply=list[str], timeout_s=WAIT_S)
        self.ids.update(zip(numbers, ids, strict=True))

    async def bill(self, count: int) -> None:
        async with self.tell.waiting("the invoices"):
            self.billed += [(await receive(self.invoices)).decode(Invoice) for _ in range(count)]

    def amounts(self) -> dict[int, float]:
        """The invoices so far. An order that was billed twice counts twice, so that it does not go unnoticed."""
        amounts: dict[int, float] = defaultdict(float)
        for invoice in self.billed:
            amounts[invoice.order] += invoice.euros
        return dict(amounts)

    async def mean(self, amounts: dict[int, float]) -> None:
        large = [euros for euros in amounts.values() if euros >= 5]
        async with self.tell.waiting("the kernel"):
            task = MeanOf(len(large), self.kernel)
            self.analysed = await self.bus.request("analyst.mean", task, reply=Mean, timeout_s=WAIT_S)
        found = float(self.analysed.euros)
        self.tell.check(f"the mean of {len(large)} invoices is {{:.2f}} euros", found, statistics.mean(large))

    async def look(self, last: int) -> Look:
        async with self.tell.waiting("the dashboard"):
            look = await self.bus.request("dashboard.look", last, reply=Look, timeout_s=WAIT_S)
        self.looks.append(look)
        return look

    async def settled(self, subscriber: str, numbers: Sequence[int]) -> list[str]:
        """What became of orders for a subscriber. The journal may have it a moment later than the subscriber."""
        async with asyncio.timeout(WAIT_S), self.tell.waiting("the journal"):
            while True:
                with tl.journal.Reader(self.output.journal) as journal:
                    outcomes = [outcome(journal, self.ids[number], subscriber) for number in numbers]
                if all(each.fate is not tl.Fate.IN_FLIGHT for each in outcomes):
                    return [f"{each.fate}: {each.reason}" if each.reason else str(each.fate) for each in outcomes]
                await asyncio.sleep(SEEN_EVERY_S)


def expected(numbers: Sequence[int]) -> dict[int, float]:
    return {number: price(number) for number in sorted(numbers)}


def span(numbers: list[int]) -> str:
    """`32 to 41`, if none is missing in between."""
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else str(numbers)


def outcome(journal: tl.journal.Reader, message_id: str, subscriber: str) -> tl.Outcome:
    message = journal.find(message_id)
    assert message is not None, f"{message_id} is not in the journal"
    found = {each.subscriber: each for each in journal.outcomes(message)}
    return found.get(subscriber, tl.Outcome(subscriber, tl.Fate.IN_FLIGHT))


async def receive(stream: tl.Stream) -> tl.Message:
    message = await stream.recv(timeout_s=WAIT_S)
    assert message is not None, f"{stream.name} was closed"
    return message
