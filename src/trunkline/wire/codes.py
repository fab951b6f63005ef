"""The codes of the protocol's errors, in ERROR and in the failures of TAKEN: what each of them means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dead_letter": "A message does not fit, and is a dead letter; `details` has its `seq`. Nothing is to be done.",
        "exists": "The channel, its topics or the consumer's id belong to somebody else.",
        "forbidden": "The rules of access do not let this identity do that there.",
        "inbox_full": "A subscriber whose policy is `reject` has no room; `details` has its `name` and its `capacity`.",
        "incompatible": "A new version of a schema breaks what its compatibility mode protects.",
        "internal": "The hub failed at it. That is a fault of the hub, and its log says more.",
        "invalid_schema": "It is no JSON Schema, or one with keywords that the hub cannot check.",
        "invalid_topic": "The topic or the pattern is none.",
        "invalid_version": "It is no version, does not rise, or does not fit the change.",
        "malformed": "The frame, or a value in it, is not what the protocol says.",
        "memory": "A payload in shared memory that the hub cannot open, or that is not what was named.",
        "no_hello": "The connection was opened, and HELLO did not come in time. The connection ends.",
        "no_responders": "The batch was taken, and nobody got the requests in it; `details` has the `nearest` topics.",
        "not_durable": "A durable channel on topics that no journal keeps.",
        "not_kept": "The hub could not write it to its disk, so it was not done. It can be asked for again.",
        "not_owner": "Only the owner, or an administrator, may do that.",
        "not_stored": "The journal could not write the batch, and nobody has seen it.",
        "out_of_order": "It cannot be said now: anything before HELLO, a second HELLO, a batch whose number went back.",
        "refused": "The hub's broker refused it; `details` names the `error`.",
        "replayed": "A HELLO with this token came before. The connection ends.",
        "schema": "A message does not fit the schema of its channel; `details` has `channel`, `field` and `why`.",
        "schema_mismatch": "A producer has, or a consumer expects, another schema than the channel.",
        "stale": "A HELLO whose time is too far from the hub's clock. The connection ends; set the clocks.",
        "taken": "The client has a subscription with this number already.",
        "too_large": "It is too large, or an empty frame. The connection ends if what follows cannot be told apart.",
        "too_many": "A limit is reached: of clients, connections, subscriptions, links, channels, schemas.",
        "too_much": "More was sent than the other side had allowed. The connection ends.",
        "unknown": "What it is about is not there.",
        "unknown_channel": "There is no channel of that name.",
        "unknown_kind": "No frame begins with this byte.",
        "unknown_schema": "There is no schema of that name, version or hash.",
        "version": "There is no version that both speak; `details` has the hub's `versions`. The connection ends.",
        "withdrawn": "Its publisher withdrew it before a subscriber had room for it; `details` has the `name`.",
    }
)
