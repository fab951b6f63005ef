"""One trace over NATS and over Redis: publish, deliver, handle, retry, dead letter, answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.test_engine_letters import server_of
from tests.hooks.test_trace_conventions import Recorded, attributes
from tests.hub.hubs import until

DEADLINE_S = 120.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nats", "redis"])
@pytest.mark.parametrize("durable", [False, True])
def test_one_trace_over_an_engine(kind: str, durable: bool, tmp_path: Path) -> None:
    there, here = Recorded(), Recorded()

    async def main(url: str) -> None:
        url = f"{url}?durable=orders.>" if durable else url
        async with (
            asyncio.timeout(DEADLINE_S),
            tl.connect(url, name="publisher", hooks=[there.hook]) as publisher,
            tl.connect(url, name="consumer", hooks=[here.hook]) as consumer,
        ):
            options: tl.DeliveryOptions = {"group": "billing", "durable": True} if durable else {}

            @consumer.on("orders.*", name="bill", retry=tl.Retry(attempts=2, delay_s=0.01), **options)
            async def bill(number: int) -> None:
                raise ValueError("unpaid")

            @consumer.on("prices", name="price")
            async def price(number: int) -> int:
                return number * number

            await consumer.flush()
            await publisher.publish("orders.eu", 7)
            assert await publisher.request("prices", 3, timeout_s=60) == 9
            await until(lambda: bool(here.named("dead letter")), "a dead letter")

    with server_of(kind, tmp_path) as server:
        asyncio.run(main(server.url))
    (published,) = there.named("publish")
    (request,) = there.named("request")
    (delivered,) = here.named("deliver orders.*")
    first, second = here.named("handle orders.*")
    (retry,) = here.named("retry orders.*")
    (dead,) = here.named("dead letter")
    for span in (delivered, first, second, retry, dead):
        assert span.context.trace_id == published.context.trace_id
        assert [link.context.span_id for link in span.links] == [published.context.span_id]
    assert attributes(second)["trunkline.attempt"] == 2
    assert attributes(retry)["trunkline.attempt"] == 1
    assert (attributes(dead)["trunkline.attempt"], attributes(dead)["trunkline.cause"]) == (2, "handler failed")
    (answered,) = here.named("respond")
    assert answered.context.trace_id == request.context.trace_id
