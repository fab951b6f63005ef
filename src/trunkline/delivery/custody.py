"""Custody: messages that were handed out and must be acknowledged. Leases, retries and dead letters.

A custody belongs to one inbox. A message in it is acknowledged (delivered), tried again after a pause, or becomes a
dead letter.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec

from trunkline.delivery.dead_letters import Attempt, Cause, DeadLetter, describe, traceback_of
from trunkline.delivery.fates import Fate, Outcome
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.leases import Leases
from trunkline.delivery.retry import Retry
from trunkline.errors import NotAcknowledged
from trunkline.message import Message
from trunkline.plural import counted


class Custody:
    def __init__(
        self,
        inbox: Inbox,
        *,
        lease_s: float,
        retry: Retry,
        chance: random.Random,
        on_dead: Callable[[DeadLetter, Inbox, bool], None],
    ) -> None:
        self._inbox = inbox
        self._retry = retry
        self._chance = chance
        self._on_dead = on_dead
        self.leases = Leases(lease_s)
        self.working: set[int] = set()
        """The numbers of messages whose handlers are running: their leases are renewed instead of ended."""
        self.attempts: dict[int, list[Attempt]] = {}
        """The failed attempts at each message that has no fate yet."""
        self._delayed: dict[int, tuple[Message, asyncio.TimerHandle]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def full(self) -> bool:
        """Whether the number of held messages has reached the capacity. No more are taken until one is released."""
        return self._inbox.held >= self._inbox.capacity

    def hold(self, message: Message) -> Message:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self.leases.grant(message, loop.time())
        self._inbox.held += 1
        if self._timer is None:
            self._watch()
        return message

    def hold_many(self, messages: Sequence[Message]) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self.leases.grant_many(messages, loop.time())
        self._inbox.held += len(messages)
        if self._timer is None:
            self._watch()

    def renew(self, message: Message) -> bool:
        """Hold it for another lease; False if the lease had ended."""
        return self.leases.holds(message) and self.leases.renew(message.seq, asyncio.get_running_loop().time())

    def ack(self, message: Message) -> bool:
        """Acknowledge a handled message.

        False if its lease had ended: it may have been delivered to another consumer.
        """
        if not self._release(message):
            return False
        self.forget(message.seq)
        self._inbox.count_delivered(message)
        return True

    def ack_many(self, messages: Sequence[Message]) -> list[Message]:
        """Acknowledge handled messages. Returns those whose leases had not ended."""
        done = self.leases.end_many(messages)
        if not done:
            return done
        if self.working or self.attempts:
            for message in done:
                self.working.discard(message.seq)
                self.forget(message.seq)
        inbox = self._inbox
        inbox.held -= len(done)
        if inbox.sleepers:
            inbox.wake()
        inbox.count_delivered_each(done)
        return done

    def fail(self, message: Message, error: BaseException, cause: Cause = Cause.HANDLER_FAILED) -> float | None:
        """Record a failed attempt.

        Returns the pause before the next one; None if it is a dead letter, or its lease had ended."""
        if not self._release(message):
            return None
        attempt = message.attempts + 1
        failed = msgspec.structs.replace(message, attempts=attempt)
        self.attempts.setdefault(message.seq, []).append(Attempt(attempt, self._inbox.time_ns(), describe(error)))
        if cause is Cause.INVALID_PAYLOAD or cause is Cause.REJECTED or not self._retry.allows(attempt, error):
            self._bury(failed, error, cause)
            return None
        pause_s = self._retry.pause_s(attempt, self._chance)
        # A consumer that let a lease end may have crashed: another member of the group, if there is one, gets the next
        # attempt.
        elsewhere = cause is Cause.NOT_ACKNOWLEDGED
        timer = asyncio.get_running_loop().call_later(pause_s, self._try_again, failed.seq, elsewhere)
        self._delayed[failed.seq] = (failed, timer)
        self._inbox.delay()
        if self._inbox.ledger is not None:
            self._inbox.ledger.retrying(self._inbox, failed, self.attempts[failed.seq], pause_s)
        return pause_s

    def give_back(self, message: Message) -> bool:
        """Put an unprocessed message back at the front, without counting an attempt. False if its lease had ended."""
        if not self._release(message):
            return False
        self._inbox.return_to_front(message)
        return True

    def _release(self, message: Message) -> bool:
        if not self.leases.holds(message):
            return False
        self.leases.end(message.seq)
        self.working.discard(message.seq)
        self._inbox.held -= 1
        if self._inbox.sleepers:
            self._inbox.wake()
        return True

    def _try_again(self, seq: int, elsewhere: bool) -> None:
        message, _ = self._delayed.pop(seq)
        self._inbox.delayed -= 1
        if not (elsewhere and self._inbox.pass_on(message)):
            self._inbox.return_to_front(message)

    def _bury(self, message: Message, error: BaseException, cause: Cause) -> None:
        reason = describe(error)
        attempts = tuple(self.attempts.pop(message.seq, ()))
        self._inbox.settle(message, Fate.DEAD, f"{cause}: {reason}")
        letter = DeadLetter(
            message=message,
            subscriber=self._inbox.role,
            cause=cause,
            reason=reason,
            error_type=type(error).__name__,
            traceback=traceback_of(error),
            attempts=attempts,
            at_ns=self._inbox.time_ns(),
        )
        self._on_dead(letter, self._inbox, True)

    def bury_unread(self, message: Message, error: BaseException) -> None:
        """Record a message as dead that was never handed out, because it cannot be read."""
        self._bury(message, error, Cause.INVALID_PAYLOAD)

    def end(self, message: Message, fate: Fate, reason: str) -> bool:
        """Record a fate other than delivery for a held message. False if its lease had ended."""
        if not self._release(message):
            return False
        self._inbox.settle(message, fate, reason)
        return True

    def bury(self, message: Message, letter: DeadLetter) -> bool:
        """Record a held message as dead. Its holder has already stored and announced the letter. False if its lease had
        ended.
        """
        if not self.end(message, Fate.DEAD, f"{letter.cause}: {letter.reason}"):
            return False
        self._on_dead(letter, self._inbox, False)
        return True

    def history_of(self, seq: int) -> list[Attempt]:
        """The failed attempts at a message that has no fate yet."""
        return self.attempts.get(seq, [])

    def hand_over(self, seq: int) -> list[Attempt]:
        """Remove and return the failed attempts at a message that is passed on."""
        return self.attempts.pop(seq, [])

    def take_over(self, seq: int, attempts: list[Attempt]) -> None:
        """Take over the failed attempts at a message from another member of the group."""
        if attempts:
            self.attempts[seq] = attempts

    def forget(self, seq: int) -> None:
        """Forget the failed attempts at a message that has its fate."""
        if self.attempts:
            self.attempts.pop(seq, None)

    def _watch(self) -> None:
        if self._timer is None and (ends := self.leases.next_end()) is not None:
            self._timer = asyncio.get_running_loop().call_at(ends, self._end_leases)

    def _end_leases(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for message in self.leases.due(now):
            if message.seq in self.working:
                self.leases.renew(message.seq, now)
            else:
                self.fail(message, NotAcknowledged(self.leases.lease_s), Cause.NOT_ACKNOWLEDGED)
        self._watch()

    def outcome_of(self, message: Message) -> Outcome | None:
        name = self._inbox.role
        if message.seq in self.leases:
            attempt = len(self.history_of(message.seq)) + 1
            return Outcome(name, Fate.IN_FLIGHT, f"being handled, attempt {attempt}")
        if message.seq in self._delayed:
            failures = self.history_of(message.seq)
            times = counted(len(failures), "time")
            return Outcome(name, Fate.IN_FLIGHT, f"failed {times} ({failures[-1].error}), waits to retry")
        return None

    def pauses(self) -> dict[int, float]:
        """The remaining pause, in seconds, of each message that waits for its next attempt."""
        now = asyncio.get_running_loop().time() if self._delayed else 0.0
        return {seq: max(0.0, timer.when() - now) for seq, (_, timer) in self._delayed.items()}

    def messages(self) -> list[Message]:
        """Everything held or waiting for its next attempt."""
        return [*self.leases.messages(), *(message for message, _ in self._delayed.values())]

    def close(self) -> None:
        """Stop all timers and put everything held or delayed back into the inbox, oldest first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        back = self.messages()
        for message in self.leases.messages():
            self._release(message)
        for _, timer in self._delayed.values():
            timer.cancel()
            self._inbox.delayed -= 1
        self._delayed.clear()
        for message in sorted(back, key=lambda message: message.seq, reverse=True):
            self._inbox.return_to_front(message)
