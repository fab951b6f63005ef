"""Translates errors of redis-py and error replies of Redis into Trunkline's. No other module does."""

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
"""The command may succeed later, or at another server."""
_UNAVAILABLE = (LinkEnded, NotThisServer, OSError, RedisConnectionError, RedisTimeoutError)
LOGIN = "write user and password in the URL, redis://user:password@host:port"
_CODES: list[tuple[type[Exception], str]] = [
    (BusyLoadingError, "LOADING"),
    (ReadOnlyError, "READONLY"),
    (OutOfMemoryError, "OOM"),
    (NoPermissionError, "NOPERM"),
    (NoScriptError, "NOSCRIPT"),
]
"""redis-py removes the first word from the text of these errors."""
_CODE = re.compile(r"^([A-Z]{2,})\b|: -([A-Z]{2,})\b")
"""The first word of an error, including errors inside a script."""


class RedisRefused(HubRefused):
    """Redis answered a command with an error. `code` is its first word."""

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
        return NotAllowed(f"{url} refuses this client: {error}: permit these commands, keys and channels for the user")
    if code in FOR_NOW or isinstance(error, _UNAVAILABLE):
        return EngineUnavailable(NAME, url, _why(error))
    return RedisRefused(code, str(error))


def _why(error: BaseException) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__


def of_storing(error: Exception, topic: str) -> Refused | None:
    """The error for the publisher; None if the batch is to be sent again."""
    code = code_of(error)
    if code in FOR_NOW:
        return None
    if code == "NOPERM":
        return NotAllowed(f"Redis does not let this client store on {topic}: {error}")
    if code == "OOM":
        return NotStored(f"{topic}: Redis has no memory left: raise maxmemory, or delete stored messages")
    return NotStored(f"{topic}: {error}")
