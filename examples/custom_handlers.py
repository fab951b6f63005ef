"""Routing rules, filters on content, your own hook, and a failing handler that does not affect the others."""

from __future__ import annotations

import asyncio

import trunkline as tl


# Your own hook, from a function on one message: it passes, changes or refuses it.
def no_cards(message: tl.Message) -> tl.Message:
    if "card" in (message.headers or {}):
        raise tl.Refused("card numbers do not travel on this bus")
    return message


async def main() -> None:
    heard: list[str] = []
    async with tl.connect(name="shop", hooks=[tl.hooks.each(no_cards)]) as bus:
        # The router: handlers have names, rules say what goes to them. A handler gets a message once.
        async def review(order: dict[str, object]) -> None:
            heard.append(f"review  {order}")

        async def archive(message: tl.Message) -> None:
            heard.append(f"archive {message.topic} from {message.sender}")

        bus.router.register_handler("review", review)
        bus.router.register_handler("archive", archive)
        bus.router.add_rule(tl.Rule(id="large", handler="review", topic="orders.*", where="payload.total > 100"))
        bus.router.add_rule(tl.Rule(id="urgent", handler="review", topic="orders.*", where="priority >= 75"))
        bus.router.add_rule(tl.Rule(id="agents", handler="archive", sender="agent-*", priority=10))

        # A filter on a subscription: what does not fit is counted as filtered and never reaches the handler.
        @bus.on("orders.*", where="payload.country in ('fr', 'de')")
        async def tax(order: dict[str, object]) -> None:
            heard.append(f"tax     {order}")

        # This one always fails. It is tried twice, then the message is a dead letter: of this handler alone.
        @bus.on("orders.*", retry=tl.Retry(attempts=2, delay_s=0.01))
        async def broken(order: dict[str, object]) -> None:
            raise ConnectionError("the printer is on fire")

        async with bus.subscribe("_dead.orders.*") as notices:
            await bus.publish("orders.new", {"total": 250, "country": "fr"})
            await bus.publish("orders.new", {"total": 5}, sender="agent-7", priority=80)
            for _ in range(2):
                await notices.recv()
        try:
            await bus.publish("orders.new", {"total": 1}, headers={"card": "4111"})
        except tl.Refused as error:
            print(f"refused: {error}")
        matching = bus.router.matching(bus.message("orders.new", {"total": 500}, sender="agent-1"))
        print(f"an order of 500 by agent-1 would go by the rules: {', '.join(rule.id for rule in matching)}")
        print("\n".join(sorted(heard)))
        print(f"dead letters: {[(letter.subscriber, len(letter.attempts)) for letter in bus.dead_letters]}")


if __name__ == "__main__":
    asyncio.run(main())
