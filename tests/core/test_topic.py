"""Topics and patterns: refusals and their texts, matching, and the tree compared with a naive matcher."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import InvalidTopic
from trunkline.topic import (
    EVERYTHING,
    MAX_TOPIC_CHARS,
    TopicTree,
    endpoint,
    matches,
    validate_pattern,
    validate_topic,
)

# Few tokens, so that random patterns and topics meet often.
tokens = st.sampled_from(["a", "b", "c"])
topics = st.lists(tokens, min_size=1, max_size=5).map(".".join)
patterns = st.tuples(
    st.lists(st.one_of(tokens, st.just("*")), max_size=4), st.sampled_from(["a", "b", "c", "*", ">"])
).map(lambda parts: ".".join([*parts[0], parts[1]]))


def naive_matches(pattern: str, topic: str) -> bool:
    signs = {"*": r"[^.]+", ">": r".+"}
    return (
        re.fullmatch(r"\.".join(signs.get(token, re.escape(token)) for token in pattern.split(".")), topic) is not None
    )


# Syntax


@pytest.mark.parametrize(
    "topic", ["a", "orders.eu.placed", "_to.agent-7", "Straße.日本", "a.1.b_c", "x" * MAX_TOPIC_CHARS, "a:b/c@d"]
)
def test_a_topic_is_given_back_as_it_is(topic: str) -> None:
    assert validate_topic(topic) == topic
    assert validate_pattern(topic) == topic


@pytest.mark.parametrize("pattern", ["*", ">", "a.*", "*.a", "a.*.c", "*.*", "a.>", "*.>", EVERYTHING])
def test_a_pattern_is_given_back_as_it_is(pattern: str) -> None:
    assert validate_pattern(pattern) == pattern


MALFORMED: list[tuple[Any, str]] = [
    ("", "is empty: use dotted words, such as"),
    (".", "empty token"),
    (".a", "empty token: two dots in a row, or one at an end"),
    ("a.", "empty token"),
    ("a..b", "empty token"),
    ("a b", "spaces or control characters"),
    (" a", "spaces or control"),
    ("a\n", "spaces or control"),
    ("a\tb", "spaces or control"),
    ("a\x00", "spaces or control"),
    ("a\x7f", "spaces or control"),
    ("a\u00a0b", "spaces or control"),
    ("a\u200b", "spaces or control"),
    ("a\ud800", "spaces or control"),
    ("x" * (MAX_TOPIC_CHARS + 1), f"has {MAX_TOPIC_CHARS + 1} characters, more than {MAX_TOPIC_CHARS}"),
    (None, "must be text, not NoneType"),
    (7, "must be text, not int"),
    (b"a.b", "must be text, not bytes"),
    (["a"], "must be text, not list"),
]


@pytest.mark.parametrize(("text", "why"), MALFORMED)
def test_malformed_text_is_neither_topic_nor_pattern(text: Any, why: str) -> None:
    for validate in (validate_topic, validate_pattern):
        with pytest.raises(InvalidTopic, match=re.escape(why)) as caught:
            validate(text)
        assert str(caught.value).startswith("topic ")


def test_a_refusal_carries_the_topic() -> None:
    with pytest.raises(InvalidTopic) as caught:
        validate_topic("a..b")
    assert caught.value.topic == "a..b"
    assert "'a..b'" in str(caught.value)


def test_the_refusal_of_a_long_topic_is_short() -> None:
    with pytest.raises(InvalidTopic) as caught:
        validate_topic("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "topic", ["*", ">", "a.*", "a.>", "a*", "a.b>", "a.*.b", "+", "a.+", "a/+/b", "#", "a.#.b", "a/#"]
)
def test_a_topic_has_no_wildcards(topic: str) -> None:
    with pytest.raises(InvalidTopic, match=r"has a wildcard: .* only subscriptions may use \* and >"):
        validate_topic(topic)


@pytest.mark.parametrize("pattern", [">.a", "a.>.b", ">.>", "a.>.*"])
def test_the_rest_stands_only_at_the_end(pattern: str) -> None:
    with pytest.raises(InvalidTopic, match="has a > that is not at its end"):
        validate_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "token"), [("a*", "a*"), ("a.b*.c", "b*"), ("**", "**"), ("a.>b", ">b"), (">>", ">>")]
)
def test_a_wildcard_is_a_whole_token(pattern: str, token: str) -> None:
    with pytest.raises(InvalidTopic, match=re.escape(f"mixes a wildcard with text in {token!r}")):
        validate_pattern(pattern)


@pytest.mark.parametrize("text", ["c++", "a.c#", "+1", "v1.0+build"])
def test_signs_inside_a_token_are_plain_text(text: str) -> None:
    assert validate_topic(text) == validate_pattern(text) == text


@given(st.text(max_size=12))
@settings(max_examples=100)
def test_any_text_is_taken_or_refused_with_the_one_error(text: str) -> None:
    for validate in (validate_topic, validate_pattern):
        with contextlib.suppress(InvalidTopic):
            assert validate(text) == text


def test_an_endpoint_has_a_topic_of_its_own() -> None:
    assert endpoint("pricing") == "_to.pricing"
    assert validate_topic(endpoint("pricing")) == "_to.pricing"


# Matching


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("a.b", "a.b", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c.d", True),
        ("a.>", "b.a", False),
        ("*.>", "a", False),
        ("*.>", "a.b", True),
        ("A", "a", False),
        ("orders.*", "ordersX.eu", False),
    ],
)
def test_matches(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected
    assert naive_matches(pattern, topic) is expected


@given(patterns, topics)
@settings(max_examples=150)
def test_matches_agrees_with_a_naive_matcher(pattern: str, topic: str) -> None:
    assert matches(validate_pattern(pattern), validate_topic(topic)) is naive_matches(pattern, topic)


# The tree


@given(st.lists(patterns, max_size=30), st.sets(st.integers(0, 29)), st.lists(topics, min_size=1, max_size=5))
@settings(max_examples=100)
def test_the_tree_agrees_with_a_naive_matcher(stored: list[str], removed: set[int], asked: list[str]) -> None:
    tree: TopicTree[int] = TopicTree()
    for number, pattern in enumerate(stored):
        tree.add(pattern, number)
    for number in removed:
        if number < len(stored):
            assert tree.remove(stored[number], number)
    left = [(number, pattern) for number, pattern in enumerate(stored) if number not in removed]
    assert len(tree) == len(left)
    assert sorted(tree.values()) == [number for number, _ in left]
    for topic in asked:
        assert sorted(tree.match(topic)) == [number for number, pattern in left if naive_matches(pattern, topic)]


@given(st.lists(patterns, max_size=20), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_a_tree_from_which_everything_was_removed_has_no_nodes(stored: list[str], random: Any) -> None:
    tree: TopicTree[int] = TopicTree()
    entries = [(pattern, number) for number, pattern in enumerate(stored)]
    for pattern, number in entries:
        tree.add(pattern, number)
    random.shuffle(entries)
    for pattern, number in entries:
        assert tree.remove(pattern, number)
    assert len(tree) == 0
    assert not tree._root.children
    assert not tree._root.values


def test_values_of_one_pattern_keep_their_order() -> None:
    tree: TopicTree[int] = TopicTree()
    for number in range(5):
        tree.add("a.*", number)
    assert tree.match("a.b") == [0, 1, 2, 3, 4]


def test_a_value_added_twice_is_found_twice_and_removed_once_at_a_time() -> None:
    tree: TopicTree[str] = TopicTree()
    tree.add("a", "x")
    tree.add("a", "x")
    assert tree.match("a") == ["x", "x"]
    assert tree.remove("a", "x")
    assert tree.match("a") == ["x"]


def test_of_two_equal_values_only_the_given_one_goes() -> None:
    healthy, broken = ["subscriber"], ["subscriber"]
    assert healthy == broken
    tree: TopicTree[list[str]] = TopicTree()
    tree.add("a.>", healthy)
    tree.add("a.>", broken)
    assert tree.remove("a.>", broken)
    (left,) = tree.match("a.b")
    assert left is healthy
    assert not tree.remove("a.>", broken)
    assert not tree.remove("a.>", ["subscriber"])
    assert len(tree) == 1
    assert tree.match("a.b")[0] is healthy


def test_removing_what_is_not_there_changes_nothing() -> None:
    value = ["x"]
    tree: TopicTree[list[str]] = TopicTree()
    tree.add("a.b", value)
    for pattern in ("a", "a.b.c", "b", "a.*", ">", "x.y.z"):
        assert not tree.remove(pattern, value)
    assert len(tree) == 1
    assert tree.match("a.b") == [value]


def test_removing_one_pattern_keeps_those_above_and_below_it() -> None:
    tree: TopicTree[str] = TopicTree()
    for pattern in ("a", "a.b", "a.b.c"):
        tree.add(pattern, pattern)
    assert tree.remove("a.b", "a.b")
    assert tree.match("a.b") == []
    assert tree.match("a") == ["a"]
    assert tree.match("a.b.c") == ["a.b.c"]


class Counted(dict[str, Any]):
    """The children of a node, counting each access."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        Counted.looks += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        Counted.looks += 1
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        Counted.looks += len(self)
        return super().__iter__()

    def values(self) -> Any:
        Counted.looks += len(self)
        return super().values()

    def items(self) -> Any:
        Counted.looks += len(self)
        return super().items()


