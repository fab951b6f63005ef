"""How often a message is tried again after a failure, and the pauses between."""

from __future__ import annotations

import random

from trunkline.errors import InvalidSettings, TrunklineError
from trunkline.settings import Group


class Retry(Group, frozen=True, kw_only=True):
    """Up to `attempts` attempts in all. The pause grows by `factor`, from `delay_s` to `max_delay_s`, plus or minus
    `jitter`.

    Every exception is retried, except a TrunklineError that is not `retryable`, and instances of the classes in
    `never`.
    """

    may_be_zero = frozenset({"delay_s", "jitter"})

    attempts: int = 3
    delay_s: float = 0.1
    factor: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.2
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jitter > 1:
            raise InvalidSettings(f"Retry.jitter must be a fraction of the pause, at most 1, not {self.jitter!r}")
        if self.factor < 1:
            raise InvalidSettings(f"Retry.factor must be at least 1, not {self.factor!r}")

    def allows(self, attempts: int, error: BaseException) -> bool:
        """Whether a message that failed `attempts` times, last with `error`, is to be tried again."""
        if attempts >= self.attempts or isinstance(error, self.never):
            return False
        return error.retryable if isinstance(error, TrunklineError) else True

    def pause_s(self, attempts: int, chance: random.Random) -> float:
        """How long to wait after the failure number `attempts`."""
        try:
            pause = min(self.max_delay_s, self.delay_s * self.factor ** (attempts - 1))
        except OverflowError:
            pause = self.max_delay_s if self.delay_s else 0.0
        return pause * (1 + self.jitter * (2 * chance.random() - 1))


ONCE = Retry(attempts=1)
