"""`trunkline keys`: its output, its exit codes, and that the next steps it prints work."""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path

import pytest

import trunkline as tl
from tests.cli.commands import Ran
from tests.transports.wires import begin_what_lasts
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.cli.main import run
from trunkline.hub.hub import Hub
from trunkline.keys.store import KeyStore


def keys(*words: object) -> Ran:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["keys", *map(str, words)])
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@pytest.fixture(scope="module", autouse=True)
def _lasting() -> None:
    begin_what_lasts()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default place of keys."""
    monkeypatch.setenv("TRUNKLINE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_from_nothing_to_a_client(folder: Path) -> None:
    made = keys("make", "hub", "hub.example")
    assert (made.code, made.err) == (0, "")
    assert str(folder) in made.out
    assert "hub.example" in made.out
    assert f"trunkline up --listen tcp://hub.example:7420 --keys {folder}" in made.out
    assert "no client has keys: trunkline keys make client NAME" in keys("list").out
    made = keys("make", "client", "alice")
    assert (made.code, made.err) == (0, "")
    assert f"scp -pr {folder}/clients/alice MACHINE:.config/trunkline/alice" in made.out
    assert "export TRUNKLINE_KEYS=~/.config/trunkline/alice" in made.out
    listed = keys("list")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:] if line] == [["hub", "valid"], ["alice", "valid"]]
    # A bundle is a directory of keys by itself.
    KeyStore(folder / "clients/alice").client_context()


def test_another_directory_is_named_in_every_next_step(tmp_path: Path) -> None:
    other = tmp_path / "two words"
    for words in (("make", "hub"), ("make", "client", "bob")):
        ran = keys(*words, "--keys", other)
        assert ran.code == 0
        assert f"--keys '{other}'" in ran.out
    assert KeyStore(other).list()[1].name == "bob"


def test_json_is_one_key_a_line() -> None:
    keys("make", "hub")
    keys("make", "client", "alice", "--days", 1)
    keys("make", "client", "bob")
    keys("revoke", "bob")
    hub, alice, bob = keys("list", "--json").lines()
    assert [each["state"] for each in (hub, alice, bob)] == ["valid", "valid", "revoked"]
    assert alice["expires_at"] - alice["made_at"] == 86_400
    assert bob["revoked_at"] >= bob["made_at"]
    assert hub["hosts"] == ["localhost", "127.0.0.1", "::1"]


def test_revoking() -> None:
    keys("make", "hub")
    keys("make", "client", "alice")
    missed = keys("revoke", "alcie")
    assert (missed.code, missed.out) == (1, "")
    assert "did you mean 'alice'?" in missed.err
    revoked = keys("revoke", "alice")
    assert (revoked.code, revoked.err) == (0, "")
    assert "alice" in revoked.out
    assert keys("revoke", "alice").code == 1
    assert "revoked" in keys("list").out


def test_what_is_wrong_is_said_with_what_to_do(folder: Path) -> None:
    for words in (("list",), ("revoke", "alice"), ("make", "client", "alice")):
        ran = keys(*words)
        assert ran.code == 1
        assert "trunkline keys make hub" in ran.err
    keys("make", "hub")
    keys("make", "client", "alice")
    again = keys("make", "client", "alice")
    assert again.code == 2
    assert "trunkline keys revoke alice" in again.err
    assert keys("make", "client", "no name").code == 2
    assert keys("make", "hub", "no host").code == 2
    assert keys("make", "client", "bob", "--days", 0).code == 2
    (folder / "authority.key").chmod(0o644)
    refused = keys("make", "client", "bob")
    assert refused.code == 1
    assert f"chmod 600 {folder}/authority.key" in refused.err


@pytest.mark.parametrize("scheme", ["tcp", "zmq+tcp"])
def test_a_bus_finds_its_keys(scheme: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub by TRUNKLINE_KEYS, a client by its settings, another one by TRUNKLINE_KEYS as well."""
    keys("make", "hub")
    keys("make", "client", "alice")

    async def main() -> None:
        async with Hub() as hub:
            address = await hub.listen(f"{scheme}://127.0.0.1:0")
            connection = ConnectionSettings(keys=str(folder / "clients/alice"))
            async with (
                tl.connect(address, name="one", connection=connection) as alice,
                tl.connect(address, name="two") as other,
            ):
                async with other.subscribe("t") as stream:
                    await other.flush()
                    await alice.publish("t", "hello")
                    async with asyncio.timeout(30):
                        got = await stream.recv()
                assert got is not None
                assert got.decode() == "hello"
                who = sorted(session.identity for session in hub.sessions.values())
                assert [each.partition(":")[2] for each in who] == ["alice", "hub"]

    asyncio.run(main())
