"""The control protocol: JSON objects, told apart by `type`. What asks has an `id`; what answers has it in `re`.

The types here are the protocol: its JSON Schema in docs/protocol is made from them. A field that a reader does not know
is ignored, so fields may be added within a version; anything else needs a new one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from trunkline.errors import ProtocolError
from trunkline.wire.snapshot import HubSnapshot

VERSIONS: Final = (1,)
"""Those this Trunkline speaks, the best first."""
NO_RESPONDERS: Final = "no_responders"
"""In TAKEN, of a batch that was taken: nobody got the requests in it."""
LETTERS_KEPT: Final = "dead letters"
"""The feature of a hub that keeps dead letters in a journal, and tells of them."""


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=str.upper):
    """Something that is said on a connection."""


class Ask(Control, frozen=True, kw_only=True):
    """Something that is answered."""

    id: int = 0
    """Chosen by the client: its answer has it in `re`. Who waits for each answer before asking again needs none."""


class Answer(Control, frozen=True, kw_only=True):
    """Something that answers."""

    re: int
    """The `id` of what it answers."""


# The beginning and the end


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A payload in shared memory, to be opened by the other side: whether it can, only trying tells."""

    descriptor: int
    size: int
    token: str


class Hello(Ask, frozen=True, kw_only=True, tag="HELLO"):
    """The first thing a client says."""

    versions: list[int]
    name: str
    library: str = ""
    origin: int = 0
    """A number by which the client is known again, chosen by chance; the same over reconnections.

    Others see another one, which the hub makes from this one and the client's identity: keep this one to yourself.
    """
    token: str = ""
    """Never the same twice: a hello that was overheard and is said again is refused."""
    at_ns: int = 0
    """When it is said, in seconds since 1970. A token without it is remembered as long as the hub runs."""
    max_frame_bytes: int = 64 * 1024 * 1024
    """What the client takes in one frame. A message that does not fit is dropped, and that is on record."""
    memory: Probe | None = None
    """Of a client that knows PUBLISH_SHARED and DELIVER_SHARED, and is on a unix socket."""


class Welcome(Answer, frozen=True, kw_only=True, tag="WELCOME"):
    """The answer to HELLO: from now on everything else may be said."""

    version: int
    hub: str
    """The name of this run of the hub: another one after a restart."""
    session: str
    identity: str
    """Who the transport says the client is."""
    heartbeat_s: float
    """Say something at least so often. Who is silent three times as long is gone."""
    window: int
    """How many messages on one topic may be on their way to the hub and not yet taken."""
    window_bytes: int = 32 * 1024 * 1024
    """How many bytes in all, each message counted with 300 more. Who has more is not read from for a while."""
    max_frame_bytes: int
    features: list[str] = []
    """What the hub's broker offers beyond publish and subscribe; `dead letters` if it can be asked for them."""
    memory: Probe | None = None
    """The hub's own: a client that can open it says MAPS."""
    shares: bool = False
    """Whether the hub could open the memory of HELLO: then the client may send PUBLISH_SHARED."""


class Maps(Control, frozen=True, kw_only=True, tag="MAPS"):
    """The client could open the probe of WELCOME: from now on large payloads may come as DELIVER_SHARED."""


class Goodbye(Control, frozen=True, kw_only=True, tag="GOODBYE"):
    """The last thing either side says."""

    reason: str = ""


class Heartbeat(Control, frozen=True, kw_only=True, tag="HEARTBEAT"):
    """Still here. With an `id` it is answered, after everything that was said before it."""

    id: int = 0


class Beat(Answer, frozen=True, kw_only=True, tag="BEAT"):
    """The answer to a heartbeat: everything before it was taken up."""

    last: int = 0
    """The number of the last message that the hub has numbered; 0 for who has no right at all."""


class Done(Answer, frozen=True, kw_only=True, tag="DONE"):
    """It was done; `changed` if there was something to do."""

    changed: bool = True


class Error(Control, frozen=True, kw_only=True, tag="ERROR"):
    """What went wrong. Without `re` it answers no message in particular."""

    code: str
    text: str
    details: dict[str, Any] = {}
    re: int = 0
    batch: int = -1
    """The number of the batch that was not taken because of it; -1 if it is about none, or nobody can tell."""


# Publishing


