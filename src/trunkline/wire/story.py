"""The protocol told to people: the text around the tables that `document.py` makes from the types."""

from __future__ import annotations

from typing import Final

STORY: Final = """\
# The Trunkline protocol, version {version}

What a hub and its clients say to each other. This text and the schemas beside it are made from the types that
implement the protocol: `make protocol` writes them, and a test fails when they are stale.

- [{client_file}]({client_file}): JSON Schema of what a client says
- [{hub_file}]({hub_file}): JSON Schema of what a hub says

A field that a reader does not know is ignored, so fields may be added within a version; anything else is a new version.

## Frames

A connection carries frames both ways. On a stream of bytes, such as a unix or a TCP socket:

```text
{framing}
```

{without_length} The length does not count itself. An empty frame, or one that is larger than the `max_frame_bytes`
of WELCOME, ends the connection.

| kind | frame |
| --- | --- |
{kinds}

Control is JSON in UTF-8, one object a frame, told apart by `type`. Data frames are MessagePack. All messages of a
batch have one topic. A hub routes a batch by its head; the body passes through it unopened, unless a rule needs to look
into it: so a reader must not believe a body before it has checked it.

The head of PUBLISH, an array; what stands last and has its default may be left out:

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
PUBLISH_SHARED and DELIVER_SHARED: frames with the same heads, for one message each, whose body is an array that says
where the payload is:

{shared_payload}

The memory is a memfd of the sender, sealed against shrinking and growing. Whoever gets such a frame opens
`/proc/PID/fd/DESCRIPTOR`, where PID is what the kernel says of the other end of the socket, and never what the other
side says; checks the seals, the size and the token; and holds a shared `flock` on what it has opened for as long as it
reads. A sender writes to the memory again when it can have the exclusive lock, and not before TAKEN, or MAPPED.

Whether that works is found out by trying. HELLO and WELCOME carry a probe. A hub that could open that of HELLO says
`shares`, and the client may send PUBLISH_SHARED. A client that could open that of WELCOME says MAPS, and the hub may
send DELIVER_SHARED; the client answers with MAPPED when it has opened the memory, or cannot. Everybody else, and
everybody who does not know these fields, gets and sends PUBLISH and DELIVER. Windows and credit in bytes count the
payload wherever it is. What cannot be opened, or is something else, is answered by ERROR `memory`.

## The life of a connection

1. The client opens the connection. Who it is comes from the transport: the uid of a process, a certificate, a key.
2. It says HELLO, with the versions it speaks, a name for people, a token that it uses once, and the time. Anything else
   gets ERROR `out_of_order` and the end of the connection; silence gets ERROR `no_hello`, and the same end.
3. The hub takes the best of its own versions that the client speaks, and says WELCOME with it. If there is none it
   says ERROR `version`, with the versions it speaks in `details`, then GOODBYE, and closes. It does the same with
   ERROR `replayed` for a token that was used before, with ERROR `stale` if the time is more than five minutes from the
   hub's clock, and with ERROR `too_many` if the identity has too many connections.
4. Both talk. What has an `id` is answered, by a message or an ERROR whose `re` is that `id`. Ids are the client's to
   choose; each is used once on a connection. Answers may come in another order than the questions.
5. Each side says something at least every `heartbeat_s` of WELCOME: HEARTBEAT, if there is nothing else. Any frame is
   a sign of life. A client that is silent for twice as long is suspected; for three times as long it is gone: the hub
   says GOODBYE and cuts the connection. A client does the same with a silent hub, and seeks it again. A HEARTBEAT with
   an `id` is answered by BEAT when everything before it was taken up, so it is also how a client waits for that.
6. Either side ends with GOODBYE and closes. A connection that ends without it ends the same way. What the client held
   is freed: its subscriptions are gone, and what it had not acknowledged goes to another member of its group, or waits
   in the journal for a subscription of that name.

A frame that cannot be read is answered by ERROR without `re`, counted, and otherwise ignored. Too many of them end the
connection.

## Requests

A request carries a topic for its answer in `reply_to`. A hub with rules lets only its owner subscribe to it: the client
chooses a random secret, the topic is `_reply.` and the first 32 hexadecimal digits of the SHA-256 of the secret (of its
UTF-8 text), and SUBSCRIBE carries the secret. The topic stays the same over reconnections and restarts of the hub.
Whoever was sent the request publishes the answer there, and needs no rule for it. At a hub with rules, any other topic
in `reply_to` must be one that the requester may publish to: otherwise the batch fails with `forbidden`.

## Flow control

**Towards the hub.** Before its first batch on a topic the client says TOPIC, and learns by TOPIC_INFO what it must
know; it is told again whenever that changes. Batches have numbers that go up on a connection. The hub says TAKEN when
batches are with everybody who is to get them: runs of batch numbers, and the number of the first message in each. On
one topic no more than `window` messages (of WELCOME) may be on their way and not taken. While a subscriber whose policy
is `block` has no room, TAKEN does not come: so its publishers wait, and nobody else. Where TOPIC_INFO says `confirm`, a
publish is not done before its TAKEN, and the `failures` in it say what was refused. WITHDRAW takes back a batch that
still waits.

**Towards a subscriber.** SUBSCRIBE gives the hub credit for so many messages, CREDIT gives more, and each message that
is delivered takes one away. A batch for which there is not enough may be cut in two. Credit in bytes is given in the
same way, and taken away by the bodies of batches; a batch is delivered while any of it is left. Without credit the
policy of the subscription decides: `block` lets the batch wait, `reject` refuses it to its publisher. With
`drop_oldest` and `drop_newest` the inbox that drops is the subscriber's own, which gives credit without end (-1); the
hub drops only what a connection that does not drain cannot take, and says so by DROPPED.

A client says in HELLO how large a frame it takes. A batch that is larger is cut; a message that does not fit alone is
dropped for this subscriber, and DROPPED says so.

**Acknowledgement.** Members of groups and durable subscriptions say what became of each message: ACK for what was
delivered, NACK for everything else. What they do not speak of stays theirs until they leave.

**Reports.** A plain subscription that `reports` says by FATES what became of what it got, a few times a second, and at
once when the hub asks by REPORT. What it has not spoken of is in flight. When its connection ends, that is dropped,
"lost with its subscriber"; a client that comes again may still say better. EXPLAIN asks for all that is known of one
message.

## Errors

ERROR has one shape, whatever went wrong:

{error}

The `failures` of TAKEN have the same codes.

| code | meaning |
| --- | --- |
{codes}

## What a client says

{from_client}
## What a hub says

{from_hub}
## Parts of messages

{parts}"""
