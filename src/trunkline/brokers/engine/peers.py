"""Other processes on the same engine: which of them are running, and the fates of a message in them.

There is no hub to ask. Each process keeps the fates of its own subscribers, so `explain` asks all of them, and waits
for those that are known to run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from trunkline.brokers.engine.batches import LOCAL, TRIMMED
from trunkline.brokers.remote.member import MemberFeed
from trunkline.delivery.fates import Fate, Outcome
from trunkline.errors import EngineUnavailable
from trunkline.message import NORMAL, Message
from trunkline.topic import matches
from trunkline.wire.control import ChannelChanged

if TYPE_CHECKING:
    from trunkline.brokers.engine.adapter import EngineAdapter
    from trunkline.brokers.remote.broker import RemoteBroker

log = logging.getLogger("trunkline.connection")

BEAT_S = 5.0
CALL_S = 0.3
"""How long after connecting to wait for other processes to announce themselves."""
GONE_S = 16.0
"""A process without a note for this long is gone."""


class PeerNote(msgspec.Struct, tag_field="kind"):
    sender: str
    """The address of the process that sent the note."""


class PeerHello(PeerNote, tag="hello"):
    """Announces a process, and asks the others to announce themselves."""


class PeerHere(PeerNote, tag="here"):
    directory: int = 0
    """The latest version of the directory of channels that the sender has read."""


class PeerDirectory(PeerNote, tag="directory"):
    """The sender has changed the directory of channels."""

    version: int
    told: list[tuple[str, str, str, str]] = []
    """Notices for processes: the process, the channel, the event, and the name of the producer or consumer."""


class PeerBye(PeerNote, tag="bye"):
    pass


class PeerPlace(msgspec.Struct, array_like=True):
    """Identifies a message in every process, whatever its number is there."""

    topic: str = ""
    seq: int = 0
    """Its number in the engine's store, if it has one."""
    origin: int = 0
    batch: int = 0
    index: int = 0
    """The publisher, the batch and the index in it, if they are known."""
    position: int = -1
    priority: int = NORMAL
    """How many messages of this priority its publisher had published on the topic before; -1 if not known."""
    at_ns: int = 0
    """When it was published, by the clock of its publisher."""


class PeerQuestion(PeerNote, tag="explain"):
    """Asks for the fates of a message."""

    number: int
    message_id: str
    place: PeerPlace


class PeerOutcome(msgspec.Struct, array_like=True):
    subscriber: str
    fate: str
    reason: str
    at_ns: int


class PeerAnswer(PeerNote, tag="answer"):
    """The answer to a PeerQuestion, or with `patterns` to a PeerPatterns."""

    number: int
    outcomes: list[PeerOutcome] = []
    message: bytes = b""
    """The message itself, if the sender has it and the question had only its id."""
    place: PeerPlace = msgspec.field(default_factory=PeerPlace)
    patterns: list[str] = []


class PeerPatterns(PeerNote, tag="patterns"):
    """Asks for the patterns of all subscribers of a process."""

    number: int


Note = PeerHello | PeerHere | PeerBye | PeerQuestion | PeerAnswer | PeerPatterns | PeerDirectory
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Note).decode


class _Asked:
    """A question that is not yet answered by all."""

    def __init__(self, waits_for: set[str]) -> None:
        self.waits_for = waits_for
        self.answers: list[PeerAnswer] = []
        self.done = asyncio.get_running_loop().create_future()