class Topic(Ask, frozen=True, kw_only=True, tag="TOPIC"):
    """A client is about to publish here: what must it know? Answered by TOPIC_INFO, now and whenever it changes."""

    topic: str


class TopicInfo(Control, frozen=True, kw_only=True, tag="TOPIC_INFO"):
    """What a publisher must know of a topic: the answer to TOPIC, and by itself whenever it changes."""

    topic: str
    re: int = 0
    heard: bool = False
    """Whether anybody listens."""
    confirm: bool = False
    """Wait for TAKEN before a publish is done: a subscriber may refuse it, or it is stored first."""
    durable: bool = False
    channel: str | None = None
    """The channel this topic belongs to, if any."""
    schema: str | None = None
    """The hash of its schema: messages that do not fit are not to be sent."""
    full: list[tuple[str, int]] = []
    """In the answer to TOPIC: subscribers that publishers wait for now, and how often each has become full."""


class Taken(Control, frozen=True, kw_only=True, tag="TAKEN"):
    """Batches are with everybody who is to get them."""

    runs: list[tuple[int, int, int]] = []
    """First and last number of consecutive batches, and the number of the first message in them."""
    failures: list[Failure] = []
    """What a subscriber or the journal refused, of those batches."""
    yields: bool = False
    """Whether the client should let other processes run after large frames: urgent messages come through the hub."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message, or a batch, that was not taken."""

    batch: int
    index: int
    """Which message of the batch; -1 for all of them."""
    code: str
    text: str
    details: dict[str, Any] = {}


class Withdraw(Control, frozen=True, kw_only=True, tag="WITHDRAW"):
    """A publisher waits no longer: the batch is dropped where it still waits for room."""

    batch: int
    reason: str = ""


# Subscribing


class Subscribe(Ask, frozen=True, kw_only=True, tag="SUBSCRIBE"):
    """From its answer on, what matches the pattern is delivered."""

    subscription: int
    """A number the client chooses: deliveries carry it."""
    pattern: str
    name: str
    credit: int
    """So many messages may be sent; -1: as many as there are."""
    credit_bytes: int = -1
    """So many bytes may be sent; -1: as many as there are. A batch is sent if any of it is left."""
    capacity: int = 10_000
    overflow: str = "block"
    group: str | None = None
    durable: bool = False
    start: int | str = "end"
    tap: bool = False
    """It listens for the bus itself: nobody counts it as a subscriber unless it `hears`."""
    hears: bool = True
    secret: str = ""
    """For a reply topic: `_reply.` and the first 32 hexadecimal digits of the SHA-256 of this."""
    reports: bool = False
    """Whether the client says with FATES what became of what it gets. If not, what was sent counts as delivered."""
    one_of: str | None = None
    """Of this client's subscriptions with the same `one_of`, a message goes to the one whose pattern is its topic, if
    there is one, and to all of them otherwise."""


class Subscribed(Answer, frozen=True, kw_only=True, tag="SUBSCRIBED"):
    """The answer to SUBSCRIBE: every batch that comes to the hub from now on is seen."""

    subscription: int
    role: str = ""
    """The name under which the hub knows the subscriber, where its dead letters and fates are kept; it may be another
    than the one asked for, if that was taken."""
    report_s: float | None = None
    """How long FATES may wait for others to travel with; not there if the hub does not want to know them."""


class Mapped(Control, frozen=True, kw_only=True, tag="MAPPED"):
    """The memory of these deliveries is open, or cannot be opened: the hub need not keep it for this client."""

    numbers: list[int]


class Unsubscribe(Ask, frozen=True, kw_only=True, tag="UNSUBSCRIBE"):
    """Nothing more is wanted. Answered by DONE."""

    subscription: int


class Stop(Control, frozen=True, kw_only=True, tag="STOP"):
    """A member takes in nothing new: what it has not got goes to the others. It still says what became of the rest."""

    subscription: int


class Credit(Control, frozen=True, kw_only=True, tag="CREDIT"):
    """So many messages, and bytes, more may be sent."""

    subscription: int
    messages: int
    bytes: int = 0


class Ack(Control, frozen=True, kw_only=True, tag="ACK"):
    """Delivered: ranges of message numbers, both ends included. Only members of groups and the durable say so."""

    subscription: int
    ranges: list[tuple[int, int]]


