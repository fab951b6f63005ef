"""Which broker `connect` chooses, and the hints it gives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from trunkline.brokers.memory import MemoryBroker
from trunkline.cli.options import hub_at
from trunkline.connect import _hint
from trunkline.transports.runtime import default_url, hub_answers


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An own runtime directory, without a hub. The hint has not been given yet."""
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(tmp_path / "run"))
    monkeypatch.delenv("TRUNKLINE_HUB", raising=False)
    _hint.cache_clear()
    yield
    _hint.cache_clear()


def test_without_an_address_it_is_this_process() -> None:
    async def main() -> None:
        async with tl.connect() as bus:
            assert isinstance(bus.broker, MemoryBroker)

    asyncio.run(main())


def test_hub_names_the_default_socket_and_embed_starts_it_when_entered() -> None:
    async def main() -> None:
        assert not hub_answers()
        async with tl.connect("hub:", name="one", embed=True) as one:
            assert hub_answers()
            assert isinstance(one.broker, tl.HubBroker)
            assert one.broker.url == default_url()
            async with tl.connect("hub:", name="another") as other, other.subscribe("a") as stream:
                await one.publish("a", 1)
                message = await stream.recv(timeout_s=60)
                assert message is not None
                assert message.decode() == 1

    asyncio.run(main())


def test_buses_that_embed_at_one_address_share_one_hub(tmp_path: Path) -> None:
    """Leaks, such as a listening socket, fail every test."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        async with (
            tl.connect(place, name="one", embed=True) as one,
            tl.connect(place, name="two", embed=True) as two,
            two.subscribe("a") as stream,
        ):
            await one.publish("a", 1)
            message = await stream.recv(timeout_s=60)
            assert message is not None
            await one.aclose()
            # It stays open for the other.
            await two.publish("a", 2)
            message = await stream.recv(timeout_s=60)
            assert message is not None
            assert message.decode() == 2
        assert not (tmp_path / "hub.sock").exists()

    asyncio.run(main())


def test_only_one_of_them_gives_the_hub_its_journal(tmp_path: Path) -> None:
    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        async with tl.connect(place, embed=True):
            with pytest.raises(tl.UsageError) as error:
                tl.connect(place, embed=True, journal=tmp_path / "journal")
        assert str(error.value) == (
            f"another bus in this program embeds the hub at {place}: pass `journal` there, and only there"
        )

    asyncio.run(main())


def test_an_address_that_is_set_counts_for_programs_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"unix://{tmp_path}/x.sock"
    monkeypatch.setenv("TRUNKLINE_HUB", place)
    file = tmp_path / "settings.toml"
    file.write_text(f'[bus]\nhub = "unix://{tmp_path}/y.sock"\n')

    async def main() -> None:
        async with (
            tl.connect() as bus,
            tl.connect(settings=tl.Settings(drain_s=0)) as other,
            tl.connect("memory:") as inside,
            tl.connect(journal=tmp_path / "journal") as journal,
        ):
            assert isinstance(bus.broker, tl.HubBroker)
            assert isinstance(other.broker, tl.HubBroker)
            assert bus.broker.url == other.broker.url == place
            assert isinstance(inside.broker, MemoryBroker)
            assert isinstance(journal.broker, MemoryBroker)
        monkeypatch.delenv("TRUNKLINE_HUB")
        monkeypatch.setenv("TRUNKLINE_CONFIG", str(file))
        async with tl.connect() as bus:
            assert isinstance(bus.broker, tl.HubBroker)
            assert bus.broker.url.endswith("y.sock")

    assert hub_at("") == place
    assert hub_at("hub:") == default_url()
    asyncio.run(main())
    assert hub_at("").endswith("y.sock")


def test_a_hub_that_nobody_named_is_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tl.connect("hub:", embed=True):
            with caplog.at_level(logging.WARNING, "trunkline.connection"):
                for _ in range(3):
                    async with tl.connect() as bus:
                        assert isinstance(bus.broker, MemoryBroker)
                async with tl.connect("memory:"):
                    pass

    asyncio.run(main())
    (record,) = caplog.records
    assert record.getMessage() == (
        'a hub runs on this machine, and this bus does not use it: write connect("hub:") to use it,'
        ' or connect("memory:") to stay inside this process'
    )


@pytest.mark.parametrize(
    ("url", "meant"),
    [("memory", "memory:"), ("localhost:7420", "tcp://localhost:7420"), ("/x.sock", "unix:///x.sock")],
)
def test_an_address_without_a_scheme(url: str, meant: str) -> None:
    with pytest.raises(tl.UnknownScheme) as error:
        tl.connect(url)
    assert str(error.value) == f"no broker serves {url!r}; did you mean {meant!r}?"


def test_other_slips_say_what_to_write() -> None:
    async def main() -> None:
        async with tl.connect("memory:") as bus:
            with pytest.raises(tl.UsageError) as bare:

                @bus.on  # type: ignore[arg-type]
                async def take(message: tl.Message) -> None: ...

            assert str(bare.value) == '`on` needs a pattern: write @bus.on("orders.*") above take'
            with pytest.raises(tl.UsageError) as entered, bus:
                pass
            assert str(entered.value) == (
                "a bus is asynchronous: write `async with connect(...)`, or `with connect_blocking(...)`"
            )

    asyncio.run(main())


@pytest.mark.parametrize("given", [5, b"hub:", Path("hub.sock")])
def test_what_is_no_address(given: Any) -> None:
    with pytest.raises(tl.UsageError) as error:
        tl.connect(given)
    assert str(error.value) == f'connect takes an address such as "hub:" or "memory:", not {type(given).__name__}'
