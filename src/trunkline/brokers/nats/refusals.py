"""Translates errors of nats-py and JetStream into Trunkline's. No other module does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nats import errors as foreign
from trunkline.errors import EngineUnavailable, HubRefused, NotAllowed, NotStored, Refused, TrunklineError

NAME = "nats"
NO_STREAM = 10059
STREAM_EXISTS = 10058
"""A stream of this name exists, with another configuration."""
NO_CONSUMER = 10014
NO_MESSAGE = 10037
CHANGED = (10071, 10164)
"""Another client has stored a message under this subject meanwhile."""
NO_JETSTREAM = (10039, 10076)
"""JetStream is not enabled for this account, or not on this server."""
OVERLAP = (10052, 10065)
"""Subjects of a stream overlap with those of another one, or with each other."""
FOR_NOW = (10005, 10008, 10023, 10047, 10074, 10077, 10118)
"""No leader, no quorum, insufficient resources: the request may succeed later."""
_UNAVAILABLE = (
    foreign.ConnectionClosedError,
    foreign.NoServersError,
    foreign.TimeoutError,
    foreign.FlushTimeoutError,
    foreign.StaleConnectionError,
    foreign.OutboundBufferLimitError,
    foreign.UnexpectedEOF,
    foreign.NoRespondersError,
    foreign.ConnectionReconnectingError,
    foreign.ConnectionDrainingError,
    asyncio.TimeoutError,
    OSError,
)


class JetStreamRefused(HubRefused):
    """JetStream answered a request with an error. `number` is its `err_code`."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__("jetstream", text)
        self.args = (f"JetStream refused: {text}",)
        self.number = number


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Translate errors of nats-py that are raised in this block."""
    try:
        yield
    except (TimeoutError, foreign.Error, OSError) as error:
        raise translate(url, error) from error


def translate(url: str, error: BaseException) -> TrunklineError:
    if isinstance(error, foreign.AuthorizationError) or "authorization" in str(error).lower():
        return NotAllowed(
            f"{url} refuses this client: {error}. Give user and password, a token, ?creds= or ?nkey= in the URL"
        )
    if isinstance(error, _UNAVAILABLE):
        return EngineUnavailable(NAME, url, _why(error))
    return HubRefused("nats", f"{type(error).__name__}: {error}")


def _why(error: BaseException) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__


def of_answer(answer: dict[str, Any]) -> JetStreamRefused | None:
    """The error in an answer of JetStream, if there is one."""
    found = answer.get("error")
    if not isinstance(found, dict):
        return None
    return JetStreamRefused(int(found.get("err_code", 0)), str(found.get("description", "unknown")))


def of_storing(error: JetStreamRefused, topic: str) -> Refused | None:
    """The error for the publisher; None if the message is to be sent again."""
    return None if error.number in FOR_NOW else NotStored(f"{topic}: {error.text}")
