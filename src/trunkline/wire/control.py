"""The control protocol: JSON objects with a `type`. A request has an `id`; its answer repeats it in `re`.

The types here define the protocol: its JSON Schema in docs/protocol is generated from them. Readers ignore unknown
fields, so fields may be added within a version. Any other change needs a new version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from trunkline.errors import ProtocolError
from trunkline.wire.snapshot import HubSnapshot

VERSIONS: Final = (1,)
"""The protocol versions that this Trunkline supports, the best first."""
NO_RESPONDERS: Final = "no_responders"
"""In TAKEN, for an accepted batch: no subscriber got the requests in it."""
LETTERS_KEPT: Final = "dead letters"
"""The feature of a hub that keeps dead letters in a journal, and answers queries about them."""


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=str.upper):
    """A control message."""


class Ask(Control, frozen=True, kw_only=True):
    """A control message that is answered."""

    id: int = 0
    """Chosen by the client and repeated in `re` of the answer.

    Not needed by a client that sends one request at a time.
    """


class Answer(Control, frozen=True, kw_only=True):
    """A control message that is an answer."""

    re: int
    """The `id` of the request."""


# Connecting and disconnecting


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A payload in shared memory. The other side tries to open it, which shows whether shared memory works."""

    descriptor: int
    size: int
    token: str


class Hello(Ask, frozen=True, kw_only=True, tag="HELLO"):
    """The first message of a client."""

    versions: list[int]
    name: str
    library: str = ""
    origin: int = 0
    """A random number that identifies the client over reconnections.

    It is secret: other clients see a number that the hub derives from this one and the client's identity.
    """
    token: str = ""
    """Unique for each HELLO: the hub refuses a repeated one, to prevent replay attacks."""
    at_ns: int = 0
    """The time of sending, in nanoseconds since 1970. Without it, the hub remembers the token as long as it runs."""
    max_frame_bytes: int = 64 * 1024 * 1024
    """The largest frame that the client accepts. A message that does not fit is dropped, with a recorded fate."""
    memory: Probe | None = None
    """Set by a client that supports PUBLISH_SHARED and DELIVER_SHARED, and uses a unix socket."""


class Welcome(Answer, frozen=True, kw_only=True, tag="WELCOME"):
    """The answer to HELLO. From now on the client may send all other messages."""

    version: int
    hub: str
    """The id of this run of the hub. It changes with each restart."""
    session: str
    identity: str
    """The identity of the client, as its transport authenticated it."""
    heartbeat_s: float
    """Send something at least this often. A client that is silent three times as long is disconnected."""
    window: int
    """The maximum number of messages on one topic that the hub has not confirmed yet."""
    window_bytes: int = 32 * 1024 * 1024
    """The same for bytes of all topics, with 300 bytes added for each message.

    Above it, the hub stops reading for a while.
    """
    max_frame_bytes: int
    features: list[str] = []
    """The features of the hub beyond publish and subscribe; `dead letters` if it keeps them."""
    memory: Probe | None = None
    """A probe of the hub. A client that can open it sends MAPS."""
    shares: bool = False
    """Whether the hub could open the probe in HELLO. Then the client may send PUBLISH_SHARED."""


class Maps(Control, frozen=True, kw_only=True, tag="MAPS"):
    """The client could open the probe in WELCOME. From now on the hub may send large payloads as DELIVER_SHARED."""


class Goodbye(Control, frozen=True, kw_only=True, tag="GOODBYE"):
    """The last message of either side."""

    reason: str = ""


class Heartbeat(Control, frozen=True, kw_only=True, tag="HEARTBEAT"):
    """Keeps the connection alive. With an `id` it is answered, after all earlier messages are processed."""

    id: int = 0


class Beat(Answer, frozen=True, kw_only=True, tag="BEAT"):
    """The answer to HEARTBEAT: all earlier messages are processed."""

    last: int = 0
    """The last message number that the hub has assigned; 0 for a client without any rights."""


class Done(Answer, frozen=True, kw_only=True, tag="DONE"):
    """The request succeeded; `changed` if it had an effect."""

    changed: bool = True


