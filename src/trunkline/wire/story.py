"""The protocol in prose: the text around the tables that `document.py` makes from the types."""

from __future__ import annotations

from typing import Final

STORY: Final = """\
# The Trunkline protocol, version {version}

The protocol between a hub and its clients. This text and the schemas beside it are generated from the types that
implement the protocol: `make protocol` writes them, and a test fails when they are stale.

- [{client_file}]({client_file}): JSON Schema of the messages of a client
- [{hub_file}]({hub_file}): JSON Schema of the messages of a hub

Readers ignore unknown fields, so fields may be added within a version. Any other change needs a new version.

## Frames

A connection carries frames both ways. On a stream of bytes, such as a unix or a TCP socket:

```text
{framing}
```

{without_length} The length does not include itself. An empty frame, or one that is larger than the `max_frame_bytes`
of WELCOME, ends the connection.

| kind | frame |
| --- | --- |
{kinds}

A control message is one JSON object in UTF-8, identified by its `type`. Data frames are MessagePack. All messages of a
batch have one topic. A hub routes a batch by its head. It passes the body on without reading it, unless a rule needs
its content. So a reader must validate the body.

The head of PUBLISH is an array. Fields at its end that have their default may be omitted:

{publish_head}

The head of DELIVER:

{deliver_head}

The body of both is an array of four: ids, times, payloads, and the other header fields.

- ids and payloads: an array of two, the byte strings end to end and their sizes. The sizes are one number if all are
  alike, otherwise binary: a 32-bit integer each, lowest byte first.
- times: binary, a 64-bit integer each, nanoseconds since 1970, lowest byte first.
- the other fields: a map from the name of a field to a list with a value for each message, or to the one value of all
  of them. A field that is not there has its default.

## Payloads in shared memory

On a unix socket, between processes of one user, a message with a payload of {min_shared:,} bytes or more may travel as
PUBLISH_SHARED and DELIVER_SHARED: frames with the same heads, for one message each, whose body is an array with the
location of the payload:

{shared_payload}

The memory is a memfd of the sender, sealed against shrinking and growing. The receiver opens `/proc/PID/fd/DESCRIPTOR`.
It takes PID from the kernel's information about the socket, never from the other side. It checks the seals, the size
and the token, and holds a shared `flock` on the opened file for as long as it reads. A sender reuses the memory when it
gets the exclusive lock, and not before TAKEN or MAPPED.

HELLO and WELCOME carry a probe, with which both sides test whether this works. If the hub could open the probe of
HELLO, it sets `shares`, and the client may send PUBLISH_SHARED. If the client could open the probe of WELCOME, it sends
MAPS, and the hub may send DELIVER_SHARED. The client answers each with MAPPED when it has opened the memory, or cannot
open it. All others, including clients that do not know these fields, use PUBLISH and DELIVER. Windows and credit in
bytes include payloads in shared memory. The hub answers memory that it cannot open, or that is not as described, with
ERROR `memory`.

## The life of a connection

1. The client opens the connection. The transport provides its identity: the uid of a process, a certificate, a key.
2. The client sends HELLO, with the versions it supports, a readable name, a token that is used once, and the time. If
   its first message is another one, the hub sends ERROR `out_of_order` and closes the connection. If none arrives in
   time, it sends ERROR `no_hello` and closes.
3. The hub chooses the best version that both support, and sends WELCOME with it. If there is none, it sends ERROR
   `version`, with its versions in `details`, then GOODBYE, and closes. It does the same with ERROR `replayed` for a
   token that was used before, with ERROR `stale` if the time differs from the hub's clock by more than five minutes,
   and with ERROR `too_many` if the identity has too many connections.
4. Both sides exchange messages. A message with an `id` is answered, by a message or an ERROR with that id in `re`. The
   client chooses the ids, and uses each once on a connection. Answers may arrive in another order than the requests.
5. Each side sends a frame at least every `heartbeat_s` of WELCOME: HEARTBEAT if there is nothing else. A client that is
   silent for twice as long is suspected. After three times as long the hub sends GOODBYE and closes the connection. A
   client does the same with a silent hub, and reconnects. A HEARTBEAT with an `id` is answered by BEAT when everything
   before it is processed, so a client can wait for that.
6. Either side ends the connection with GOODBYE. A connection that ends without it has the same effect: the
   subscriptions of the client end, and its unacknowledged messages go to another member of the group, or wait in the
   journal for a subscription of that name.

A frame that cannot be read is answered by ERROR without `re`, counted, and otherwise ignored. After too many of them
the hub closes the connection.

## Requests

A request carries a topic for its answer in `reply_to`. A hub with rules lets only its owner subscribe to it: the client
chooses a random secret, the topic is `_reply.` and the first 32 hexadecimal digits of the SHA-256 of the secret (of its
UTF-8 text), and SUBSCRIBE carries the secret. The topic stays the same over reconnections and restarts of the hub.
The responder publishes the answer there, and needs no rule for it. At a hub with rules, any other topic
in `reply_to` must be one that the requester may publish to: otherwise the batch fails with `forbidden`.

## Flow control

**Towards the hub.** Before its first batch on a topic the client sends TOPIC. The hub answers with TOPIC_INFO, and
sends it again whenever it changes. Batches have ascending numbers on a connection. The hub sends TAKEN when all
subscribers have the batches: ranges of batch numbers, and the number of the first message in each. On one topic, at
most `window` messages (of WELCOME) may be unconfirmed. While a subscriber with the policy `block` has no room, TAKEN is
not sent, so only the publishers of that topic wait. If TOPIC_INFO has `confirm`, a publish completes with its TAKEN,
whose `failures` list refused messages. WITHDRAW cancels a batch that still waits.

**Towards a subscriber.** SUBSCRIBE grants the hub credit for a number of messages, CREDIT grants more, and each
delivered message uses one. A batch may be split if the credit is not enough. Credit in bytes works in the same way, and
is used by the bodies of batches; a batch is delivered while any credit is left. Without credit the policy of the
subscription decides: with `block` the batch waits, with `reject` it is refused to its publisher. With `drop_oldest` and
`drop_newest` the subscriber's own inbox drops, and grants unlimited credit (-1). The hub drops only messages that a
slow connection cannot take, and reports them with DROPPED.

HELLO has the maximum frame size of the client. A larger batch is split. A single message that does not fit is dropped
for this subscriber, and reported with DROPPED.

**Acknowledgement.** Members of groups and durable subscriptions report the fate of each message: ACK for delivered
ones, NACK for all others. They hold unreported messages until they leave.

**Reports.** A plain subscription with `reports` sends the fates of its messages in FATES, a few times a second, and at
once when the hub sends REPORT. Unreported messages are in flight. When the connection ends, they are dropped with the
reason "lost with its subscriber"; a client that reconnects may correct that. EXPLAIN asks for all fates of one message.

## Errors

All errors have the same fields:

{error}

The `failures` of TAKEN have the same codes.

| code | meaning |
| --- | --- |
{codes}

## Messages of a client

{from_client}
## Messages of a hub

{from_hub}
## Parts of messages

{parts}"""
