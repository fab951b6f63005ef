"""End-to-end encryption of payloads: brokers and journals see only the header.

AES-256-GCM, from the `cryptography` package. Each hook draws 16 random bytes, derives its own key from them and the
given key (HKDF, SHA-256), and numbers the payloads that it seals. No nonce is used twice under one key, even if many
processes share the given key and seal many payloads. A sealed payload is

    the 16 random bytes · the number (8 bytes, highest first) · the ciphertext and its tag

The encoding of the message is `aes-256-gcm:NAME` with the name of the key, after `zlib+` if the payload was compressed
before. The id, topic, sender, content type and encoding of the message are authenticated: a payload that is moved to
another message cannot be decrypted.
"""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from trunkline.codec import SEAL
from trunkline.errors import InvalidPayload, InvalidSettings, MissingExtra
from trunkline.hooks.hook import Batch, Forward, Hook, Stage
from trunkline.hooks.keyring import KEY_BYTES, KeyRing
from trunkline.message import Message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SALT_BYTES = 16
NUMBER_BYTES = 8
NONCE_BYTES = 12
HEAD_BYTES = SALT_BYTES + NUMBER_BYTES
MAX_SEALED = 2**32
"""The maximum number of uses of one derived key."""
MAX_CACHED = 1000
_INFO = b"trunkline " + SEAL.encode()


class Encrypt(Hook):
    """Encrypts the messages that its bus publishes, and decrypts those that it receives. Pass it to every bus that must
    read the messages.

    `current` is the key that encrypts, and all of `keys` can decrypt; with a KeyRing they may change while the bus
    runs. A message that cannot be decrypted, because the key is missing or the message was changed, raises
    InvalidPayload when it is decoded: at a handler it becomes a dead letter. Messages that are not encrypted are
    accepted, unless `sealed_only`.
    """

    stage = Stage.ENCRYPT

    def __init__(
        self, keys: Mapping[str, bytes] | KeyRing, *, current: str | None = None, sealed_only: bool = False
    ) -> None:
        self._derive, self._refused = _engine()
        if isinstance(keys, KeyRing):
            self.keys = keys
            if current is not None:
                keys.use(current)
        elif current is None:
            raise InvalidSettings("name the key that encrypts: Encrypt({'spring': key}, current='spring')")
        else:
            self.keys = KeyRing(keys, current=current)
        self._sealed_only = sealed_only
        self._sealer: _Sealer | None = None
        self._openers: OrderedDict[tuple[bytes, bytes], AESGCM] = OrderedDict()

    async def __call__(self, batch: Batch, forward: Forward) -> None:
        await forward([self.seal(message) for message in batch])

    def seal(self, message: Message) -> Message:
        """The message with its payload encrypted; unchanged, if it is already encrypted."""
        if SEAL in message.encoding:
            return message
        sealer = self._sealer
        if sealer is None or not sealer.fits(self.keys.current):
            key = self.keys.find(self.keys.current)
            assert key is not None, "a key ring always has a current key"
            sealer = self._sealer = _Sealer(self.keys.current, key, self._derive)
        encoding = f"{message.encoding}+{sealer.encoding}" if message.encoding else sealer.encoding
        payload = sealer.seal(message.payload, _bound(message, encoding))
        return msgspec.structs.replace(message, payload=payload, encoding=encoding)

    def open(self, message: Message) -> Message:
        """The message with its payload decrypted. Raises InvalidPayload if it cannot be decrypted."""
        inner, _, outer = message.encoding.rpartition("+")
        kind, _, name = outer.partition(":")
        if kind != SEAL:
            if self._sealed_only:
                raise InvalidPayload("the payload is not encrypted, and this bus accepts encrypted payloads only")
            return message
        key = self.keys.find(name)
        if key is None:
            known = ", ".join(self.keys.names)
            raise InvalidPayload(
                f"the payload is encrypted with the key {name!r}, which is not known here; known: {known}"
            )
        payload = message.payload
        nonce = payload[SALT_BYTES:HEAD_BYTES].rjust(NONCE_BYTES, b"\0")
        source = (key, payload[:SALT_BYTES])
        cipher = self._openers.get(source) or self._derive(*source)
        try:
            plain = cipher.decrypt(nonce, payload[HEAD_BYTES:], _bound(message, message.encoding))
        except self._refused as error:
            raise InvalidPayload(
                f"the payload cannot be decrypted with the key {name!r}: it, or the id, topic, sender or format of its "
                "message, was changed after the encryption"
            ) from error
        if source not in self._openers:
            # Cached for each encrypting hook, because deriving a key costs more than decrypting. Only keys of valid
            # messages are kept.
            self._openers[source] = cipher
            if len(self._openers) > MAX_CACHED:
                self._openers.popitem(last=False)
        return msgspec.structs.replace(message, payload=plain, encoding=inner)


class _Sealer:
    """One derived key, and the number of its uses."""

    def __init__(self, name: str, key: bytes, derive: Callable[[bytes, bytes], AESGCM]) -> None:
        self._name = name
        self._pid = os.getpid()
        # Not from `World`, whose random numbers a test may fix: two processes with one key must never use the same
        # nonce.
        self._salt = os.urandom(SALT_BYTES)
        self._numbers = itertools.count()
        self._last = -1
        self._cipher = derive(key, self._salt)
        self.encoding = f"{SEAL}:{name}"

    def fits(self, name: str) -> bool:
        """Whether the derived key may still be used.

        A forked process must not continue with the numbers of its parent.
        """
        return name == self._name and self._pid == os.getpid() and self._last < MAX_SEALED

    def seal(self, payload: bytes, bound: bytes) -> bytes:
        # Thread-safe: each call gets its own number.
        self._last = number = next(self._numbers)
        head = number.to_bytes(NUMBER_BYTES, "big")
        return self._salt + head + self._cipher.encrypt(head.rjust(NONCE_BYTES, b"\0"), payload, bound)


def _bound(message: Message, encoding: str) -> bytes:
    """The authenticated header fields, in an unambiguous form."""
    return msgspec.msgpack.encode((encoding, message.id, message.topic, message.sender, message.content_type))


def _engine() -> tuple[Callable[[bytes, bytes], AESGCM], tuple[type[Exception], ...]]:
    """The functions of `cryptography`: key derivation, cipher, and the error of a failed decryption."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise MissingExtra("keys", "encrypting payloads") from error

    def derive(key: bytes, salt: bytes) -> AESGCM:
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, _INFO).derive(key))

    # ValueError: too short to be encrypted data.
    return derive, (InvalidTag, ValueError)
