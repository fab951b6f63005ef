"""The transport of each URL scheme, and custom transports."""

from __future__ import annotations

import asyncio

import pytest

import trunkline as tl
from trunkline import transports
from trunkline.errors import UnknownScheme
from trunkline.hub.hub import Hub
from trunkline.transports.pair import PairTransport
from trunkline.transports.schemes import TRANSPORTS, transport_for


def test_every_scheme_has_its_transport() -> None:
    found = {scheme: type(transport_for(f"{scheme}:x")).__name__ for scheme in TRANSPORTS}
    assert found == {
        "pair": "PairTransport",
        "unix": "UnixTransport",
        "tcp": "TcpTransport",
        "zmq+ipc": "ZmqIpcTransport",
        "zmq+tcp": "ZmqTcpTransport",
    }
    for url in ("carrier:pigeon", "nonsense", ""):
        with pytest.raises(UnknownScheme, match="zmq"):
            transport_for(url)


def test_a_transport_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSPORTS, "pigeon", TRANSPORTS["pair"])
    mine = PairTransport()
    transports.register("pigeon", mine)
    assert transport_for("pigeon:loft") is mine

    async def main() -> None:
        async with Hub() as hub:
            address = await hub.listen("pigeon:loft")
            async with tl.connect(address, name="one") as bus, bus.subscribe("t") as stream:
                await bus.publish("t", "coo")
                async with asyncio.timeout(30):
                    got = await stream.recv()
                assert got is not None
                assert got.decode() == "coo"

    asyncio.run(main())


def test_an_address_without_a_scheme_to_listen_at() -> None:
    for url, meant in (("localhost:7420", "tcp://localhost:7420"), ("/x.sock", "unix:///x.sock")):
        with pytest.raises(UnknownScheme) as error:
            transport_for(url)
        assert str(error.value) == f"no broker serves {url!r}; did you mean {meant!r}?"