class Nack(Control, frozen=True, kw_only=True, tag="NACK"):
    """Not delivered: what became of it instead, `returned` if somebody else is to get it."""

    subscription: int
    seq: int
    fate: str
    reason: str = ""
    attempts: int = 0
    letter: str | None = None
    """The dead letter, in base64 of its MessagePack."""


class FateRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a range of messages; `in flight` if they came on an earlier connection, and are still here."""

    fate: str
    first: int
    last: int
    count: int
    reason: str = ""


class Fates(Control, frozen=True, kw_only=True, tag="FATES"):
    """What became of what a plain subscription got. Said a few times a second, and when the hub asks with REPORT."""

    subscription: int
    rows: list[FateRow] = []
    """Ranges without a gap: of every number in it this subscription got the message."""
    letters: list[str] = []
    """Dead letters, in base64 of their MessagePack."""
    asked: bool = False
    """Whether this is all there was to say when REPORT came."""


class Report(Control, frozen=True, kw_only=True, tag="REPORT"):
    """Say now what became of what this subscription got: somebody wants to know."""

    subscription: int


class Dropped(Control, frozen=True, kw_only=True, tag="DROPPED"):
    """The hub had no room for these, or their publisher gave up: they will not come."""

    subscription: int
    ranges: list[tuple[int, int]]
    reason: str
    topic: str
    count: int
    origin: int = 0
    position: int = 0
    priority: int = 50


class Link(Ask, frozen=True, kw_only=True, tag="LINK"):
    """What matches the pattern also goes to whoever listens on the topic."""

    pattern: str
    topic: str


class Unlink(Ask, frozen=True, kw_only=True, tag="UNLINK"):
    """Undo LINK. Answered by DONE."""

    pattern: str
    topic: str


# Stored messages


class Last(Ask, frozen=True, kw_only=True, tag="LAST"):
    """The last stored message of a topic. Answered by LAST_ANSWER, by hubs with the feature `reading stored messages`.

    Errors: `forbidden` without the right to subscribe; `not_stored` if the journal does not store the topic; `damaged`
    if the message cannot be read; `too_large` if it does not fit into a frame: then subscribe with `start` "last".
    """

    topic: str
    before: int | None = None
    """Only messages with a lower number."""
    max_bytes: int = 0
    """The largest frame the client takes; 0: the largest the hub sends."""


class LastAnswer(Answer, frozen=True, kw_only=True, tag="LAST_ANSWER"):
    """The answer to LAST."""

    message: str | None = None
    """The message, in base64 of its MessagePack; without it, none is stored."""


class Explain(Ask, frozen=True, kw_only=True, tag="EXPLAIN"):
    """What became of a message. Answered by EXPLAIN_ANSWER; `unknown` also without any right on its topic."""

    message_id: str
    number: int = 0
    """The number of the message, if it is known: it is found faster."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the message for one subscriber."""

    subscriber: str
    fate: str
    reason: str = ""
    at_ns: int = 0


class ExplainAnswer(Answer, frozen=True, kw_only=True, tag="EXPLAIN_ANSWER"):
    """The answer to EXPLAIN."""

    message: str
    """The message, in base64 of its MessagePack, without a large payload."""
    outcomes: list[Told] = []


class Forget(Ask, frozen=True, kw_only=True, tag="FORGET"):
    """Remove a durable subscription for good. Answered by DONE, `changed` if there was one.

    Errors: `forbidden` for an identity that neither owns it nor administers its topics; `refused` if it has
    subscribers, or if the hub has no journal.
    """

    name: str
    """Its name, or that of its group."""


# Dead letters


class Letters(Ask, frozen=True, kw_only=True, tag="LETTERS"):
    """Which dead letters there are, oldest first, on topics the client may subscribe to. Answered by LETTERS_ANSWER."""

    subscriber: str | None = None
    topic: str = ">"
    """A pattern."""
    cause: str | None = None
    message_id: str | None = None
    brief: bool = False
    """Without payloads and tracebacks: enough to look them over."""
    limit: int = 1000
    """No more than so many in one answer."""
    max_bytes: int = 0
    """The largest frame the client takes; 0: the largest the hub sends."""
    after: str = ""
    """Where the answer before ended: its `more`."""


class Letter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter that the hub's journal keeps."""

    letter: str
    """Base64 of its MessagePack."""
    whole: bool = True
    """False: its payload, or its traceback, was left out, because it is too large or was not asked for."""
    returns: bool = False
    """Whether the hub gives it back to its subscriber by LETTER_REPLAY; if not, that is up to the subscriber."""


