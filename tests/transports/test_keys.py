"""The store of keys: its permissions, the keys it makes, and where a hub may listen without keys."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.transports.wires import MAX_FRAME_BYTES, End, keys_in
from trunkline.errors import DuplicateName, InvalidSettings, MissingExtra
from trunkline.keys.store import KeyStore, default_path, keys_in_use
from trunkline.transports.binding import allowed_to_bind
from trunkline.transports.schemes import transport_for

PRIVATE = ("authority.key", "own.key", "own.curve")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# What is made


def test_nobody_else_can_read_what_is_private(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        hub, alice = keys_in(tmp_path)
    finally:
        os.umask(mask)
    assert mode(hub.path) == mode(hub.path / "clients") == mode(alice.path) == 0o700
    for store in (hub, alice):
        for file in store.path.iterdir():
            if file.is_file():
                private = file.name in (*PRIVATE, "register.json")
                assert mode(file) == (0o600 if private else 0o644), file
    # A client gets nothing with which it could make keys.
    assert {file.name for file in alice.path.iterdir()} == {
        "authority.pem",
        "hub.curve",
        "own.curve",
        "own.key",
        "own.pem",
    }


def test_certificates_say_for_what_they_are(tmp_path: Path) -> None:
    hub = KeyStore(tmp_path)
    made = hub.make_hub(["hub.example", "10.0.0.1"], days=10)
    hub.make_client("alice", days=5)
    assert made.hosts == ("localhost", "127.0.0.1", "::1", "hub.example", "10.0.0.1")
    purposes = {}
    for path in (hub.path, hub.bundle("alice")):
        certificate = x509.load_pem_x509_certificate((path / "own.pem").read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((hub.path / "authority.pem").read_bytes()))
        name = str(certificate.subject.rfc4514_string())
        purposes[name] = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert purposes == {
        "CN=hub": {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH},
        "CN=alice": {ExtendedKeyUsageOID.CLIENT_AUTH},
    }
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert 4 <= left.days <= 5


def test_a_hub_that_is_made_again_keeps_its_clients(tmp_path: Path) -> None:
    hub, alice = keys_in(tmp_path)
    before = {name: (hub.path / name).read_bytes() for name in ("authority.pem", "own.curve", "own.pem")}
    again = hub.make_hub(["hub.example"])
    assert "hub.example" in again.hosts
    assert (hub.path / "authority.pem").read_bytes() == before["authority.pem"]
    assert (hub.path / "own.curve").read_bytes() == before["own.curve"]
    assert (hub.path / "own.pem").read_bytes() != before["own.pem"]
    assert [key.name for key in hub.list()] == ["alice", "hub"]
    assert hub.name_of_certificate(hub.list()[0].serial) == "alice"
    assert alice.hub_curve_key() == hub.curve_pair()[0]


@pytest.mark.parametrize("name", ["", "hub", "a b", "../alice", ".hidden", "a/b", "ä", "x" * 64, "-x", "a\n"])
def test_names_that_no_client_can_have(name: str, tmp_path: Path) -> None:
    hub, _ = keys_in(tmp_path)
    with pytest.raises(InvalidSettings, match="cannot be the name"):
        hub.make_client(name)


@pytest.mark.parametrize("host", ["", "a b", "ä", "x\n", "-"])
def test_names_that_no_hub_can_have(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="neither an IP address nor a valid host name"):
        KeyStore(tmp_path).make_hub([host])


def test_a_name_has_one_key_at_a_time(tmp_path: Path) -> None:
    hub, _ = keys_in(tmp_path)
    with pytest.raises(DuplicateName, match="alice"):
        hub.make_client("alice")
    (revoked,) = hub.revoke("alice")
    assert hub.revoke("alice") == []
    assert hub.revoke("nobody") == []
    new = hub.make_client("alice")
    assert hub.name_of_certificate(new.serial) == "alice"
    assert hub.name_of_certificate(revoked.serial) is None
    assert new.curve != revoked.curve
    with pytest.raises(InvalidSettings, match="cannot be revoked"):
        hub.revoke("hub")


def test_two_who_make_keys_at_the_same_time(tmp_path: Path) -> None:
    hub, _ = keys_in(tmp_path)
    names = [f"client-{number}" for number in range(20)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: KeyStore(hub.path).make_client(name), names))
    assert {key.name for key in hub.list()} == {"hub", "alice", *names}
    assert len({key.serial for key in hub.list()}) == len(hub.list())


# What is refused


@pytest.mark.parametrize("name", ["own.key", "own.curve"])
def test_a_private_key_that_others_can_read_is_not_used(name: str, tmp_path: Path) -> None:
    for store in keys_in(tmp_path):
        (store.path / name).chmod(0o640)
        with pytest.raises(PermissionError, match="chmod 600"):
            store.client_context() if name == "own.key" else store.curve_pair()


def test_an_authority_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    hub, _ = keys_in(tmp_path)
    (hub.path / "authority.key").chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        hub.make_client("bob")
    assert [key.name for key in hub.list()] == ["hub", "alice"]


def test_a_store_that_others_can_write_to_lets_nobody_in(tmp_path: Path) -> None:
    hub, _ = keys_in(tmp_path)
    hub.path.chmod(0o770)
    for use in (hub.server_context, hub.list, lambda: hub.make_client("bob")):
        with pytest.raises(PermissionError, match="chmod 700"):
            use()


def test_what_is_not_there(tmp_path: Path) -> None:
    empty = KeyStore(tmp_path / "none")
    _, alice = keys_in(tmp_path)
    for use in (empty.client_context, empty.curve_pair, empty.hub_curve_key):
        with pytest.raises(FileNotFoundError, match="make client NAME"):
            use()
    for store in (empty, alice):
        with pytest.raises(FileNotFoundError, match="make hub"):
            store.server_context()
        with pytest.raises(FileNotFoundError, match="make hub"):
            store.list()
        with pytest.raises(FileNotFoundError, match="make hub"):
            store.make_client("bob")
    for kind in ("tcp", "zmq+tcp"):
        transport = transport_for(f"{kind}://127.0.0.1:0", alice.path)
        with pytest.raises(FileNotFoundError, match="make hub"):
            asyncio.run(transport.listen(f"{kind}://127.0.0.1:0", End, max_frame_bytes=MAX_FRAME_BYTES))


def test_keys_that_are_none(tmp_path: Path) -> None:
    _, alice = keys_in(tmp_path)
    for name in ("own.pem", "own.curve", "hub.curve"):
        (alice.path / name).write_text("nonsense")
    with pytest.raises(ssl.SSLError):
        alice.client_context()
    for use in (alice.curve_pair, alice.hub_curve_key):
        with pytest.raises(OSError, match="holds no CURVE key"):
            use()


def test_making_keys_needs_an_optional_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "trunkline.keys.certificates", raising=False)
    monkeypatch.delattr("trunkline.keys.certificates", raising=False)
    with pytest.raises(MissingExtra, match=r"trunkline\[hub,keys\]"):
        KeyStore(tmp_path / "keys").make_hub()


# Where keys are searched for, and where none are needed


def test_keys_are_those_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNKLINE_KEYS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys_in_use(None) is None
    assert default_path() == KeyStore().path == tmp_path / ".config/trunkline/keys"
    monkeypatch.setenv("TRUNKLINE_KEYS", str(tmp_path / "mine"))
    found = keys_in_use(None)
    assert found is not None
    assert found.path == default_path() == tmp_path / "mine"
    found = keys_in_use("~/other")
    assert found is not None
    assert found.path == tmp_path / "other"


ANYWHERE = ["0.0.0.0", "*", "[::]", "10.0.0.1", "hub.example"]
HERE = ["127.0.0.1", "127.0.0.2", "localhost", "[::1]", ""]


@pytest.mark.parametrize("scheme", ["tcp", "zmq+tcp"])
def test_without_keys_a_hub_listens_on_this_machine_only(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, _ = keys_in(tmp_path)
    for told in (None, "0", "1"):
        if told is None:
            monkeypatch.delenv("TRUNKLINE_INSECURE", raising=False)
        else:
            monkeypatch.setenv("TRUNKLINE_INSECURE", told)
        for exposed in (False, True):
            for host in HERE:
                allowed_to_bind(f"{scheme}://{host}:1", None, exposed)
            for host in ANYWHERE:
                allowed_to_bind(f"{scheme}://{host}:1", keys, exposed)
                if exposed and told == "1":
                    allowed_to_bind(f"{scheme}://{host}:1", None, exposed)
                    continue
                with pytest.raises(InvalidSettings, match=r"TRUNKLINE_INSECURE=1|insecure=True|keys make hub"):
                    allowed_to_bind(f"{scheme}://{host}:1", None, exposed)


@pytest.mark.parametrize("scheme", ["tcp", "zmq+tcp"])
def test_listening_asks_whether_it_may(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNKLINE_KEYS", raising=False)
    monkeypatch.delenv("TRUNKLINE_INSECURE", raising=False)
    url = f"{scheme}://0.0.0.0:0"

    async def listen() -> None:
        listener = await transport_for(url, insecure=True).listen(url, End, max_frame_bytes=MAX_FRAME_BYTES)
        await listener.aclose()

    with pytest.raises(InvalidSettings, match="TRUNKLINE_INSECURE=1 as well"):
        asyncio.run(listen())
    monkeypatch.setenv("TRUNKLINE_INSECURE", "1")
    asyncio.run(listen())
