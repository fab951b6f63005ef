"""The hub's API for dead letters: which client may see which letters, and the limits of an answer.

A client that may subscribe to a topic sees the letters on it. Replaying or removing a letter is an action for the
subscription at which it failed: it needs the right to join that subscription, to subscribe to its whole pattern, or to
administer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from trunkline.brokers.broker import Broker, Feature
from trunkline.brokers.store import Change, DeadLetterStore
from trunkline.delivery.dead_letters import Cause, Choice, DeadLetter, Key
from trunkline.delivery.options import Delivery
from trunkline.errors import InvalidMessage, PayloadError, ProtocolError, SchemaBroken, TrunklineError
from trunkline.hub.access import Action
from trunkline.hub.claims import not_sent
from trunkline.hub.conformance import Broken
from trunkline.hub.owners import DurableOwner
from trunkline.hub.questions import OpenQuestions
from trunkline.journal.dead_letters import missing
from trunkline.journal.ledger import decode_message
from trunkline.message import Message
from trunkline.topic import validate_pattern
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.delivery.outlet import Outlet
    from trunkline.hub.hub import Hub
    from trunkline.hub.session import Session

PAGE_BYTES = 1024 * 1024
MIN_BYTES = 64 * 1024
"""The smallest frame limit of a client."""
MAX_LETTERS = 1000
MAX_ASKED = 100
"""The maximum number of waiting requests of one connection."""
MAX_TRACEBACK = 10_000
ENVELOPE_BYTES = 1024
"""An upper bound for the size of an answer without its letters."""


class DeadLetterApi:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._store = None if hub.store is None else hub.store.dead_letters
        self._questions = OpenQuestions(MAX_ASKED, "about dead letters")
        self._taking: set[asyncio.Task[None]] = set()
        self.handlers: dict[type[control.Control], Callable[[Session, Any], Awaitable[control.Control]]] = {
            control.Letters: self._list,
            control.LetterReplay: self._replay,
            control.LetterRemove: self._remove,
            control.Forget: self._forget,
        }

    @property
    def keeps(self) -> bool:
        return self._store is not None

    def _stored(self) -> DeadLetterStore:
        if self._store is None:
            raise ProtocolError(
                "unknown", "this hub has no journal, and keeps no dead letters: start it with --journal"
            )
        return self._store

    def _may_see(self, session: Session) -> Callable[[str], bool]:
        return lambda topic: session.may(Action.SUBSCRIBE, topic)

    def _may_act(self, session: Session) -> Callable[[DeadLetter, str | None], bool]:
        def may(letter: DeadLetter, pattern: str | None) -> bool:
            topic = letter.message.topic
            return session.may(Action.ADMINISTER, topic) or (
                session.may(Action.SUBSCRIBE, topic)
                and (pattern is None or session.may(Action.SUBSCRIBE, pattern))
                and self._hub.directory.owners.may_use(letter.subscriber, session.identity)
            )

        return may

    @asynccontextmanager
    async def _line(self, session: Session) -> AsyncIterator[None]:
        """Limit the waiting requests of a client, and wait until reported letters are stored.

        Requests are answered one after another, so one client must not fill the queue.
        """
        with self._questions.one(session):
            if self._taking:
                # A client that asks after it reported letters must see them.
                await asyncio.wait(self._taking)
            yield

    # Letters of plain subscriptions, and names

    def take(self, session: Session, outlet: Outlet, letters: Sequence[DeadLetter]) -> asyncio.Task[None]:
        """Take the dead letters of a plain subscription. Its client is notified about ignored ones."""
        task = asyncio.get_running_loop().create_task(self._take(session, outlet, letters))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
        return task

    async def _take(self, session: Session, outlet: Outlet, letters: Sequence[DeadLetter]) -> None:
        tree = self._hub.broker.tree
        refused = await self._stored().take(
            [replace(letter, subscriber=outlet.name) for letter in letters],
            lambda message: tree.leads(message.topic, outlet.pattern),
        )
        if refused:
            self._hub.counts["refused"] += 1
            error = not_sent(refused, outlet.name)
            session.send(control.Error(code=error.code, text=error.text))

    def claim_name(self, session: Session, pattern: str, delivery: Delivery) -> None:
        """At a hub with rules: raises ProtocolError if the name of a subscription belongs to another identity.

        This is the case if another identity owns the durable subscription of this name, or if messages wait under the
        name that this client may not receive.
        """
        shared = delivery.durable and delivery.group is not None
        name = delivery.group if shared else delivery.name
        assert name is not None
        owners = self._hub.directory.owners
        waiting = [] if self._store is None else self._store.waiting_for(name)
        exists = bool(waiting) or self._hub.broker.served.takes_back(name)
        if not all(session.may(Action.SUBSCRIBE, each) for each in waiting) or (
            exists and not owners.may_use(name, session.identity) and not session.may(Action.ADMINISTER, pattern)
        ):
            raise ProtocolError(
                "exists", f"the name {name} belongs to a subscription of another client: use another name"
            )
        if delivery.durable:
            keep = self._hub.directory.keep_owners
            owners.claim(name, DurableOwner(session.identity, shared), exists=exists, keep=keep)

    async def _forget(self, session: Session, request: control.Forget) -> control.Control:
        hub, name = self._hub, request.name
        store = hub.broker.require_store(Feature.DURABLE)
        async with self._line(session):
            # After this, a leaving subscriber is gone, and its cursor is on disk.
            await hub.parted()
            await hub.broker.flush()
            owners = hub.directory.owners
            patterns = [] if self._store is None else self._store.waiting_for(name)
            if owners.owner(name) != session.identity:
                for pattern in patterns:
                    session.require(Action.ADMINISTER, pattern)
            changed = bool(patterns) and await store.forget(name)
            owners.forget(name, hub.directory.keep_owners)
        hub.changed(patterns)
        return control.Done(re=request.id, changed=changed)

    # Listing

    async def _list(self, session: Session, request: control.Letters) -> control.Control:
        if request.limit < 1:
            raise ProtocolError("malformed", "the size of a page must be at least 1")
        largest = self._hub.settings.max_frame_bytes
        if request.max_bytes:
            largest = min(largest, max(MIN_BYTES, request.max_bytes))
        room = (largest - ENVELOPE_BYTES) * 3 // 4
        cause = None if request.cause is None else _cause(request.cause)
        choice = Choice(
            topic=validate_pattern(request.topic),
            subscriber=request.subscriber,
            cause=cause,
            message_id=request.message_id,
        )
        if self._store is None:
            return control.LettersAnswer(re=request.id, letters=[], more="")
        limit, max_bytes = min(request.limit, MAX_LETTERS), min(room // 2, PAGE_BYTES)
        async with self._line(session):
            found, more = await self._store.page(choice, limit, max_bytes, request.after, self._may_see(session))
        self._hand(session, [letter for letter, _ in found])
        described = [_describe(letter, returns, room, request.brief) for letter, returns in found]
        return control.LettersAnswer(re=request.id, letters=described, more=more)

    def _hand(self, session: Session, letters: Sequence[DeadLetter]) -> None:
        """Return letters to their plain subscription, which may report their fates."""
        outlets = {each.name: each for each in session.outlets.values() if each.reports} if letters else {}
        for letter in letters:
            outlet = outlets.get(letter.subscriber)
            if outlet is not None and self._hub.broker.tree.leads(letter.message.topic, outlet.pattern):
                outlet.books.revive(letter.message.seq, self._hub.world.time_ns())

    # Replaying and removing

    async def _replay(self, session: Session, request: control.LetterReplay) -> control.Control:
        asked = {(each.subscriber, each.seq): self._change(session, each) for each in request.letters}
        _check(asked)
        async with self._line(session):
            failed = await self._stored().replay(asked)
        failures = [_failure(key, error) for key, error in failed.items()]
        return control.LettersDone(re=request.id, done=len(asked) - len(failures), failures=failures)

    def _change(self, session: Session, again: control.LetterAgain) -> Change:
        """The message to redeliver, possibly changed. Raises ProtocolError if the client may not do that."""

        def change(letter: DeadLetter, pattern: str | None) -> Message:
            topic = letter.message.topic
            if not self._may_act(session)(letter, pattern):
                if self._may_see(session)(topic):
                    raise ProtocolError("forbidden", f"{session.identity} may not act for {again.subscriber}")
                # The same answer as for an unknown letter: this client has no rights on its topic.
                raise missing((again.subscriber, again.seq))
            if pattern is not None and not self._hub.broker.tree.leads(topic, pattern):
                raise ProtocolError("refused", f"{again.subscriber} does not get messages on {topic}")
            if again.message is None:
                return letter.message
            session.require(Action.PUBLISH, letter.message.topic)
            message = _message(again.message)
            if message.reply_to:
                session.require(Action.PUBLISH, message.reply_to)
            if message.topic != letter.message.topic:
                raise ProtocolError(
                    "malformed", "a dead letter is replayed on its own topic: publish a message to use another one"
                )
            self._check_schema(message)
            return replace(message, seq=letter.message.seq)

        return change

    def _check_schema(self, message: Message) -> None:
        directory = self._hub.directory
        channel = directory.registry.find(message.topic)
        checker = None if channel is None else directory.schemas.checker(channel.schema_hash)
        limit = self._hub.broker.settings.max_message_bytes
        if channel is not None and checker is not None and (problem := checker.broken(message, limit)) is not None:
            raise ProtocolError(
                "schema", f"the payload does not match the schema of the channel {channel.name}: {': '.join(problem)}"
            )

    async def _remove(self, session: Session, request: control.LetterRemove) -> control.Control:
        asked = dict.fromkeys(request.letters)
        _check(asked)
        async with self._line(session):
            gone = await self._stored().remove(asked, self._may_act(session))
        failures = [_failure(key, missing(key)) for key in asked if key not in gone]
        return control.LettersDone(re=request.id, done=len(gone), failures=failures)


def reject(broker: Broker, channel: str, broken: Broken, *, again: bool) -> int:
    """Store a message that does not match the schema of its channel.

    Returns its number. If sent `again`, it may exist.
    """
    subscriber = f"channel {channel}"
    if again and (known := broker.served.dead_letters.find(message_id=broken.message.id, subscriber=subscriber)):
        return known[0].message.seq
    error = SchemaBroken(channel, *broken.problem)
    letter = DeadLetter(
        message=replace(broken.message, seq=broker.sequence.next()),
        subscriber=subscriber,
        cause=Cause.INVALID_PAYLOAD,
        reason=str(error),
        error_type=type(error).__name__,
        traceback="",
        attempts=(),
        at_ns=broker.world.time_ns(),
    )
    broker.served.bury(letter)
    return letter.message.seq


def _cause(text: str) -> Cause:
    try:
        return Cause(text)
    except ValueError as error:
        raise ProtocolError("malformed", f"unknown cause {text[:40]!r}: there are {', '.join(Cause)}") from error


def _check(asked: Mapping[Key, object]) -> None:
    if len(asked) > MAX_LETTERS:
        raise ProtocolError("too_many", f"{len(asked)} dead letters in one request, limit {MAX_LETTERS}")
    if not all(0 < seq < 2**63 for _, seq in asked):
        raise ProtocolError("malformed", "a sequence number is out of range")


def _failure(key: Key, error: TrunklineError) -> control.LetterFailure:
    code, text = (error.code, error.text) if isinstance(error, ProtocolError) else ("refused", str(error))
    return control.LetterFailure(subscriber=key[0], seq=key[1], code=code, text=text)


def _message(data: str) -> Message:
    try:
        message = decode_message(base64.b64decode(data, validate=True))
        message.check()
    except (binascii.Error, ValueError, msgspec.DecodeError, PayloadError, InvalidMessage) as error:
        raise ProtocolError("malformed", f"not a message: {error}") from error
    return message


def _describe(letter: DeadLetter, returns: bool, room: int, brief: bool) -> control.Letter:
    data = letter.to_bytes()
    whole = not brief and len(data) <= room
    if not whole:
        bare = replace(letter.message, payload=b"")
        traceback = "" if brief else letter.traceback[-MAX_TRACEBACK:]
        data = replace(letter, message=bare, traceback=traceback, attempts=()).to_bytes()
    return control.Letter(letter=base64.b64encode(data).decode(), whole=whole, returns=returns)