class LettersAnswer(Answer, frozen=True, kw_only=True, tag="LETTERS_ANSWER"):
    """The answer to LETTERS. It may hold none, and there may be more all the same."""

    letters: list[Letter]
    more: str = ""
    """Ask again with this in `after`; empty: these were the last."""


class LetterAgain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter that is to be handled once more."""

    subscriber: str
    seq: int
    message: str | None = None
    """The message as it was changed, in base64 of its MessagePack; who changes it must be allowed to publish."""


class LetterReplay(Ask, frozen=True, kw_only=True, tag="LETTER_REPLAY"):
    """Give dead letters back to those who failed: members of groups, durable subscriptions. Answered by LETTERS_DONE.

    They are no dead letters any more then, but on their way. A durable subscription gets its own when it next comes.
    """

    letters: list[LetterAgain]


class LetterRemove(Ask, frozen=True, kw_only=True, tag="LETTER_REMOVE"):
    """Throw dead letters away: somebody has seen them, or their subscriber has handled them now."""

    letters: list[tuple[str, int]]
    """Subscribers and message numbers."""


class LetterFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dead letter that stays where it is."""

    subscriber: str
    seq: int
    code: str
    text: str


class LettersDone(Answer, frozen=True, kw_only=True, tag="LETTERS_DONE"):
    """The answer to LETTER_REPLAY and LETTER_REMOVE."""

    done: int
    failures: list[LetterFailure] = []


# Who speaks what


class BufferPolicy(StrEnum):
    """Which frames a producer keeps for its consumers: the latest one, two, or the last `capacity`."""

    SINGLE = "Single"
    DOUBLE_BUFFER = "DoubleBuffer"
    RING_BUFFER = "RingBuffer"


MAX_CAPACITY: Final = 1 << 20
MAX_PAGE_BYTES: Final = 1 << 30


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer lays its data out."""

    policy: str = BufferPolicy.RING_BUFFER.value
    """Single, DoubleBuffer or RingBuffer."""
    capacity: int = 10
    """How many frames a ring has, 1 to 1,048,576; the other policies have as many as their names say."""
    page_size: int = 4096
    """In bytes: a power of two, up to 1 GiB."""

    def problem(self) -> str:
        """What cannot be, or nothing."""
        if self.policy not in list(BufferPolicy):
            return f"a policy is {', '.join(BufferPolicy)}, not {self.policy!r}"
        if not 1 <= self.capacity <= MAX_CAPACITY:
            return f"a capacity is from 1 to {MAX_CAPACITY:,}, not {self.capacity:,}"
        if not 1 <= self.page_size <= MAX_PAGE_BYTES or self.page_size & (self.page_size - 1):
            return f"a page size is a power of two up to {MAX_PAGE_BYTES:,} bytes, not {self.page_size:,}"
        return ""


class ProducerRegister(Ask, frozen=True, kw_only=True, omit_defaults=False, tag="PRODUCER_REGISTER"):
    """This client produces on a channel. All fields are sent, also those with their default."""

    channel: str
    schema_hash: str = ""
    schema_version: str = ""
    config: Config = Config()
    shm_name: str = ""
    metadata: dict[str, Any] = {}


class ProducerUnregister(Ask, frozen=True, kw_only=True, tag="PRODUCER_UNREGISTER"):
    """It does so no longer."""

    channel: str


class ConsumerRegister(Ask, frozen=True, kw_only=True, tag="CONSUMER_REGISTER"):
    """This client consumes from a channel; refused if its schema is not the one expected."""

    channel: str
    consumer_id: str
    expected_schema_hash: str = ""
    metadata: dict[str, Any] = {}


class ConsumerUnregister(Ask, frozen=True, kw_only=True, tag="CONSUMER_UNREGISTER"):
    """It does so no longer."""

    channel: str
    consumer_id: str


class DiscoveryRequest(Ask, frozen=True, kw_only=True, tag="DISCOVERY_REQUEST"):
    """Who produces and consumes on a channel, and where its data is."""

    channel: str


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A producer or a consumer of a channel."""

    name: str
    identity: str
    status: str
    """active, or suspected: not heard of for longer than it should be."""
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
    """What becomes of a message that breaks the schema: refuse, or dead_letter."""
    group: str | None = None
    """If given, consumers share the messages."""