class Error(Control, frozen=True, kw_only=True, tag="ERROR"):
    """An error. Without `re` it does not belong to a particular request."""

    code: str
    text: str
    details: dict[str, Any] = {}
    re: int = 0
    batch: int = -1
    """The number of the batch that was rejected; -1 if there is none, or if it is not known."""


# Publishing


class Topic(Ask, frozen=True, kw_only=True, tag="TOPIC"):
    """Sent before the first publish on a topic. Answered by TOPIC_INFO, now and whenever it changes."""

    topic: str


class TopicInfo(Control, frozen=True, kw_only=True, tag="TOPIC_INFO"):
    """The properties of a topic that a publisher needs: the answer to TOPIC, and an update whenever they change."""

    topic: str
    re: int = 0
    heard: bool = False
    """Whether the topic has subscribers."""
    confirm: bool = False
    """A publish completes with TAKEN: a subscriber may refuse it, or it is stored first."""
    durable: bool = False
    channel: str | None = None
    """The channel this topic belongs to, if any."""
    schema: str | None = None
    """The hash of its schema. The client must not send messages that do not match it."""
    full: list[tuple[str, int]] = []
    """In the answer to TOPIC: subscribers without room, for which publishers wait, and how often each became full."""


class Taken(Control, frozen=True, kw_only=True, tag="TAKEN"):
    """Confirms batches: all their subscribers have received them."""

    runs: list[tuple[int, int, int]] = []
    """First and last number of consecutive batches, and the number of the first message in them."""
    failures: list[Failure] = []
    """The messages of these batches that a subscriber or the journal refused."""
    yields: bool = False
    """Asks the client to yield the processor after large frames, because urgent messages pass through the hub."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message, or a batch, that was refused."""

    batch: int
    index: int
    """The index of the message in the batch; -1 for the whole batch."""
    code: str
    text: str
    details: dict[str, Any] = {}


class Withdraw(Control, frozen=True, kw_only=True, tag="WITHDRAW"):
    """The publisher stopped waiting: the batch is dropped where it still waits for room."""

    batch: int
    reason: str = ""


# Subscribing


class Subscribe(Ask, frozen=True, kw_only=True, tag="SUBSCRIBE"):
    """Subscribe to a pattern. Matching messages are delivered from the answer on."""

    subscription: int
    """A number that the client chooses. Deliveries repeat it."""
    pattern: str
    name: str
    credit: int
    """The number of messages that the hub may send; -1 for no limit."""
    credit_bytes: int = -1
    """The number of bytes that the hub may send; -1 for no limit. A batch is sent if any credit is left."""
    capacity: int = 10_000
    overflow: str = "block"
    group: str | None = None
    durable: bool = False
    start: int | str = "end"
    tap: bool = False
    """A subscription of the bus itself. It does not count as a subscriber unless it `hears`."""
    hears: bool = True
    secret: str = ""
    """The secret of a reply topic. The topic is `_reply.` and the first 32 hexadecimal digits of its SHA-256."""
    reports: bool = False
    """Whether the client reports the fates of messages with FATES. If not, sent messages count as delivered."""
    one_of: str | None = None
    """Groups subscriptions of this client.

    A message goes to the one whose pattern equals its topic, if there is one, and to all of the group otherwise.
    """


class Subscribed(Answer, frozen=True, kw_only=True, tag="SUBSCRIBED"):
    """The answer to SUBSCRIBE: the subscription receives every batch that reaches the hub from now on."""

    subscription: int
    role: str = ""
    """The name of the subscriber at the hub, which keeps its dead letters and fates under it.

    It differs from the requested one if that was in use.
    """
    report_s: float | None = None
    """How long FATES may be collected before they are sent; missing if the hub does not need them."""


class Mapped(Control, frozen=True, kw_only=True, tag="MAPPED"):
    """The client has opened the memory of these deliveries, or cannot open it.

    The hub need not keep it for this client.
    """

    numbers: list[int]


class Unsubscribe(Ask, frozen=True, kw_only=True, tag="UNSUBSCRIBE"):
    """End a subscription. Answered by DONE."""

    subscription: int


