"""Checks whether a server keeps the data that it has confirmed. If not, a warning is logged once."""

from __future__ import annotations

import logging

from redis.exceptions import RedisError
from trunkline.brokers.redis.link import RedisLink

log = logging.getLogger("trunkline.connection")

WANTED = {
    "appendonly": ("yes", "stored messages are lost when the server ends"),
    "appendfsync": ("always", "a power failure loses the last second of stored messages"),
    "maxmemory-policy": ("noeviction", "the server may delete stored messages when its memory is full"),
}


class Durability:
    """The check of one server. `known`: the user has stated that the server syncs, so no warning is logged."""

    def __init__(self, url: str, *, known: bool) -> None:
        self._url = url
        self._known = known
        self._logged = ""
        self._text = ""
        """The text of the warning; empty if there is none."""

    async def check(self, link: RedisLink) -> None:
        found: dict[str, str] = {}
        try:
            for name in WANTED:
                # One request per name: older servers accept only one.
                reply = [each.decode() for each in await link.ask("CONFIG", "GET", name)]
                found |= dict(zip(reply[::2], reply[1::2], strict=True))
        except RedisError as error:
            self._text = (
                f"{self._url}: its durability could not be checked ({error}): "
                "set appendonly yes, appendfsync always and maxmemory-policy noeviction, then pass synced=true"
            )
            return
        weak = {name: found[name] for name, (wanted, _) in WANTED.items() if found.get(name, wanted) != wanted}
        parts = [f"{name} is {value!r}: {WANTED[name][1]}" for name, value in weak.items()]
        settings = ", ".join(f"{name} {WANTED[name][0]}" for name in weak)
        text = f"{self._url} is not durable. {'; '.join(parts)}. Set {settings} in its configuration"
        self._text = text if weak else ""

    def say(self) -> None:
        """Log the warning, if there is a new one. Called before something is stored."""
        if self._text != self._logged and not self._known:
            self._logged = self._text
            if self._text:
                log.warning("%s", self._text)
