"""A point in time has the same meaning everywhere, independent of the time zone of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.journals import journal_in, message, store
from trunkline.cli.options import moment
from trunkline.errors import InvalidSettings, UsageError
from trunkline.journal import Reader
from trunkline.journal.range import range_of
from trunkline.journal.start import start_of
from trunkline.moment import EPOCH, Moment, microseconds, nanoseconds, utc

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
NOON_S = 1_794_830_400
SAME: list[Moment] = [
    NOON,
    NOON.replace(tzinfo=None),
    NOON.astimezone(timezone(timedelta(hours=13))),
    NOON_S,
    float(NOON_S),
    str(NOON_S),
    "2026-11-16T12:00:00Z",
    "2026-11-16T12:00:00",
    "2026-11-16 12:00",
    "2026-11-16T14:30:00+02:30",
]


@pytest.fixture(params=["UTC", "Pacific/Apia", "America/New_York"], autouse=True)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("when", SAME, ids=repr)
def test_every_way_to_write_a_time_means_the_same(when: Moment) -> None:
    assert utc(when) == NOON
    assert utc(when).tzinfo is UTC
    assert microseconds(when) == NOON_S * 1_000_000
    assert nanoseconds(when) == NOON_S * 1_000_000_000


@pytest.mark.parametrize("when", ["yesterday", "", "nan", "inf", float("inf"), float("nan"), "2026-13-01"], ids=repr)
def test_what_is_no_time_is_refused_and_it_is_said_how_to_write_one(when: Moment) -> None:
    for read in (utc, microseconds, nanoseconds):
        with pytest.raises(InvalidSettings, match="is not a time: write 2026-11-16T10:00:00Z, or seconds"):
            read(when)


@given(st.datetimes(timezones=st.timezones()))
def test_what_is_shown_can_be_given_back(when: datetime) -> None:
    try:
        shown = when.astimezone(UTC)
    except OverflowError:
        return
    assert utc(shown.isoformat()) == utc(shown.replace(tzinfo=None).isoformat()) == shown
    assert EPOCH + timedelta(microseconds=microseconds(when)) == shown


@pytest.mark.parametrize("when", SAME, ids=repr)
def test_the_reader_the_command_line_and_a_subscription_agree(when: Moment, tmp_path: Path) -> None:
    at_ns = NOON_S * 1_000_000_000
    assert range_of(">", 1, None, when, when).since_ns == at_ns
    assert range_of(">", 1, None, when, when).until_ns == at_ns - 1
    if isinstance(when, str):
        assert moment(when, "--since") == NOON
        assert start_of(when, 5, ">")[1] is not None
    with journal_in(tmp_path) as journal:
        store(journal, [[message("a", timestamp_ns=at_ns - 1), message("a", timestamp_ns=at_ns)]])
    with Reader(tmp_path) as reader:
        assert [each.seq for each in reader.messages(since=when)] == [2]
        assert [each.seq for each in reader.messages(until=when)] == [1]


def test_the_command_line_names_the_option() -> None:
    with pytest.raises(UsageError, match=r"^--since 'soon' is not a time"):
        moment("soon", "--since")