def looks_of_a_match(tree: TopicTree[int], topic: str) -> int:
    nodes = [tree._root]
    while nodes:
        node = nodes.pop()
        nodes.extend(dict.values(node.children))
        node.children = Counted(node.children)
    Counted.looks = 0
    tree.match(topic)
    return Counted.looks


@pytest.mark.parametrize(
    "shape", ["t{}.x.y", "orders.t{}.y", "orders.eu.t{}", "orders.eu.placed.t{}", "t{}.>", "orders.t{}.*"]
)
def test_the_cost_of_a_match_does_not_grow_with_what_is_stored(shape: str) -> None:
    costs = []
    for unrelated in (10, 10_000):
        tree: TopicTree[int] = TopicTree()
        for number in range(unrelated):
            tree.add(shape.format(number), number)
        for pattern in ("orders.eu.placed", "orders.*.placed", "orders.>"):
            tree.add(pattern, -1)
        costs.append(looks_of_a_match(tree, "orders.eu.placed"))
    assert costs[0] == costs[1]
    assert 0 < costs[1] < 50


def test_the_cost_of_a_match_grows_with_the_patterns_that_may_match() -> None:
    few: TopicTree[int] = TopicTree()
    few.add("a.b.c", 0)
    many: TopicTree[int] = TopicTree()
    for pattern in ("a.b.c", "*.b.c", "a.*.c", "a.b.*", "*.*.*"):
        many.add(pattern, 0)
    assert looks_of_a_match(few, "a.b.c") < looks_of_a_match(many, "a.b.c")
