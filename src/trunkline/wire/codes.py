"""The codes of the protocol's errors, in ERROR and in the failures of TAKEN: what each of them means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dead_letter": "A message does not match its schema, and is a dead letter; `details` has its `seq`.",
        "exists": "The channel, its topics or the consumer's id belong to another client.",
        "forbidden": "The access rules do not allow this identity to do that.",
        "inbox_full": "A subscriber whose policy is `reject` has no room; `details` has its `name` and its `capacity`.",
        "incompatible": "A new version of a schema breaks what its compatibility mode protects.",
        "internal": "An internal error of the hub. Its log has the details.",
        "invalid_schema": "It is not a JSON Schema, or has keywords that the hub does not support.",
        "invalid_topic": "The topic or the pattern is invalid.",
        "invalid_version": "It is not a version, is not higher than the last one, or does not fit the change.",
        "malformed": "The frame, or a value in it, does not follow the protocol.",
        "memory": "A payload in shared memory that the hub cannot open, or that differs from its description.",
        "no_hello": "HELLO did not arrive in time. The connection ends.",
        "no_responders": "The batch was accepted, but its requests have no subscriber; `details` has `nearest`.",
        "not_durable": "A durable channel on topics that no journal stores.",
        "not_kept": "The hub could not write it to its disk, so nothing was changed. The request can be repeated.",
        "not_owner": "Only the owner, or an administrator, may do that.",
        "not_stored": "The journal could not write the batch, and it was not delivered.",
        "out_of_order": "It is not valid now: a message before HELLO, a second HELLO, a batch with a lower number.",
        "refused": "The hub's broker refused it; `details` names the `error`.",
        "replayed": "A HELLO with this token was already received. The connection ends.",
        "schema": "A message does not match the schema of its channel; `details` has `channel`, `field` and `why`.",
        "schema_mismatch": "A producer has, or a consumer expects, another schema than the channel.",
        "stale": "A HELLO whose time is too far from the hub's clock. The connection ends; set the clocks.",
        "taken": "The client already has a subscription with this number.",
        "too_large": "It is too large, or an empty frame. The connection ends if the next frame cannot be found.",
        "too_many": "A limit is reached: of clients, connections, subscriptions, links, channels, schemas.",
        "too_much": "More was sent than the other side had permitted. The connection ends.",
        "unknown": "The object of the request does not exist.",
        "unknown_channel": "There is no channel of that name.",
        "unknown_kind": "No frame begins with this byte.",
        "unknown_schema": "There is no schema of that name, version or hash.",
        "version": "There is no version that both speak; `details` has the hub's `versions`. The connection ends.",
        "withdrawn": "Its publisher withdrew it before a subscriber had room for it; `details` has the `name`.",
    }
)