class Stop(Control, frozen=True, kw_only=True, tag="STOP"):
    """A member accepts no new messages; undelivered ones go to other members.

    It still reports the fates of the rest.
    """

    subscription: int


class Credit(Control, frozen=True, kw_only=True, tag="CREDIT"):
    """The hub may send this many messages and bytes more."""

    subscription: int
    messages: int
    bytes: int = 0


class Ack(Control, frozen=True, kw_only=True, tag="ACK"):
    """Acknowledges ranges of message numbers, both ends included.

    Sent by members of groups and durable subscriptions.
    """

    subscription: int
    ranges: list[tuple[int, int]]


class Nack(Control, frozen=True, kw_only=True, tag="NACK"):
    """A message that was not delivered, with its fate; `returned` if another member is to get it."""

    subscription: int
    seq: int
    fate: str
    reason: str = ""
    attempts: int = 0
    letter: str | None = None
    """The dead letter, as base64 of its MessagePack."""


class FateRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fate of a range of messages; `in flight` if they arrived on an earlier connection and are not finished."""

    fate: str
    first: int
    last: int
    count: int
    reason: str = ""


class Fates(Control, frozen=True, kw_only=True, tag="FATES"):
    """The fates of messages of a plain subscription. Sent a few times a second, and in answer to REPORT."""

    subscription: int
    rows: list[FateRow] = []
    """Ranges without gaps: this subscription got the message of every number in them."""
    letters: list[str] = []
    """Dead letters, as base64 of their MessagePack."""
    asked: bool = False
    """Whether this includes everything up to the arrival of REPORT."""


class Report(Control, frozen=True, kw_only=True, tag="REPORT"):
    """Asks for the fates of this subscription now, because a client queries them."""

    subscription: int


class Dropped(Control, frozen=True, kw_only=True, tag="DROPPED"):
    """Messages that will not be delivered: the hub had no room for them, or their publisher gave up."""

    subscription: int
    ranges: list[tuple[int, int]]
    reason: str
    topic: str
    count: int
    origin: int = 0
    position: int = 0
    priority: int = 50


class Link(Ask, frozen=True, kw_only=True, tag="LINK"):
    """Messages that match the pattern are also delivered to the subscribers of the topic."""

    pattern: str
    topic: str


class Unlink(Ask, frozen=True, kw_only=True, tag="UNLINK"):
    """Removes a link. Answered by DONE."""

    pattern: str
    topic: str


# Stored messages


class Last(Ask, frozen=True, kw_only=True, tag="LAST"):
    """Asks for the last stored message of a topic.

    Answered by LAST_ANSWER, by hubs with the feature `reading stored messages`. Errors: `forbidden` without the right
    to subscribe; `not_stored` if the journal does not store the topic; `damaged` if the message cannot be read;
    `too_large` if it does not fit into a frame: then subscribe with `start` "last".
    """

    topic: str
    before: int | None = None
    """Only messages with a lower number count."""
    max_bytes: int = 0
    """The largest frame that the client accepts; 0 for the largest that the hub sends."""


class LastAnswer(Answer, frozen=True, kw_only=True, tag="LAST_ANSWER"):
    """The answer to LAST."""

    message: str | None = None
    """The message, as base64 of its MessagePack; missing if none is stored."""


class Explain(Ask, frozen=True, kw_only=True, tag="EXPLAIN"):
    """Asks for the fate of a message. Answered by EXPLAIN_ANSWER; `unknown` also without any right on its topic."""

    message_id: str
    number: int = 0
    """The number of the message, if known: the lookup is faster with it."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of the message for one subscriber."""

    subscriber: str
    fate: str
    reason: str = ""
    at_ns: int = 0


class ExplainAnswer(Answer, frozen=True, kw_only=True, tag="EXPLAIN_ANSWER"):
    """The answer to EXPLAIN."""

    message: str
    """The message, as base64 of its MessagePack, without a large payload."""
    outcomes: list[Told] = []


class Forget(Ask, frozen=True, kw_only=True, tag="FORGET"):
    """Delete a durable subscription. Answered by DONE, `changed` if there was one.

    Errors: `forbidden` for an identity that neither owns it nor administers its topics; `refused` if it has
    subscribers, or if the hub has no journal.
    """

    name: str
    """Its name, or that of its group."""


