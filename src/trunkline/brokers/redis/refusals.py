"""What redis-py raises and Redis answers, as errors of ours. Nowhere else is a foreign error translated."""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from trunkline.brokers.redis.address import NotThisServer
from trunkline.brokers.redis.link import LinkEnded
from trunkline.errors import EngineUnavailable, HubRefused, NotAllowed, NotStored, Refused, TrunklineError

NAME = "redis"
FOR_NOW = frozenset(
    {"LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "READONLY", "MOVED", "ASK", "NOREPLICAS", "MISCONF"}
)
"""Later, or at another server, it may do."""
_UNAVAILABLE = (LinkEnded, NotThisServer, OSError, RedisConnectionError, RedisTimeoutError)
LOGIN = "write user and password in the URL, redis://user:password@host:port"
_CODES: list[tuple[type[Exception], str]] = [
    (BusyLoadingError, "LOADING"),
    (ReadOnlyError, "READONLY"),
    (OutOfMemoryError, "OOM"),
    (NoPermissionError, "NOPERM"),
    (NoScriptError, "NOSCRIPT"),
]
"""redis-py takes the first word off these."""
_CODE = re.compile(r"^([A-Z]{2,})\b|: -([A-Z]{2,})\b")
"""The first word, also of an error inside of a script."""


class RedisRefused(HubRefused):
    """Redis answered a question of ours with an error. `code` is its first word."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.args = (f"Redis refused: {text}",)


def code_of(error: BaseException) -> str:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    found = _CODE.search(str(error))
    return (found[1] or found[2]) if found is not None else "ERR"


def translate(url: str, error: BaseException) -> TrunklineError:
    if isinstance(error, TrunklineError):
        return error
    code = code_of(error)
    if isinstance(error, AuthenticationError | AuthenticationWrongNumberOfArgsError) or code in ("NOAUTH", "WRONGPASS"):
        return NotAllowed(f"{url} refuses this client: {error}: {LOGIN}")
    if code == "NOPERM":
        return NotAllowed(f"{url} refuses this client: {error}: give the user these commands, keys and channels")
    if code in FOR_NOW or isinstance(error, _UNAVAILABLE):
        return EngineUnavailable(NAME, url, _why(error))
    return RedisRefused(code, str(error))


def _why(error: BaseException) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__


def of_storing(error: Exception, topic: str) -> Refused | None:
    """What a publisher is told; None if it is worth another attempt."""
    code = code_of(error)
    if code in FOR_NOW:
        return None
    if code == "NOPERM":
        return NotAllowed(f"Redis does not let this client store on {topic}: {error}")
    if code == "OOM":
        return NotStored(f"{topic}: Redis has no memory left: raise maxmemory, or remove what is stored")
    return NotStored(f"{topic}: {error}")
