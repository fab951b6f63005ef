"""A batch with some messages that do not match the schema: the others are delivered, and all counts are right."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trunkline import Message
from trunkline.columns import encode
from trunkline.delivery.batch import Batch
from trunkline.hub.conformance import Sieve
from trunkline.schema import Checker
from trunkline.wire.frames import PublishHead


class Told:
    def __init__(self) -> None:
        self.settled_parcels: list[Batch] = []

    def settled(self, batch: Batch) -> None:
        self.settled_parcels.append(batch)


def batch(told: Told, payloads: list[Any], position: int = 0) -> Batch:
    messages = [Message(id=f"m{n}", topic="t", payload=payload) for n, payload in enumerate(payloads)]
    body = encode(messages, [0] * len(messages))
    return Batch(told, PublishHead(7, "t", len(messages), position=position), body, origin=1)


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.lists(st.integers(0, 19), max_size=3))
def test_what_fits_goes_on_and_places_are_those_of_the_whole(fits: list[bool], refused: list[int]) -> None:
    told = Told()
    whole = batch(told, [n if good else str(n) for n, good in enumerate(fits)])
    rest, broken = Sieve().sift(whole, Checker({"type": "integer"}), 1000)
    good = [n for n, each in enumerate(fits) if each]
    assert [each.place for each in broken] == [n for n, each in enumerate(fits) if not each]
    assert all(each.problem == ("$", "string instead of integer") for each in broken)
    if rest is None:
        assert not good
        return
    assert (rest is whole) == all(fits)
    assert [message.decode() for message in rest.open()] == good
    rest.first = 100
    failing = sorted({each for each in refused if each < rest.count})
    for index in failing:
        rest.fail(index, "inbox_full", "no room")
    rest.done()
    assert told.settled_parcels == [whole]
    assert whole.first == 100
    assert [failure.index for failure in whole.failures] == [good[index] for index in failing]
    assert {failure.batch for failure in whole.failures} <= {7}


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), max_size=8))
def test_subscribers_see_no_gap_where_messages_were_taken_out(batches: list[list[bool]]) -> None:
    told, sieve, checker = Told(), Sieve(), Checker({"type": "integer"})
    published = expected = 0
    for fits in batches:
        whole = batch(told, [1 if good else "x" for good in fits], position=published)
        published += len(fits)
        rest, _ = sieve.sift(whole, checker, 1000)
        if rest is not None:
            assert rest.position == expected
            expected += rest.count
