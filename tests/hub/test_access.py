"""Rights as a pure function: a right on a pattern is a right on every topic that the pattern matches."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline import InvalidSettings
from trunkline.hub.access import Access, AccessRule, Action, reaches
from trunkline.topic import covers, reply_topic

ME = "cert:me"
TOKENS = ("_reply", "_dead", "_to", "_all", "_state", "data", "a")
tokens = st.sampled_from(TOKENS)
topics = st.lists(tokens, min_size=1, max_size=4).map(".".join)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.one_of(tokens, st.just("*")), max_size=3))
    return ".".join([*parts, draw(st.sampled_from((*TOKENS, "*", ">")))])


@st.composite
def instances(draw: st.DrawFn, words: tuple[str, ...] = TOKENS, rest: tuple[str, ...] = TOKENS) -> tuple[str, str]:
    """A pattern, and something that matches it: a topic, or a narrower pattern."""
    wide = draw(patterns())
    parts: list[str] = []
    for token in wide.split("."):
        if token == ">":
            parts += [*draw(st.lists(st.sampled_from(words), max_size=2)), draw(st.sampled_from(rest))]
        else:
            parts.append(draw(st.sampled_from(words)) if token == "*" else token)
    return wide, ".".join(parts)


rules = st.builds(
    lambda may, on: AccessRule(who=ME, may=tuple(may), on=tuple(on)),
    st.lists(st.sampled_from(Action), min_size=1, max_size=2),
    st.lists(patterns(), min_size=1, max_size=2),
)


@given(st.lists(rules, min_size=1, max_size=2), instances(), st.sets(topics, max_size=2))
@example([AccessRule(who=ME, may=(Action.SUBSCRIBE,), on=("*.a",))], ("_dead.*.a", "_dead._reply.a"), set())
@example([AccessRule(who=ME, may=(Action.SUBSCRIBE,), on=("*.>",))], ("*.>", "_dead.a"), set())
def test_what_a_pattern_may_its_topics_may(given_rules: list[AccessRule], pair: tuple[str, str], own: set[str]) -> None:
    pattern, topic = pair
    access = Access(given_rules)
    if reaches(pattern, topic) and access.may(ME, Action.SUBSCRIBE, pattern, own):
        assert access.may(ME, Action.SUBSCRIBE, topic, own)


@given(st.lists(rules, min_size=1, max_size=2), instances((*TOKENS, "*"), (*TOKENS, "*", ">")))
def test_a_narrower_pattern_may_no_less(given_rules: list[AccessRule], pair: tuple[str, str]) -> None:
    """Except reply topics: no pattern reaches those."""
    wide, narrow = pair
    assert covers(wide, narrow)
    access = Access(given_rules)
    for action in () if narrow.startswith("_reply.") else Action:
        if access.may(ME, action, wide):
            assert access.may(ME, action, narrow)


@given(st.lists(rules, min_size=1, max_size=3), st.lists(rules, max_size=2), st.sampled_from(Action), patterns())
def test_more_rules_allow_no_less(some: list[AccessRule], more: list[AccessRule], action: Action, pattern: str) -> None:
    if Access(some).may(ME, action, pattern):
        assert Access([*some, *more]).may(ME, action, pattern)


@given(st.lists(rules, min_size=1, max_size=3), topics, st.sampled_from(Action), st.sets(topics, max_size=2))
def test_an_answer_is_heard_by_its_owner_alone(
    given_rules: list[AccessRule], rest: str, action: Action, own: set[str]
) -> None:
    topic = f"_reply.{rest}"
    expected = action is Action.PUBLISH or (action is Action.SUBSCRIBE and topic in own)
    assert Access(given_rules).may(ME, action, topic, own) is expected
    assert not Access(given_rules).may("cert:other", action, topic, own)


def everything_on(pattern: str) -> Access:
    return Access([AccessRule(who=ME, may=tuple(Action), on=(pattern,))])


@pytest.mark.parametrize(
    ("pattern", "data_only", "everything"),
    [
        ("data.x", True, True),
        ("data.>", True, True),
        ("orders.placed", False, True),
        ("_dead.data.x", True, True),
        ("_dead.data.>", True, True),
        ("_dead._dead.data.x", True, True),
        ("_dead.orders.placed", False, True),
        ("_dead.>", False, True),
        ("_dead.*", False, True),
        ("*.data.x", False, True),
        (">", False, True),
        ("_to.data", False, True),
        ("_all", False, True),
        ("_state.data.x", False, True),
        ("_reply", False, True),
        ("_reply.x", False, False),
        ("_reply.*", False, False),
        ("_reply.>", False, False),
    ],
)
def test_what_the_bus_s_own_topics_count_as(pattern: str, data_only: bool, everything: bool) -> None:
    assert everything_on("data.>").may(ME, Action.SUBSCRIBE, pattern) is data_only
    assert everything_on(">").may(ME, Action.SUBSCRIBE, pattern) is everything
    assert Access().may(ME, Action.SUBSCRIBE, pattern)


def test_a_subscriber_may_tell_of_what_died_there() -> None:
    """A notice comes from a subscriber, which needs no right to publish on the topic itself."""
    reader = Access([AccessRule(who=ME, may=(Action.SUBSCRIBE,), on=("data.>",))])
    assert reader.may(ME, Action.PUBLISH, "_dead.data.x")
    assert not reader.may(ME, Action.PUBLISH, "data.x")
    assert not reader.may(ME, Action.PUBLISH, "_dead.orders.placed")
    writer = Access([AccessRule(who=ME, may=(Action.PUBLISH,), on=("data.>",))])
    assert not writer.may(ME, Action.SUBSCRIBE, "_dead.data.x")


def test_no_wildcard_reaches_an_answer() -> None:
    topic = reply_topic("secret")
    for pattern in (">", "*.>", "*.*", "_reply.>", "_reply.*"):
        assert not reaches(pattern, topic)
    assert reaches(topic, topic)
    assert reaches(">", "_dead.data.x")


def test_rules_that_make_no_sense() -> None:
    with pytest.raises(InvalidSettings):
        Access.load([{"who": "x", "may": ["fly"]}])
    with pytest.raises(InvalidSettings):
        Access.load([{"who": "x", "may": ["publish"], "where": ["a"]}])