# Dead letters


class Letters(Ask, frozen=True, kw_only=True, tag="LETTERS"):
    """Lists dead letters, oldest first, on topics that the client may subscribe to. Answered by LETTERS_ANSWER."""

    subscriber: str | None = None
    topic: str = ">"
    """A pattern."""
    cause: str | None = None
    message_id: str | None = None
    brief: bool = False
    """Whether to leave out payloads and tracebacks, for an overview."""
    limit: int = 1000
    """The maximum number in one answer."""
    max_bytes: int = 0
    """The largest frame that the client accepts; 0 for the largest that the hub sends."""
    after: str = ""
    """The `more` of the previous answer."""


class Letter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter that the hub's journal keeps."""

    letter: str
    """Base64 of its MessagePack."""
    whole: bool = True
    """False if its payload or traceback was left out, because it is too large or was not requested."""
    returns: bool = False
    """Whether LETTER_REPLAY redelivers it. If not, only the subscriber itself can replay it."""


class LettersAnswer(Answer, frozen=True, kw_only=True, tag="LETTERS_ANSWER"):
    """The answer to LETTERS. It can be empty although there are more."""

    letters: list[Letter]
    more: str = ""
    """The value of `after` for the next request; empty if these were the last."""


class LetterAgain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter to redeliver."""

    subscriber: str
    seq: int
    message: str | None = None
    """The changed message, as base64 of its MessagePack. It needs the right to publish."""


class LetterReplay(Ask, frozen=True, kw_only=True, tag="LETTER_REPLAY"):
    """Redeliver dead letters to the groups and durable subscriptions that failed. Answered by LETTERS_DONE.

    Afterwards they are no longer dead letters, but in flight. A durable subscription gets them when it reconnects.
    """

    letters: list[LetterAgain]


class LetterRemove(Ask, frozen=True, kw_only=True, tag="LETTER_REMOVE"):
    """Delete dead letters."""

    letters: list[tuple[str, int]]
    """Subscribers and message numbers."""


class LetterFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter that was not changed, and why."""

    subscriber: str
    seq: int
    code: str
    text: str


class LettersDone(Answer, frozen=True, kw_only=True, tag="LETTERS_DONE"):
    """The answer to LETTER_REPLAY and LETTER_REMOVE."""

    done: int
    failures: list[LetterFailure] = []


# Channels in shared memory


class BufferPolicy(StrEnum):
    """The frames that a producer keeps for its consumers: the last one, the last two, or the last `capacity`."""

    SINGLE = "Single"
    DOUBLE_BUFFER = "DoubleBuffer"
    RING_BUFFER = "RingBuffer"


MAX_CAPACITY: Final = 1 << 20
MAX_PAGE_BYTES: Final = 1 << 30


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The memory layout of a producer."""

    policy: str = BufferPolicy.RING_BUFFER.value
    """Single, DoubleBuffer or RingBuffer."""
    capacity: int = 10
    """The number of frames of a ring, 1 to 1,048,576. The other policies have a fixed number."""
    page_size: int = 4096
    """The page size in bytes: a power of two, up to 1 GiB."""

    def problem(self) -> str:
        """The problem, or an empty text."""
        if self.policy not in list(BufferPolicy):
            return f"a policy is {', '.join(BufferPolicy)}, not {self.policy!r}"
        if not 1 <= self.capacity <= MAX_CAPACITY:
            return f"a capacity is from 1 to {MAX_CAPACITY:,}, not {self.capacity:,}"
        if not 1 <= self.page_size <= MAX_PAGE_BYTES or self.page_size & (self.page_size - 1):
            return f"a page size is a power of two up to {MAX_PAGE_BYTES:,} bytes, not {self.page_size:,}"
        return ""


class ProducerRegister(Ask, frozen=True, kw_only=True, omit_defaults=False, tag="PRODUCER_REGISTER"):
    """Registers the client as a producer of a channel.

    All fields are sent, including those with their default value.
    """

    channel: str
    schema_hash: str = ""
    schema_version: str = ""
    config: Config = Config()
    shm_name: str = ""
    metadata: dict[str, Any] = {}


class ProducerUnregister(Ask, frozen=True, kw_only=True, tag="PRODUCER_UNREGISTER"):
    """Unregisters the client as a producer of a channel."""

    channel: str


class ConsumerRegister(Ask, frozen=True, kw_only=True, tag="CONSUMER_REGISTER"):
    """Registers the client as a consumer of a channel; refused if the channel has another schema."""

    channel: str
    consumer_id: str
    expected_schema_hash: str = ""
    metadata: dict[str, Any] = {}


class ConsumerUnregister(Ask, frozen=True, kw_only=True, tag="CONSUMER_UNREGISTER"):
    """Unregisters the client as a consumer of a channel."""

    channel: str
    consumer_id: str


class DiscoveryRequest(Ask, frozen=True, kw_only=True, tag="DISCOVERY_REQUEST"):
    """Asks for the producers and consumers of a channel, and the location of its data."""

    channel: str


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A producer or a consumer of a channel."""

    name: str
    identity: str
    status: str
    """active, or suspected: silent for longer than allowed."""
    since_ns: int
    config: Config | None = None
    metadata: dict[str, Any] = {}


