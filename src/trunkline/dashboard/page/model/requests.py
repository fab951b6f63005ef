"""Requests and their answers, from the messages of a journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trunkline.message import Message, MessageType


class RequestRow(msgspec.Struct, frozen=True):
    request: Message
    answer: Message | None = None

    @property
    def state(self) -> str:
        if self.answer is None:
            return "open"
        return "failed" if self.answer.type is MessageType.ERROR else "answered"

    @property
    def took_ns(self) -> int:
        return 0 if self.answer is None else self.answer.timestamp_ns - self.request.timestamp_ns


def requests_in(messages: Iterable[Message]) -> list[RequestRow]:
    """The requests among these messages, the newest first, each with its first answer."""
    found: dict[str, RequestRow] = {}
    for each in messages:
        if not each.request_id:
            continue
        if each.type is MessageType.REQUEST:
            found[each.request_id] = RequestRow(each)
        elif (row := found.get(each.request_id)) is not None and row.answer is None:
            found[each.request_id] = RequestRow(row.request, each)
    return list(found.values())[::-1]
