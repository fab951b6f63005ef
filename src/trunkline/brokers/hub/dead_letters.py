"""The client's API for dead letters at the hub: list, replay, remove.

The hub itself redelivers a dead letter of a group or a durable subscription, to any connected member. A dead letter of
a plain subscription is put back into its inbox here; the hub's copy is removed when the message has another fate.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from trunkline.brokers.broker import Feature
from trunkline.brokers.hub.connection import Connection
from trunkline.brokers.remote.feed import InboxFeed
from trunkline.brokers.remote.member import MemberFeed
from trunkline.brokers.store import KeptDeadLetter
from trunkline.delivery.dead_letters import Cause, DeadLetter, Key
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.subscribers import Subscribers
from trunkline.errors import HubError, HubRefused, HubUnavailable, InvalidPayload
from trunkline.message import Message
from trunkline.topic import EVERYTHING
from trunkline.wire import control
from trunkline.wire.control import LETTERS_KEPT

log = logging.getLogger("trunkline.connection")

T = TypeVar("T")

SYNC_S = 0.02
"""How long replays and removals are collected before they are sent."""
TOGETHER = 500
UNKNOWN = ("unknown", "unknown_type")


class HubDeadLetters(Ledger):
    """One per broker.

    It is the ledger of the dead letters in this process: it reports replays and removals to the hub.
    """

    keeps_unreadable = False

    def __init__(self, connection: Connection, served: Subscribers, feeds: Mapping[str, InboxFeed]) -> None:
        self._connection = connection
        self._served = served
        self._feeds = feeds
        self._elsewhere: set[str] = set()
        """Subscribers to which the hub redelivers letters."""
        self._to_replay: list[control.LetterAgain] = []
        self._to_remove: list[Key] = []
        self._timer: asyncio.TimerHandle | None = None
        self._syncing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = False
        served.dead_letters.ledger = self
        connection.users.append(self)

    # Looking

    async def find(
        self,
        *,
        subscriber: str | None = None,
        topic: str = EVERYTHING,
        cause: Cause | None = None,
        message_id: str | None = None,
        limit: int | None = None,
        brief: bool = False,
    ) -> list[KeptDeadLetter]:
        """Dead letters in the hub's journal, oldest first, as far as this client may subscribe to their topics.

        `brief` leaves payloads and tracebacks out. A hub without a journal has none. Raises HubUnavailable.
        """
        await self.sync()
        found: list[KeptDeadLetter] = []
        after = ""
        while limit is None or len(found) < limit:
            wanted = control.Letters(
                id=0,
                subscriber=subscriber,
                topic=topic,
                cause=None if cause is None else cause.value,
                message_id=message_id,
                brief=brief,
                limit=1000 if limit is None else min(1000, limit - len(found)),
                after=after,
            )
            page, after = await self._page(wanted)
            found += page
            if not after:
                break
        return found

    async def recall(self, after: str) -> tuple[list[DeadLetter], str]:
        """A page of letters that can be replayed from here, and the start of the next page; "" after the last."""
        await self.sync()
        if not after:
            for name in self._elsewhere:
                self._served.receivers.pop(name, None)
            self._elsewhere.clear()
        page, more = await self._page(control.Letters(id=0, after=after))
        return [kept.letter for kept in page if self._can_replay(kept)], more

    def _can_replay(self, kept: KeptDeadLetter) -> bool:
        name, seq = kept.letter.key
        if kept.returns:
            if name not in self._served.receivers:
                self._served.receivers[name] = _leave_to_the_hub
                self._elsewhere.add(name)
            return True
        if not kept.whole:
            log.warning("the dead letter %s of %s is too large to be replayed here", kept.letter.message.id, name)
            return False
        feed = self._feeds.get(name)
        return feed is None or not feed.has_replayed(seq)

    async def keeps(self) -> bool:
        """Whether the hub has a journal, and lists its dead letters. Raises HubUnavailable."""
        welcome = await self._connection.ready()
        if LETTERS_KEPT in welcome.features:
            return True
        if Feature.DURABLE.value in welcome.features:
            self._warn_of_old_hub()
        return False

    def _warn_of_old_hub(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the hub at %s has dead letters but cannot list them: upgrade Trunkline at the hub",
                self._connection.url,
            )

    async def _page(self, wanted: control.Letters) -> tuple[list[KeptDeadLetter], str]:
        """A page, and the start of the next one; "" if this was the last."""
        if not await self.keeps():
            return [], ""
        max_bytes = self._connection.settings.max_frame_bytes
        try:
            answer = await self._connection.ask(lambda asked: replace(wanted, id=asked, max_bytes=max_bytes))
        except HubRefused as error:
            if error.code not in UNKNOWN:
                raise
            self._warn_of_old_hub()
            return [], ""
        assert isinstance(answer, control.LettersAnswer)
        return [kept for each in answer.letters if (kept := _read(each)) is not None], answer.more

    # Replaying

    async def replay(self, letters: Iterable[DeadLetter], **changes: Any) -> list[control.LetterFailure]:
        """Make the hub redeliver dead letters to the subscribers that failed, unchanged or with some fields changed.

        Returns the letters that were not redelivered, with the reasons. Raises InvalidMessage if the changes are not
        valid, and HubUnavailable.
        """
        changes = {"attempts": 0, **changes}
        return await self._replay([_replay_request(each, each.message.replace(**changes)) for each in letters])

    async def _replay(self, again: Sequence[control.LetterAgain]) -> list[control.LetterFailure]:
        failures: list[control.LetterFailure] = []
        for part in _parts(again):
            failures += await self._ask(partial(control.LetterReplay, letters=part))
        return failures

    async def _ask(self, make: Callable[..., control.Ask]) -> list[control.LetterFailure]:
        answer = await self._connection.ask(lambda asked: make(id=asked))
        assert isinstance(answer, control.LettersDone)
        return answer.failures

    def returns(self, role: str) -> None:
        """Note that the hub redelivers letters to this subscriber."""
        self._served.receivers[role] = _leave_to_the_hub
        self._elsewhere.discard(role)

    def left(self, feed: InboxFeed) -> None:
        """Called when a subscription has ended.

        Letters of a durable subscription wait for it; others are no longer redelivered.
        """
        if isinstance(feed, MemberFeed) and not feed.durable:
            self._served.receivers.pop(feed.inbox.role, None)

    # The ledger of the dead letters here

    def revived(self, letter: DeadLetter, message: Message) -> None:
        name, seq = letter.key
        if name in self._served.receivers:
            self._to_replay.append(_replay_request(letter, message))
            self._schedule()
        elif (feed := self._feeds.get(name)) is not None:
            feed.replayed(seq)

    def removed(self, letter: DeadLetter) -> None:
        self._remove(letter.key)

    def handled(self, inbox: Inbox, seq: int) -> None:
        """Called when a letter that was replayed here has its fate."""
        self._remove((inbox.name, seq))

    def _remove(self, key: Key) -> None:
        welcome = self._connection.welcome
        if welcome is not None and LETTERS_KEPT in welcome.features:
            self._to_remove.append(key)
            self._schedule()

    # Reports to the hub

    def connected(self, welcome: control.Welcome) -> None:
        if self._to_replay or self._to_remove:
            self._schedule()

    def disconnected(self) -> None:
        return

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SYNC_S, self._sync_soon)

    def _sync_soon(self) -> None:
        self._timer = None
        if self._connection.live:
            task = asyncio.ensure_future(self._sync_or_warn())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sync_or_warn(self) -> None:
        try:
            await self.sync()
        except HubError as error:
            log.warning("the hub has not yet been informed which dead letters were replayed or removed: %s", error)

    async def sync(self) -> None:
        """Wait until the hub has all replays and removals so far; raises HubUnavailable."""
        for feed in self._feeds.values():
            feed.report()
        async with self._syncing:
            while self._to_replay or self._to_remove:
                again, self._to_replay = self._to_replay, []
                gone, self._to_remove = self._to_remove, []
                try:
                    failures = await self._replay(again)
                    for part in _slices(gone):
                        await self._ask(partial(control.LetterRemove, letters=part))
                except HubUnavailable:
                    # Repeated on the next connection. The hub ignores letters that it has already replayed or removed.
                    self._to_replay[:0], self._to_remove[:0] = again, gone
                    raise
                for failure in failures:
                    log.error("a dead letter of %s was not replayed: %s", failure.subscriber, failure.text)

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._connection.live:
            await self._sync_or_warn()
        if self._tasks:
            await asyncio.gather(*self._tasks)
        self._connection.users.remove(self)


def _replay_request(letter: DeadLetter, message: Message) -> control.LetterAgain:
    """The request to replay a letter. The message is included only if it was changed: the hub has the original."""
    seq = letter.message.seq
    changed = replace(message, seq=seq) != replace(letter.message, attempts=0)
    data = base64.b64encode(msgspec.msgpack.encode(message)).decode() if changed else None
    return control.LetterAgain(subscriber=letter.subscriber, seq=seq, message=data)


def _leave_to_the_hub(message: Message) -> None:
    """Does nothing: `revived` makes the hub remove the letter from its journal and redeliver the message."""


def _read(kept: control.Letter) -> KeptDeadLetter | None:
    try:
        letter = DeadLetter.from_bytes(base64.b64decode(kept.letter, validate=True))
    except (binascii.Error, InvalidPayload) as error:
        log.error("a dead letter of the hub cannot be read and is skipped: %s", error)
        return None
    return KeptDeadLetter(letter, kept.whole, kept.returns)


def _slices(values: Sequence[T]) -> Iterable[list[T]]:
    return (list(values[at : at + TOGETHER]) for at in range(0, len(values), TOGETHER))


def _parts(again: Sequence[control.LetterAgain]) -> Iterable[list[control.LetterAgain]]:
    """Split letters into frames. A changed letter includes its message, and has its own frame."""
    yield from _slices([each for each in again if each.message is None])
    yield from ([each] for each in again if each.message is not None)
