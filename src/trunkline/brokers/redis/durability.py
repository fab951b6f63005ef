"""Whether a server keeps what it has confirmed: it is asked, and if it does not, that is said once, loudly."""

from __future__ import annotations

import logging

from redis.exceptions import RedisError
from trunkline.brokers.redis.link import RedisLink

log = logging.getLogger("trunkline.connection")

WANTED = {
    "appendonly": ("yes", "what is stored is lost when the server ends"),
    "appendfsync": ("always", "the last second of what is stored is lost in a power failure"),
    "maxmemory-policy": ("noeviction", "the server may throw away what is stored when its memory is full"),
}


class Durability:
    """Of one server. With `known` the person says that it syncs, and nothing is said about it."""

    def __init__(self, url: str, *, known: bool) -> None:
        self._url = url
        self._known = known
        self._said = ""
        self._text = ""
        """What is wrong."""

    async def check(self, link: RedisLink) -> None:
        found: dict[str, str] = {}
        try:
            for name in WANTED:
                # One by one: older servers take one name only.
                reply = [each.decode() for each in await link.ask("CONFIG", "GET", name)]
                found |= dict(zip(reply[::2], reply[1::2], strict=True))
        except RedisError as error:
            self._text = (
                f"{self._url}: whether it keeps what it has confirmed could not be checked ({error}): "
                "see to appendonly yes, appendfsync always and maxmemory-policy noeviction, then pass synced=true"
            )
            return
        weak = {name: found[name] for name, (wanted, _) in WANTED.items() if found.get(name, wanted) != wanted}
        parts = [f"{name} is {value!r}: {WANTED[name][1]}" for name, value in weak.items()]
        settings = ", ".join(f"{name} {WANTED[name][0]}" for name in weak)
        text = f"{self._url} is not durable. {'; '.join(parts)}. Set {settings} in its configuration"
        self._text = text if weak else ""

    def say(self) -> None:
        """Something is about to be stored there."""
        if self._text != self._said and not self._known:
            self._said = self._text
            if self._text:
                log.warning("%s", self._text)
