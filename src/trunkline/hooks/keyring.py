"""Keys by name: one encrypts, all decrypt. So a key can be replaced while messages are in flight."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trunkline.errors import InvalidSettings

KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeyRing:
    """To replace a key: `add` the new one in every process that decrypts, then `use` it, then `retire` the old one.

    `os.urandom(32)` makes a key. Its name is sent with each message, and is not secret.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current: str) -> None:
        self._keys: dict[str, bytes] = {}
        for name, key in keys.items():
            self.add(name, key)
        self.use(current)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)}; current {self._current})"

    @property
    def current(self) -> str:
        """The name of the key that encrypts."""
        return self._current

    @property
    def names(self) -> list[str]:
        return list(self._keys)

    def add(self, name: str, key: bytes) -> None:
        """Add a key that can decrypt from now on.

        Raises InvalidSettings for an invalid key, or a name that is in use.
        """
        if not NAME.fullmatch(name):
            raise InvalidSettings(f"a key cannot be called {name!r}: use up to 64 letters, digits, dots and dashes")
        if key.__class__ is not bytes or len(key) != KEY_BYTES:
            raise InvalidSettings(f"the key {name!r} must have {KEY_BYTES} bytes: os.urandom({KEY_BYTES}) makes one")
        if self._keys.setdefault(name, key) != key:
            raise InvalidSettings(f"there is another key called {name!r}: a new key needs a new name")

    def use(self, name: str) -> None:
        """Encrypt with this key from now on."""
        if name not in self._keys:
            raise InvalidSettings(f"there is no key {name!r}; there are: {', '.join(self._keys) or 'none'}")
        self._current = name

    def retire(self, name: str) -> None:
        """Remove a key. From now on, it no longer decrypts."""
        if name == self._current:
            raise InvalidSettings(f"the key {name!r} is in use: use another one first")
        self._keys.pop(name, None)

    def find(self, name: str) -> bytes | None:
        return self._keys.get(name)