class Peers:
    """One per connection. It answers for all buses that share the connection."""

    def __init__(self, adapter: EngineAdapter) -> None:
        self._adapter = adapter
        self._brokers: list[RemoteBroker] = []
        self._others: dict[str, float] = {}
        """By address: when the last note arrived."""
        self._questions: dict[int, _Asked] = {}
        self._last = 0
        self._since = 0.0
        """When the connection was made."""
        self._timer: asyncio.TimerHandle | None = None
        adapter.on_told = self.told
        adapter.on_connected.append(self._connected)

    @classmethod
    def of(cls, adapter: EngineAdapter) -> Peers:
        if adapter.peers is None:
            adapter.peers = cls(adapter)
        return adapter.peers

    def join(self, broker: RemoteBroker) -> None:
        self._brokers.append(broker)

    def leave(self, broker: RemoteBroker) -> None:
        if broker in self._brokers:
            self._brokers.remove(broker)
        if not self._brokers:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._tell("", PeerBye(self._adapter.me))

    @property
    def others(self) -> list[str]:
        """The addresses of other running processes."""
        now = asyncio.get_running_loop().time()
        self._others = {each: seen for each, seen in self._others.items() if now - seen < GONE_S}
        return list(self._others)

    async def _roll_call(self) -> None:
        """Right after connecting, wait for the other processes to announce themselves."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._since + CALL_S - loop.time()))

    def _connected(self) -> None:
        self._others.clear()
        self._since = asyncio.get_running_loop().time()
        self._tell("", PeerHello(self._adapter.me))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        directory = self._adapter.directory
        self._tell("", PeerHere(self._adapter.me, 0 if directory is None else directory.version))
        if directory is not None:
            directory.beat()

    def has_heard(self, address: str) -> bool:
        """Whether a note of a process has arrived recently."""
        return self._silent_s(address) < 2 * BEAT_S

    def is_silent(self, address: str) -> bool:
        """Whether no note of a process has arrived for GONE_S."""
        return self._silent_s(address) >= GONE_S

    def _silent_s(self, address: str) -> float:
        # An unknown process counts as last heard 2 * BEAT_S before the connection was made: not recently, but not
        # silent yet.
        return asyncio.get_running_loop().time() - self._others.get(address, self._since - 2 * BEAT_S)

    def tell_directory(self, version: int, told: list[tuple[str, str, str, str]]) -> None:
        """Notify all other processes that the directory was changed."""
        self._tell("", PeerDirectory(self._adapter.me, version, told))

    def _tell(self, address: str, note: Note) -> None:
        if self._adapter.live:
            self._adapter.driver.tell(address, _encode(note))

    def told(self, data: bytes) -> None:
        try:
            note = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._adapter.malformed += 1
            log.warning("a control message of another process could not be read: %s", error)
            return
        if note.sender == self._adapter.me:
            return
        match note:
            case PeerBye():
                self._gone(note.sender)
                return
            case PeerHello():
                self._tell(note.sender, PeerHere(self._adapter.me))
            case PeerQuestion():
                self._answer(note)
            case PeerPatterns():
                self._tell(note.sender, PeerAnswer(self._adapter.me, note.number, patterns=sorted(self._patterns())))
            case PeerAnswer():
                self._answered(note)
            case PeerDirectory():
                told = [(who, ChannelChanged(channel=c, event=e, name=n)) for who, c, e, n in note.told]
                self._directory_changed(note.version, told)
            case PeerHere():
                self._directory_changed(note.directory, [])
        self._others[note.sender] = asyncio.get_running_loop().time()

    def _directory_changed(self, version: int, told: list[tuple[str, ChannelChanged]]) -> None:
        directory = self._adapter.directory
        if directory is not None and (told or version > directory.version):
            directory.told(version, told)

    def _gone(self, address: str) -> None:
        self._others.pop(address, None)
        for asked in self._questions.values():
            asked.waits_for.discard(address)
            self._check(asked)

    # Subscribers

    async def patterns(self) -> set[str]:
        """The patterns of all subscribers in this process, and in all others that answer within CALL_S."""
        await self._roll_call()
        asked = await self._ask(lambda number: PeerPatterns(self._adapter.me, number), CALL_S)
        return self._patterns().union(*(answer.patterns for answer in asked.answers))

    def _patterns(self) -> set[str]:
        return {feed.inbox.pattern for broker in self._brokers for feed in broker.feeds.values()}

    # Explaining

    async def explain(self, message_id: str, known: Message | None) -> tuple[Message | None, list[Outcome]]:
        """The message and its outcomes, as known to this process and all others."""
        message = known or self._find(message_id)
        place = PeerPlace() if message is None else self._place(message)
        await self._roll_call()
        answers = await self._explain_elsewhere(message_id, place)
        if message is None and (found := next((each for each in answers if each.message), None)) is not None:
            # One process has found the message by its id. With its place, the others can now be queried.
            message, place = Message.from_bytes(found.message), found.place
            answers = await self._explain_elsewhere(message_id, place)
        if message is None:
            return None, []
        outcomes = self._outcomes(message, self._numbers(place) | self._known_numbers(known), place)
        elsewhere = (msgspec.structs.astuple(each) for answer in answers for each in answer.outcomes)
        return message, _last_of_each(
            [*outcomes, *(Outcome(name, Fate(fate), reason, at_ns) for name, fate, reason, at_ns in elsewhere)]
        )

    async def _explain_elsewhere(self, message_id: str, place: PeerPlace) -> list[PeerAnswer]:
        answer_s, me = self._adapter.settings.answer_s, self._adapter.me
        asked = await self._ask(lambda number: PeerQuestion(me, number, message_id, place), answer_s)
        if asked.waits_for:
            log.warning("explain: no answer from %s within %g s", ", ".join(sorted(asked.waits_for)), answer_s)
            if not self._adapter.live:
                raise EngineUnavailable(self._adapter.name, self._adapter.url, "the connection ended")
        return asked.answers

    async def _ask(self, question: Callable[[int], Note], answer_s: float) -> _Asked:
        """Ask all other processes, and wait for their answers."""
        asked = _Asked(set(self.others))
        if not asked.waits_for:
            return asked
        self._last += 1
        number = self._last
        self._questions[number] = asked
        try:
            self._tell("", question(number))
            async with asyncio.timeout(answer_s):
                await asked.done
        except TimeoutError:
            self._adapter.start(
                self._check_alive(set(asked.waits_for)), "the list of connected processes was not updated"
            )
        finally:
            del self._questions[number]
        return asked

    async def _check_alive(self, silent: set[str]) -> None:
        """Remove processes that are no longer connected. A killed process sends no PeerBye."""
        for address in silent:
            if not await self._adapter.driver.is_connected(address):
                self._gone(address)

    def _place(self, message: Message) -> PeerPlace:
        place = PeerPlace(message.topic, message.seq if message.seq < LOCAL else 0, at_ns=message.timestamp_ns)
        if message.seq and (found := self._adapter.known.find(message.seq)) is not None:
            batch, place.index = found
            place.origin, place.batch = batch.key
            if batch.position >= 0:
                place.position, place.priority = batch.position + place.index, batch.priority
            if batch.stored:
                place.seq = batch.stored + place.index
        return place

    def _numbers(self, place: PeerPlace) -> set[int]:
        """The numbers of a message in this process."""
        numbers = {place.seq} if place.seq else set()
        batch = self._adapter.known.of((place.origin, place.batch))
        if batch is not None and place.index < batch.count:
            numbers |= {first + place.index for first in (batch.local, batch.stored) if first}
        return numbers

    def _known_numbers(self, message: Message | None) -> set[int]:
        return set() if message is None or not message.seq else self._adapter.known.numbers(message.seq)

    def _answer(self, question: PeerQuestion) -> None:
        place = question.place
        message = self._find(question.message_id) if not place.topic else None
        if message is not None:
            place = self._place(message)
        found: list[Outcome] = []
        if place.topic:
            asked = Message(id=question.message_id, topic=place.topic, payload=b"", timestamp_ns=0)
            found = self._outcomes(asked, self._numbers(place), place)
        self._tell(
            question.sender,
            PeerAnswer(
                self._adapter.me,
                question.number,
                [PeerOutcome(each.subscriber, each.fate.value, each.reason, each.at_ns) for each in found],
                b"" if message is None else message.to_bytes(),
                place,
            ),
        )

    def _answered(self, answer: PeerAnswer) -> None:
        if (asked := self._questions.get(answer.number)) is not None:
            asked.answers.append(answer)
            asked.waits_for.discard(answer.sender)
            self._check(asked)

    def _check(self, asked: _Asked) -> None:
        if not asked.waits_for and not asked.done.done():
            asked.done.set_result(None)

    def _find(self, message_id: str) -> Message | None:
        return next((found for each in self._brokers if (found := each.recent(message_id)) is not None), None)

    def _outcomes(self, message: Message, numbers: set[int], place: PeerPlace) -> list[Outcome]:
        """The outcomes of a message at the subscribers of this process."""
        found: list[Outcome] = []
        for broker in self._brokers:
            for number in numbers:
                for outcome in broker.served.outcomes(msgspec.structs.replace(message, seq=number)):
                    if outcome.reason != TRIMMED or self._was_for(outcome.subscriber, message.topic):
                        found.append(outcome)
        return _last_of_each([*found, *self._without_record(place, {outcome.subscriber for outcome in found})])

    def _without_record(self, place: PeerPlace, known: set[str]) -> list[Outcome]:
        """The outcomes at plain subscriptions of this process at which a published message never arrived."""
        if not place.origin or place.position < 0:
            return []
        feeds = (each for broker in self._brokers for each in broker.feeds.values())
        plain = (each for each in feeds if each.inbox.role not in known and not isinstance(each, MemberFeed))
        at = (place.origin, place.priority, place.position)
        found = (each.without_record(place.topic, at, place.at_ns) for each in plain)
        return [outcome for outcome in found if outcome is not None]

    def _was_for(self, subscriber: str, topic: str) -> bool:
        """Whether a message that the engine removed was for a subscriber. The removed range includes other topics."""
        pattern = self._adapter.trimmed_patterns.get(subscriber)
        return pattern is None or matches(pattern, topic)


def _last_of_each(outcomes: list[Outcome]) -> list[Outcome]:
    """One outcome per subscriber: a message may have been in several processes, or at an earlier subscriber."""
    found: dict[str, Outcome] = {}
    for outcome in outcomes:
        before = found.get(outcome.subscriber)
        if before is None or _replaces(outcome, before):
            found[outcome.subscriber] = outcome
    return list(found.values())


def _replaces(outcome: Outcome, before: Outcome) -> bool:
    if outcome.fate is Fate.IN_FLIGHT:
        # A dead letter that was replayed. A delivery is final.
        return before.fate not in (Fate.IN_FLIGHT, Fate.DELIVERED)
    if before.fate is Fate.IN_FLIGHT:
        return outcome.fate is Fate.DELIVERED
    return outcome.at_ns > before.at_ns