class ChannelCreate(Ask, frozen=True, kw_only=True, tag="CHANNEL_CREATE"):
    """Make a channel: a contract for the topics of its pattern."""

    channel: str
    pattern: str = ""
    """Which topics belong to it; by default the one with its name."""
    schema_hash: str = ""
    schema_version: str = ""
    qos: Qos = Qos()
    description: str = ""


class ChannelDestroy(Ask, frozen=True, kw_only=True, tag="CHANNEL_DESTROY"):
    """Remove a channel. Its topics stay usable, without a contract."""

    channel: str


class ChannelList(Ask, frozen=True, kw_only=True, tag="CHANNEL_LIST"):
    """Which channels there are. Answered by CHANNELS."""

    pattern: str = ">"


class ChannelDescribe(Ask, frozen=True, kw_only=True, tag="CHANNEL_DESCRIBE"):
    """All of one channel. Answered by CHANNELS, with one."""

    channel: str


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A channel, and who uses it."""

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
    """Of a channel in shared memory, what its producer last said that it counts; empty if it has not, or is gone."""


class Channels(Answer, frozen=True, kw_only=True, tag="CHANNELS"):
    """The answer to CHANNEL_LIST and CHANNEL_DESCRIBE."""

    channels: list[ChannelInfo]


class ChannelChanged(Control, frozen=True, kw_only=True, tag="CHANNEL_CHANGED"):
    """Told to producers and consumers of a channel: somebody came or left, or it was destroyed."""

    channel: str
    event: str
    name: str = ""


# Schemas


class SchemaPut(Ask, frozen=True, kw_only=True, tag="SCHEMA_PUT"):
    """Register a schema, or its next version. Answered by SCHEMAS, with what was registered."""

    name: str
    schema: dict[str, Any]
    version: str = ""
    """By default the next that the change deserves."""
    compatibility: str = ""
    """none, backward, forward or full; by default as the schema had it before, backward for a new one."""


class SchemaGet(Ask, frozen=True, kw_only=True, tag="SCHEMA_GET"):
    """A schema by its name and version, or by its hash. Answered by SCHEMAS."""

    name: str = ""
    version: str = ""
    """By default the last."""
    hash: str = ""


class SchemaList(Ask, frozen=True, kw_only=True, tag="SCHEMA_LIST"):
    """Which schemas there are, or which versions of one. Answered by SCHEMAS."""

    name: str = ""


class SchemaInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a schema."""

    name: str
    version: str
    hash: str
    compatibility: str
    schema: dict[str, Any] = {}


class Schemas(Answer, frozen=True, kw_only=True, tag="SCHEMAS"):
    """The answer to what is asked of schemas."""

    schemas: list[SchemaInfo]


# Watching


class Stats(Ask, frozen=True, kw_only=True, tag="STATS"):
    """How the hub is doing. Answered by STATS_ANSWER."""


class StatsAnswer(Answer, frozen=True, kw_only=True, tag="STATS_ANSWER"):
    """The answer to STATS."""

    stats: dict[str, Any]


class SnapshotRequest(Ask, frozen=True, kw_only=True, tag="SNAPSHOT"):
    """Who is connected, who subscribes, and how each is doing. Answered by SNAPSHOT_ANSWER; administrators only."""

    rows: int = 1000
    """At most this many clients, subscribers and topics each, up to 10,000."""


class SnapshotAnswer(Answer, frozen=True, kw_only=True, tag="SNAPSHOT_ANSWER"):
    """The answer to SNAPSHOT."""

    snapshot: HubSnapshot


class Trace(Ask, frozen=True, kw_only=True, tag="TRACE"):
    """Have the hub tell what is said on connections whose client name fits; administrators only."""

    on: bool = True
    client: str = "*"


class Traced(Control, frozen=True, kw_only=True, tag="TRACED"):
    """Something that was said on a connection, for those who asked by TRACE."""

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
        """Raises ProtocolError, whatever the bytes."""
        try:
            read = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("malformed", f"not a control message: {error}") from error
        assert isinstance(read, Control)
        return read


read_from_client = _Reader(FROM_CLIENT)
read_from_hub = _Reader(FROM_HUB)
write = msgspec.json.Encoder().encode
