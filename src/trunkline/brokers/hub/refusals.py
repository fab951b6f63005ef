"""Translates refusals of a hub into the errors that one process would raise."""

from __future__ import annotations

from typing import Any, TypeVar

from trunkline.errors import (
    BackpressureTimeout,
    DuplicateName,
    HubRefused,
    InboxFull,
    InvalidSettings,
    JournalDamaged,
    NotAllowed,
    NotStored,
    Refused,
    SchemaBroken,
    TopicNotStored,
    TrunklineError,
)

E = TypeVar("E", bound=TrunklineError)


def _coded(error: E, code: str) -> E:
    error.code = code
    return error


def refusal(code: str, text: str, details: dict[str, Any]) -> Refused:
    """The error that one process would raise, with the hub's code."""
    return _coded(_refusal(code, text, details), code)


def _refusal(code: str, text: str, details: dict[str, Any]) -> Refused:
    match code:
        case "inbox_full":
            return InboxFull(str(details.get("name", "?")), int(details.get("capacity", 0)))
        case "withdrawn":
            return BackpressureTimeout(str(details.get("name", "?")), 0.0)
        case "not_stored":
            return NotStored(text)
        case "forbidden":
            return NotAllowed(text)
        case "schema":
            return SchemaBroken(str(details.get("channel")), str(details.get("field")), str(details.get("why")))
        case _:
            return Refused(text)


def of_subscription(error: HubRefused, name: str) -> TrunklineError:
    """The same for a subscription."""
    return _coded(_of_subscription(error, name), error.code)


def _of_subscription(error: HubRefused, name: str) -> TrunklineError:
    if error.code == "forbidden":
        return NotAllowed(error.text)
    if error.details.get("error") == InvalidSettings.__name__:
        return InvalidSettings(error.text)
    if error.details.get("error") == DuplicateName.__name__:
        return DuplicateName("subscriber", name)
    return error


def of_last(error: HubRefused) -> TrunklineError:
    """The same for a request of the last message of a topic."""
    return _coded(_of_last(error), error.code)


def _of_last(error: HubRefused) -> TrunklineError:
    details = error.details
    match error.code:
        case "forbidden":
            return NotAllowed(error.text)
        case "not_stored":
            return TopicNotStored(str(details.get("topic")), [str(each) for each in details.get("stored", ())])
        case "damaged":
            first, last = int(details.get("first", 0)), int(details.get("last", 0))
            return JournalDamaged(first, last, str(details.get("where")), str(details.get("why")))
        case _:
            return error
