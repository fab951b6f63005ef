"""The model of the page at a hub and on a journal: its queries, results and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import trunkline as tl
from tests.cli.commands import shop
from trunkline.brokers.memory import MemoryBroker
from trunkline.connect import connect_hub
from trunkline.dashboard.looks import look, tables
from trunkline.dashboard.page.model import model as model_module
from trunkline.dashboard.page.model.model import STEP_S, PageModel
from trunkline.dashboard.page.model.search import MessageQuery
from trunkline.errors import UsageError
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker
from trunkline.message import Message

DEADLINE_S = 60.0
Act = Callable[[Hub, str], Awaitable[None]]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def at_hub(tmp_path: Path, act: Act, *, durable: bool = True, access: Access | None = None) -> None:
    async def main() -> None:
        broker = JournalBroker(Journal(tmp_path / "journal"), owns_journal=True) if durable else MemoryBroker()
        async with Hub(broker, access=access) as hub:
            await hub.listen(f"unix://{tmp_path / 'hub.sock'}")
            await act(hub, hub.addresses[0])

    asyncio.run(main())


@pytest.mark.slow
def test_it_asks_while_somebody_looks_and_not_otherwise(tmp_path: Path) -> None:
    async def act(hub: Hub, url: str) -> None:
        async with PageModel(hub=url) as model:
            await asyncio.sleep(0.3)  # nobody looks: nothing may happen, and there is no event for that
            assert (model.asked, model.snapshot) == (0, None)
            async with asyncio.timeout(DEADLINE_S):
                while model.asked < 4:
                    model.look()
                    await asyncio.sleep(0.02)
            assert model.snapshot is not None
            assert [each.name for each in model.snapshot.clients] == ["trunkline page"]
            # Then everybody goes.
            async with asyncio.timeout(DEADLINE_S):
                while model._looked.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            asked = model.asked
            await asyncio.sleep(1)
            assert model.asked <= asked + 1

    at_hub(tmp_path, act, durable=False)


def test_dead_letters_are_grouped_edited_replayed_and_dropped(tmp_path: Path) -> None:
    async def act(hub: Hub, url: str) -> None:
        handled: list[int] = []
        async with PageModel(hub=url) as model, tl.connect(url, name="billing") as bus:

            @bus.on("orders.*", name="billing", durable=True, retry=tl.Retry(attempts=1))
            async def billing(order: dict[str, int]) -> None:
                if order["n"] < 0:
                    raise ValueError(f"order {order['n']} is negative")
                handled.append(order["n"])

            for number in (-1, -2, -3, 4):
                await bus.publish("orders.placed", {"n": number})

            async def three() -> bool:
                return sum(group.count for group in await model.letter_groups()) == 3

            await until(three)
            (group,) = await model.letter_groups()
            assert (group.subscriber, group.error_type, group.returns) == ("billing", "ValueError", 3)
            first = min(group.letters, key=lambda kept: kept.letter.at_ns)
            assert await model.replay([first], {"n": 7}) == []

            async def seven() -> bool:
                return 7 in handled

            await until(seven)
            (group,) = await model.letter_groups()
            assert group.count == 2
            # As it was, it fails once more.
            assert await model.replay(list(group.letters[:1])) == []
            await until(lambda: _count(model, 2))
            (group,) = await model.letter_groups()
            assert await model.drop(list(group.letters)) == 2
            assert await model.letter_groups() == []
            assert handled == [4, 7]

    at_hub(tmp_path, act)


async def _count(model: PageModel, wanted: int) -> bool:
    return sum(group.count for group in await model.letter_groups()) == wanted


def test_the_life_of_a_message_with_its_conversation(tmp_path: Path) -> None:
    async def act(hub: Hub, url: str) -> None:
        async with PageModel(hub=url) as model, tl.connect(url, name="till") as bus:

            @bus.on("stock.level", name="stock")
            async def stock(asked: dict[str, str]) -> dict[str, int]:
                return {"left": 3}

            async with bus.subscribe("orders.>", name="audit") as stream:
                first = await bus.publish("orders.placed", {"sku": "a-1", "html": "<script>"})
                await bus.publish("orders.paid", {"sku": "a-1"}, correlation_id=first)
                await bus.request("stock.level", {"sku": "a-1"}, correlation_id=first)
                for _ in range(2):
                    await stream.recv(DEADLINE_S)
            await model.refresh()
            assert model.journal is not None, "the journal is on this machine"
            life = await model.life_of(first)
            assert life.message is not None
            assert life.message.decode() == {"sku": "a-1", "html": "<script>"}
            assert [event.kind for event in life.events] == ["published", "delivered"]
            assert [node.message.topic.split(".")[0] for node in life.conversation][:3] == ["orders", "orders", "stock"]
            assert [node.depth for node in life.conversation][:3] == [0, 1, 1]
            assert (await model.life_of("no such message")).message is None

            async def found(**query: str) -> list[str]:
                return [each.topic for each in (await model.find_messages(MessageQuery(**query))).messages]

            assert await found(text=first) == ["orders.placed"]
            assert await found(topic="orders.*") == ["orders.paid", "orders.placed"]
            assert {each.partition(".")[0] for each in await found(correlation=first)} == {"orders", "stock", "_reply"}
            assert await found(text="<SCRIPT>") == ["orders.placed"]
            assert await found(since="2100-01-01") == []
            (row,) = await model.requests()
            assert (row.request.topic, row.state) == ("stock.level", "answered")
            delays = await model.delays_ms()
            assert delays is not None
            assert 0 <= delays[0] <= delays[2] < DEADLINE_S * 1000
            graph = await model.topology()
            assert graph is not None
            assert graph.layers[0] == ["till"]

    at_hub(tmp_path, act)


def test_without_a_journal_it_shows_what_is_published_while_somebody_looks(tmp_path: Path) -> None:
    async def act(hub: Hub, url: str) -> None:
        async with PageModel(hub=url) as model, tl.connect(url, name="till") as bus:
            assert model.tail is not None
            model.tail.want(DEADLINE_S)

            async def subscribed() -> bool:
                await model.refresh()
                return model.snapshot is not None and model.snapshot.subscribers_total == 1

            await until(subscribed)
            id = await bus.publish("orders.placed", {"n": 1})

            async def seen() -> bool:
                found = await model.find_messages(MessageQuery(topic="orders.>"))
                return [each.id for each in found.messages] == [id]

            await until(seen)
            assert (await model.life_of(id)).message is not None
            # No view is open: the subscription ends.
            model.tail.want(0)

            async def left() -> bool:
                await model.refresh()
                return model.snapshot is not None and model.snapshot.subscribers_total == 0

            await until(left)

    at_hub(tmp_path, act, durable=False)


@pytest.mark.slow
def test_it_says_why_it_shows_nothing_and_goes_on_when_the_hub_is_back(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'hub.sock'}"

    async def main() -> None:
        async with PageModel(hub=url) as model:
            await model.refresh()
            assert model.snapshot is None
            assert url in model.trouble
            async with Hub(MemoryBroker()) as hub:
                await hub.listen(url)
                await until(lambda: _well(model))
                first = model.snapshot
            assert first is not None
            await until(lambda: _ill(model))
            assert model.snapshot is not None, "what was known last stays"
            async with Hub(MemoryBroker()) as hub:
                await hub.listen(url)
                await until(lambda: _well(model))
                assert model.snapshot.hub != first.hub

    asyncio.run(main())


async def _well(model: PageModel) -> bool:
    await model.refresh()
    return not model.trouble


async def _ill(model: PageModel) -> bool:
    return not await _well(model)


def test_it_needs_the_right_to_administer(tmp_path: Path) -> None:
    rules = Access.load([{"who": "*", "may": ["publish", "subscribe"]}])

    async def act(hub: Hub, url: str) -> None:
        async with PageModel(hub=url) as model:
            await model.refresh()
            assert model.snapshot is None
            assert "administer" in model.trouble

    at_hub(tmp_path, act, access=rules)


def test_a_journal_alone_is_history(tmp_path: Path) -> None:
    ids = shop(tmp_path / "journal")

    async def main() -> None:
        async with PageModel(journal=tmp_path / "journal") as model:
            await model.refresh()
            assert model.trouble == ""
            assert model.snapshot is not None
            assert (model.snapshot.dead_letters, model.snapshot.subscribers[0].name) == (3, "billing")
            accepted = sum(point.published * STEP_S for point in model.history.points)
            assert accepted == pytest.approx(model.snapshot.published), "the plots begin with what the journal knows"
            assert model.problems() == []
            (group,) = await model.letter_groups()
            assert (group.count, group.returns) == (3, 0)
            with pytest.raises(UsageError, match="trunkline page --hub"):
                await model.replay(list(group.letters))
            with pytest.raises(UsageError):
                await model.drop(list(group.letters))
            life = await model.life_of(ids[0])
            assert [event.kind for event in life.events] == ["published", "attempt", "dead"]
            found = await model.find_messages(MessageQuery(topic="notes.>"))
            assert [each.topic for each in found.messages] == ["notes.odd", "notes.raw", "notes.text"]
            assert found.complete
            assert (await model.orphans(), await model.channels(), await model.pipeline()) == ([], [], None)

    asyncio.run(main())


def test_the_schema_of_a_message_is_that_of_its_channel(tmp_path: Path) -> None:
    async def act(hub: Hub, url: str) -> None:
        async with PageModel(hub=url) as model, tl.connect(url, name="till") as bus:
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
            directory = bus.broker.require_directory()
            await directory.create_channel("orders", pattern="orders.>", schema=schema)
            found = await model.schema_for(Message(topic="orders.placed", payload={"n": 1}))
            assert found is not None
            assert found.schema["properties"] == schema["properties"]
            assert await model.schema_for(Message(topic="other", payload={"n": 1})) is None
            assert [each.channel for each in await model.channels()] == ["orders"]
            assert [each.name for each in await model.schemas()] == ["orders"]

    at_hub(tmp_path, act, durable=False)


def test_channels_have_their_producers_and_consumers(tmp_path: Path) -> None:
    async def act(hub: Hub, url: str) -> None:
        async with (
            PageModel(hub=url) as model,
            tl.connect(url, name="till") as bus,
            connect_hub(url, name="top") as broker,
        ):
            assert await broker.directory.create_channel("orders", pattern="orders.>")
            async with bus.produce("orders", "shop-1"), bus.consume("orders", "billing-1"):
                (channel,) = await model.channels()
                assert [each.name for each in channel.producers] == ["till"]
                assert len(channel.consumers) == 1
                seen = tables(await look(broker, bus, 10, 0.01))["channels"]
                assert seen.rows == [("orders", "orders.>", "-", 1, 1)]

    at_hub(tmp_path, act, durable=False)


def test_an_execution_that_prints_a_lot_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "MAX_OF_KERNEL", 5)

    async def act(hub: Hub, url: str) -> None:
        async with PageModel(hub=url) as model, tl.connect(url, name="kernel") as bus:
            await bus.publish(
                "kernel.k1.shell.execute_request", {"content": {"code": "for n in range(9): …"}}, request_id="r1"
            )
            for number in range(9):
                await bus.publish("kernel.k1.iopub.stream", {"content": {"text": f"{number}\n"}}, request_id="r1")
            await model.refresh()
            (running,) = await model.executions("k1")
            assert (running.code[:3], running.state, running.output) == ("for", "running", "4\n5\n6\n7\n8\n")

    at_hub(tmp_path, act)


def test_one_of_hub_and_journal(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        PageModel()
    with pytest.raises(UsageError):
        PageModel(hub="hub:", journal=tmp_path)


def test_an_old_search_says_that_it_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.dashboard.page.model.search.MAX_SCANNED", 50)
    monkeypatch.setattr("trunkline.dashboard.page.model.search.STEP", 10)
    shop(tmp_path / "journal")

    async def main() -> None:
        async with PageModel(journal=tmp_path / "journal") as model:
            found = await model.find_messages(MessageQuery(text="no such text"))
            assert (found.messages, found.scanned, found.complete) == ([], 50, False)
            newest: list[Message] = (await model.find_messages(MessageQuery(topic="bulk"))).messages
            assert [each.decode()["v"] for each in newest] == list(range(99, 49, -1))

    asyncio.run(main())
