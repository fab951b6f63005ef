"""The router: rules that send messages to named handlers, by type, sender, recipient, topic and content.

Rules of higher priority are evaluated first. All matching rules apply, and a handler gets a message once. Each handler
has its own inbox, so a slow or failing handler does not delay the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from trunkline.bus.dispatcher import Handler
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.route import Take, offer
from trunkline.errors import DuplicateName, NotRouted, UnknownHandler, UsageError
from trunkline.expression import Filter, compile_filter
from trunkline.message import Message, MessageType
from trunkline.settings import Backpressure, Group
from trunkline.topic import EVERYTHING, TopicTree, validate_pattern
from trunkline.unchecked import number

MAX_CACHED_TOPICS = 10_000


class Rule(Group, frozen=True, kw_only=True):
    """Messages that match all its filters go to the handler. A filter that is None matches everything.

    `sender` and `recipient` may contain the wildcards `*` and `?`; `topic` is a pattern; `where` is a filter
    expression.
    """

    may_be_zero = frozenset({"priority"})

    id: str
    handler: str
    type: MessageType | None = None
    sender: str | None = None
    recipient: str | None = None
    topic: str | None = None
    where: str | None = None
    priority: int = 0
    enabled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.id or not self.handler:
            raise UsageError("a rule needs an id and the name of a handler")
        if self.topic is not None:
            validate_pattern(self.topic)


class _Active:
    """A rule with its filter compiled."""

    __slots__ = ("content", "rank", "rule")

    def __init__(self, rule: Rule, number: int) -> None:
        self.rule = rule
        # With equal priority, the older one goes first.
        self.rank = (-rule.priority, number)
        self.content: Filter | None = None if rule.where is None else compile_filter(rule.where)

    def fits(self, message: Message) -> bool:
        rule = self.rule
        return (
            (rule.type is None or message.type == rule.type)
            and (rule.sender is None or fnmatchcase(message.sender, rule.sender))
            and (rule.recipient is None or fnmatchcase(message.recipient or "", rule.recipient))
            and (self.content is None or self.content(message, message.decode))
        )


StartHandler = Callable[..., tuple[Handler, Inbox]]


class Router:
    def __init__(
        self,
        start: StartHandler,
        tap: Callable[[Take], Callable[[], None]],
        limits: Backpressure,
        stamped: Callable[[Message], Message],
        now_ns: int,
    ) -> None:
        self._start = start
        self._tap = tap
        self._limits = limits
        self._stamped = stamped
        # Negative, because brokers assign positive numbers, and above the numbers of an earlier run, which may be in a
        # journal.
        self._routed = itertools.count(now_ns - 2**63)
        self._untap: Callable[[], None] | None = None
        self._handlers: dict[str, tuple[Handler, Inbox]] = {}
        self._rules: dict[str, _Active] = {}
        self._numbers = itertools.count()
        self._tree: TopicTree[_Active] = TopicTree()
        self._cache: dict[str, tuple[_Active, ...]] = {}

    def register_handler(self, name: str, function: Callable[..., Any], **options: Any) -> Handler:
        """Register a named handler; `options` are those of `bus.on`. It gets only messages that rules send to it."""
        if name in self._handlers:
            raise DuplicateName("handler", name)
        self._handlers[name] = self._start(name, function, **options)
        return self._handlers[name][0]

    async def remove_handler(self, name: str) -> None:
        """Stop a handler and remove the rules that name it."""
        if name not in self._handlers:
            raise UnknownHandler(name, list(self._handlers))
        for rule in self.rules():
            if rule.handler == name:
                self.remove_rule(rule.id)
        handler, _ = self._handlers.pop(name)
        await handler.aclose()

    def add_rule(self, rule: Rule) -> None:
        """Add a rule, effective from the next message. Raises UnknownHandler, DuplicateName or InvalidExpression."""
        if rule.handler not in self._handlers:
            raise UnknownHandler(rule.handler, list(self._handlers))
        if rule.id in self._rules:
            raise DuplicateName("rule", rule.id)
        active = self._rules[rule.id] = _Active(rule, next(self._numbers))
        self._tree.add(rule.topic or EVERYTHING, active)
        self._changed()

    def remove_rule(self, rule_id: str) -> Rule:
        active = self._rules.pop(rule_id, None)
        if active is None:
            raise UsageError(f"no rule with the id {rule_id!r}; there are: {', '.join(self._rules) or 'none'}")
        self._tree.remove(active.rule.topic or EVERYTHING, active)
        self._changed()
        return active.rule

    def enable(self, rule_id: str, enabled: bool = True) -> None:
        rule = self.remove_rule(rule_id)
        self.add_rule(msgspec.structs.replace(rule, enabled=enabled))

    def rules(self) -> list[Rule]:
        """The rules, in the order in which they are evaluated."""
        return [active.rule for active in sorted(self._rules.values(), key=lambda active: active.rank)]

    def handlers(self) -> list[str]:
        return list(self._handlers)

    def matching(self, message: Message) -> list[Rule]:
        """The rules that match this message, for debugging."""
        return [active.rule for active in self._candidates(message.topic) if active.fits(message)]

    async def route(self, message: Message) -> list[str]:
        """Deliver a copy of a message only to the handlers of the matching rules. Returns their names.

        The bus does the same for every publish. Raises NotRouted if no rule matches, and the errors of `publish`.
        """
        inboxes = self.select(message)
        if not inboxes:
            tried = [f"{rule.id}{'' if rule.enabled else ' (disabled)'}" for rule in self.rules()]
            raise NotRouted(message.id, message.topic, tried)
        message = self._stamped(message)
        number(message, next(self._routed))
        if (unsettled := offer(message, inboxes)) is not None:
            await unsettled.settle(self._limits)
        return [inbox.name for inbox in inboxes]

    def select(self, message: Message) -> list[Inbox]:
        """The inboxes of the handlers for this message, each once, in order of the priority of their rules."""
        chosen: dict[str, Inbox] = {}
        for active in self._candidates(message.topic):
            name = active.rule.handler
            if name not in chosen and active.fits(message):
                chosen[name] = self._handlers[name][1]
        return list(chosen.values())

    def _candidates(self, topic: str) -> tuple[_Active, ...]:
        found = self._cache.get(topic)
        if found is None:
            if len(self._cache) >= MAX_CACHED_TOPICS:
                self._cache.clear()
            active = (active for active in self._tree.match(topic) if active.rule.enabled)
            found = self._cache[topic] = tuple(sorted(active, key=lambda active: active.rank))
        return found

    def _changed(self) -> None:
        self._cache.clear()
        if self._rules and self._untap is None:
            self._untap = self._tap(self.select)
        elif not self._rules and self._untap is not None:
            self._untap()
            self._untap = None
