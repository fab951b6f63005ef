"""An encrypted payload can be decrypted only with the same key; keys can be replaced."""

from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.hooks import Encrypt, KeyRing

KEY, OTHER = bytes(range(32)), bytes(reversed(range(32)))
SECRET = b"the price is 4711 and nobody else's business"


FORK = """
import os
from trunkline import Message
from trunkline.hooks import Encrypt

hook = Encrypt({"k1": bytes(32)}, current="k1")

def show():
    print(hook.seal(Message(topic="t")).payload[:16].hex(), flush=True)

show()
if not os.fork():
    show()
    os._exit(0)
os.wait()
show()
"""


def encrypt(**options: Any) -> Encrypt:
    return Encrypt({"k1": KEY}, current="k1", **options)


def message(payload: object = SECRET, **fields: Any) -> tl.Message:
    return tl.Message(**{"id": "m1", "topic": "t", "payload": payload, "sender": "me", **fields})


# The hook itself


@given(st.binary(max_size=200), st.text(max_size=10), st.text(max_size=10), st.sampled_from(["", "zlib"]))
def test_what_is_sealed_is_opened_as_it_was(payload: bytes, id: str, sender: str, inner: str) -> None:
    one, other = encrypt(), encrypt()
    plain = message(payload, id=id, sender=sender, encoding=inner)
    sealed = one.seal(plain)
    assert sealed.encoding.endswith("aes-256-gcm:k1")
    assert len(sealed.payload) == len(payload) + 40
    assert other.open(sealed) == plain
    assert one.open(sealed) == plain


def test_what_was_sealed_is_not_sealed_again() -> None:
    sealed = encrypt().seal(message())
    assert Encrypt({"k2": OTHER}, current="k2").seal(sealed) is sealed


def test_plain_messages_are_taken_unless_only_sealed_ones_are() -> None:
    assert encrypt().open(message()) == message()
    for plain in (message(), message(encoding="zlib")):
        with pytest.raises(tl.InvalidPayload, match="not encrypted"):
            encrypt(sealed_only=True).open(plain)


def test_nothing_comes_twice() -> None:
    """The same message, encrypted many times by many processes with one key: no key and number is used twice."""
    seen = {hook.seal(message()).payload[:24] for hook in [encrypt() for _ in range(20)] for _ in range(50)}
    assert len(seen) == 1000


def test_a_child_process_does_not_go_on_with_the_numbers_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    parent, child, parent_again = done.stdout.split()
    assert parent == parent_again != child


def test_before_numbers_run_out_there_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.hooks.encrypt.MAX_SEALED", 3)
    hook = encrypt()
    sealed = [hook.seal(message()) for _ in range(12)]
    assert len({each.payload[:16] for each in sealed}) == 3
    assert all(encrypt().open(each) == message() for each in sealed)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "m2"},
        {"topic": "u"},
        {"sender": "you"},
        {"content_type": "application/json"},
        {"encoding": "zlib+aes-256-gcm:k1"},
        {"payload": b""},
        {"payload": b"x" * 10},
        {"payload": b"x" * 100},
    ],
    ids=str,
)
def test_what_was_changed_does_not_open(change: dict[str, Any]) -> None:
    sealed = encrypt().seal(message())
    with pytest.raises(tl.InvalidPayload, match=r"cannot be decrypted with the key 'k1': it, or the id, topic, sender"):
        encrypt().open(msgspec.structs.replace(sealed, **change))


@given(st.data())
def test_no_bit_can_be_changed(data: st.DataObject) -> None:
    sealed = encrypt().seal(message())
    changed = bytearray(sealed.payload)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(changed) if data.draw(st.booleans()) else sealed.payload[: data.draw(st.integers(0, len(changed) - 1))]
    with pytest.raises(tl.InvalidPayload):
        encrypt().open(msgspec.structs.replace(sealed, payload=cut))


def test_payloads_of_two_messages_cannot_be_swapped() -> None:
    hook = encrypt()
    one, two = hook.seal(message(id="m1")), hook.seal(message(id="m2"))
    with pytest.raises(tl.InvalidPayload):
        hook.open(msgspec.structs.replace(one, payload=two.payload))


def test_a_key_under_the_same_name_that_is_another_does_not_open() -> None:
    with pytest.raises(tl.InvalidPayload, match="cannot be decrypted"):
        Encrypt({"k1": OTHER}, current="k1").open(encrypt().seal(message()))


# Keys


def test_rotation_new_ones_seal_and_old_ones_still_open() -> None:
    ring = KeyRing({"spring": KEY}, current="spring")
    hook = Encrypt(ring)
    old = hook.seal(message())
    ring.add("summer", OTHER)
    assert hook.seal(message()).encoding == "aes-256-gcm:spring"
    ring.use("summer")
    new = hook.seal(message())
    assert new.encoding == "aes-256-gcm:summer"
    assert hook.open(old) == hook.open(new) == message()
    ring.retire("spring")
    assert hook.open(new) == message()
    with pytest.raises(tl.InvalidPayload, match="the key 'spring', which is not known here; known: summer"):
        hook.open(old)


def test_a_ring_says_what_is_wrong_and_shows_no_key() -> None:
    ring = KeyRing({"spring": KEY}, current="spring")
    assert repr(ring) == "KeyRing(spring; current spring)"
    for name, key in (
        ("a+b", KEY),
        ("", KEY),
        ("a" * 65, KEY),
        ("k", b"short"),
        ("k", bytearray(32)),
        ("spring", OTHER),
    ):
        with pytest.raises(tl.InvalidSettings):
            ring.add(name, key)  # type: ignore[arg-type]  # some are no bytes
    ring.add("spring", KEY)
    with pytest.raises(tl.InvalidSettings, match="there is no key 'winter'; there are: spring"):
        ring.use("winter")
    with pytest.raises(tl.InvalidSettings, match="in use"):
        ring.retire("spring")
    with pytest.raises(tl.InvalidSettings, match="name the key that encrypts"):
        Encrypt({"k1": KEY})
    ring.add("summer", OTHER)
    assert Encrypt(ring, current="summer").seal(message()).encoding.endswith(":summer")


def test_without_the_package_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fail(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(tl.MissingExtra, match=r"trunkline\[keys\]"):
        encrypt()