class DiscoveryResponse(Answer, frozen=True, kw_only=True, omit_defaults=False, tag="DISCOVERY_RESPONSE"):
    """The answer to DISCOVERY_REQUEST."""

    channel: str
    shm_name: str = ""
    schema_hash: str = ""
    schema_version: str = ""
    status: str = "unknown"
    """active, suspected, idle (a channel without a producer) or unknown."""
    producers: list[PeerInfo] = []
    consumers: list[PeerInfo] = []


# Channels


class Qos(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a channel's contract that the hub enforces."""

    priority: int = 50
    durable: bool = False
    overflow: str = "block"
    max_age_s: float | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    invalid: str = "refuse"
    """The treatment of messages that do not match the schema: refuse, or dead_letter."""
    group: str | None = None
    """If given, consumers share the messages."""


class ChannelCreate(Ask, frozen=True, kw_only=True, tag="CHANNEL_CREATE"):
    """Create a channel: a contract for the topics of its pattern."""

    channel: str
    pattern: str = ""
    """The topics of the channel; by default the topic with its name."""
    schema_hash: str = ""
    schema_version: str = ""
    qos: Qos = Qos()
    description: str = ""


class ChannelDestroy(Ask, frozen=True, kw_only=True, tag="CHANNEL_DESTROY"):
    """Remove a channel. Its topics stay usable, without a contract."""

    channel: str


class ChannelList(Ask, frozen=True, kw_only=True, tag="CHANNEL_LIST"):
    """Lists channels. Answered by CHANNELS."""

    pattern: str = ">"


class ChannelDescribe(Ask, frozen=True, kw_only=True, tag="CHANNEL_DESCRIBE"):
    """Describes one channel. Answered by CHANNELS with one entry."""

    channel: str


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A channel, its producers and its consumers."""

    channel: str
    pattern: str
    owner: str
    created_ns: int
    schema_hash: str = ""
    schema_version: str = ""
    qos: Qos = Qos()
    description: str = ""
    producers: list[PeerInfo] = []
    consumers: list[PeerInfo] = []
    memory: dict[str, Any] = {}
    """The last counters that the producer of a shared-memory channel reported; empty without such a report."""


class Channels(Answer, frozen=True, kw_only=True, tag="CHANNELS"):
    """The answer to CHANNEL_LIST and CHANNEL_DESCRIBE."""

    channels: list[ChannelInfo]


class ChannelChanged(Control, frozen=True, kw_only=True, tag="CHANNEL_CHANGED"):
    """Sent to the producers and consumers of a channel: a member joined or left, or the channel was destroyed."""

    channel: str
    event: str
    name: str = ""


# Schemas


class SchemaPut(Ask, frozen=True, kw_only=True, tag="SCHEMA_PUT"):
    """Register a schema, or its next version. Answered by SCHEMAS with the registered version."""

    name: str
    schema: dict[str, Any]
    version: str = ""
    """By default the next version for the kind of change."""
    compatibility: str = ""
    """none, backward, forward or full; by default the mode of the last version, or backward for a new schema."""


class SchemaGet(Ask, frozen=True, kw_only=True, tag="SCHEMA_GET"):
    """Asks for a schema by its name and version, or by its hash. Answered by SCHEMAS."""

    name: str = ""
    version: str = ""
    """By default the last."""
    hash: str = ""


class SchemaList(Ask, frozen=True, kw_only=True, tag="SCHEMA_LIST"):
    """Lists schemas, or the versions of one. Answered by SCHEMAS."""

    name: str = ""


class SchemaInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a schema."""

    name: str
    version: str
    hash: str
    compatibility: str
    schema: dict[str, Any] = {}


class Schemas(Answer, frozen=True, kw_only=True, tag="SCHEMAS"):
    """The answer to requests about schemas."""

    schemas: list[SchemaInfo]


# Watching


class Stats(Ask, frozen=True, kw_only=True, tag="STATS"):
    """Asks for the state of the hub. Answered by STATS_ANSWER."""


class StatsAnswer(Answer, frozen=True, kw_only=True, tag="STATS_ANSWER"):
    """The answer to STATS."""

    stats: dict[str, Any]


class SnapshotRequest(Ask, frozen=True, kw_only=True, tag="SNAPSHOT"):
    """Asks for clients and subscribers and their state. Answered by SNAPSHOT_ANSWER; administrators only."""

    rows: int = 1000
    """At most this many clients, subscribers and topics each, up to 10,000."""


class SnapshotAnswer(Answer, frozen=True, kw_only=True, tag="SNAPSHOT_ANSWER"):
    """The answer to SNAPSHOT."""

    snapshot: HubSnapshot


class Trace(Ask, frozen=True, kw_only=True, tag="TRACE"):
    """Asks for the control messages of connections whose client name matches; administrators only."""

    on: bool = True
    client: str = "*"


class Traced(Control, frozen=True, kw_only=True, tag="TRACED"):
    """A control message of another connection, sent to clients that asked with TRACE."""

    at_ns: int
    client: str
    direction: str
    what: dict[str, Any]


FROM_CLIENT: Final = (
    Hello,
    Maps,
    Goodbye,
    Heartbeat,
    Topic,
    Withdraw,
    Subscribe,
    Mapped,
    Unsubscribe,
    Stop,
    Credit,
    Ack,
    Nack,
    Fates,
    Link,
    Unlink,
    Last,
    Explain,
    Forget,
    Letters,
    LetterReplay,
    LetterRemove,
    ProducerRegister,
    ProducerUnregister,
    ConsumerRegister,
    ConsumerUnregister,
    DiscoveryRequest,
    ChannelCreate,
    ChannelDestroy,
    ChannelList,
    ChannelDescribe,
    SchemaPut,
    SchemaGet,
    SchemaList,
    Stats,
    SnapshotRequest,
    Trace,
)
FROM_HUB: Final = (
    Welcome,
    Goodbye,
    Heartbeat,
    Beat,
    Done,
    Error,
    TopicInfo,
    Taken,
    Subscribed,
    Report,
    Dropped,
    LastAnswer,
    ExplainAnswer,
    LettersAnswer,
    LettersDone,
    DiscoveryResponse,
    Channels,
    ChannelChanged,
    Schemas,
    StatsAnswer,
    SnapshotAnswer,
    Traced,
)


class _Reader:
    """Reads one direction of the protocol."""

    def __init__(self, kinds: tuple[type[Control], ...]) -> None:
        union: Any = kinds[0]
        for kind in kinds[1:]:
            union |= kind
        self._decode = msgspec.json.Decoder(union).decode

    def __call__(self, data: bytes | memoryview) -> Control:
        """Raises ProtocolError for any malformed bytes."""
        try:
            read = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("malformed", f"not a control message: {error}") from error
        assert isinstance(read, Control)
        return read


read_from_client = _Reader(FROM_CLIENT)
read_from_hub = _Reader(FROM_HUB)
write = msgspec.json.Encoder().encode
