"""The times that a schedule names, also where clocks are set forward and back, and which it makes up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest

from effectflow import Do, pure, workflow
from effectflow.service import Schedule


@workflow
def report(day: str) -> Do[Any, str, str]:
    return (yield from pure(day))


def schedule(cron: str, **options: Any) -> Schedule[str]:
    return Schedule(report, cron, input="today", **options)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-{text}+00:00")


def texts(ticks: Any, count: int) -> list[str]:
    return [f"{tick:%m-%d %H:%M}" for tick in islice(ticks, count)]


BERLIN = "Europe/Berlin"
FORWARD = at("03-28 23:00")
BACK = at("10-24 22:00")


@pytest.mark.parametrize(
    ("cron", "begin", "expected"),
    [
        # The hour from 2 to 3 does not exist: its tick comes right after it.
        ("30 2 * * *", FORWARD, ["03-29 01:00", "03-30 00:30", "03-31 00:30"]),
        ("0 * * * *", FORWARD, ["03-29 00:00", "03-29 01:00", "03-29 02:00"]),
        # The hour from 2 to 3 is there twice.
        ("30 2 * * *", BACK, ["10-25 00:30", "10-26 01:30", "10-27 01:30"]),
        ("30 * * * *", BACK, ["10-24 22:30", "10-24 23:30", "10-25 00:30", "10-25 01:30"]),
    ],
)
def test_ticks_where_clocks_are_set_forward_and_back(
    cron: str, begin: datetime, expected: list[str]
) -> None:
    given = schedule(cron, timezone=BERLIN)

    assert texts(given.ticks_after(begin), len(expected)) == expected


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "0 0 * * *", "15 1,2,3 * * *"])
@pytest.mark.parametrize("begin", [FORWARD, BACK])
def test_every_moment_has_the_same_ticks_whenever_a_worker_looks(
    cron: str, begin: datetime
) -> None:
    given = schedule(cron, timezone=BERLIN, missed="all")
    end = begin + timedelta(hours=30)
    ticks = list(given.due(begin, end))
    assert ticks == sorted(set(ticks))

    seen: list[datetime] = []
    looked = begin
    while looked < end:
        now, looked = looked, looked + timedelta(minutes=7)
        seen += given.due(now, looked)
        latest = given.latest_tick(now)
        before = [tick for tick in ticks if tick <= now]
        if before:
            assert latest == before[-1]
    assert [tick for tick in seen if tick <= end] == ticks


def test_missed_ticks_are_started_according_to_the_schedule() -> None:
    last, now = at("06-01 10:00"), at("06-01 13:30")
    expected = {"all": ["11:00", "12:00", "13:00"], "latest": ["13:00"], "skip": []}
    for missed, ticks in expected.items():
        given = schedule("0 * * * *", missed=missed)
        assert [f"{tick:%H:%M}" for tick in given.due(last, now)] == ticks
        # A tick that is due now is not a missed one.
        just_now = [f"{tick:%H:%M}" for tick in given.due(last, at("06-01 13:00:20"))]
        assert just_now[-1] == "13:00"
        assert list(given.due(now, now)) == []


def test_a_tick_is_started_once_although_it_was_looked_for_again() -> None:
    given = schedule("*/10 * * * *")
    ticks = list(islice(given.ticks_after(at("06-01 10:00")), 20))

    assert [after - before for before, after in pairwise(ticks)] == [timedelta(minutes=10)] * 19
    assert len({given.run_id(tick) for tick in ticks}) == 20
    assert [given.tick_of(given.run_id(tick)) for tick in ticks] == ticks
    assert given.run_id(ticks[0]) == "report@2026-06-01T10:10:00+00:00"


def test_one_tick_has_one_id_in_every_time_zone() -> None:
    noon = schedule("0 12 * * *", timezone=BERLIN, name="noon")

    tick = next(noon.ticks_after(at("01-05 00:00")))

    assert noon.run_id(tick) == "noon@2026-01-05T11:00:00+00:00"
    for foreign in (
        "noon@later",
        "noon@2026-01-05T11:00:00",
        "other",
        "noon@2026-01-05T11:00:00+00:00/a",
    ):
        assert noon.tick_of(foreign) is None


def test_the_input_may_depend_on_the_time_in_the_time_zone() -> None:
    given = Schedule(report, "0 0 * * *", timezone=BERLIN, input=lambda tick: f"{tick:%d %H}")

    assert given.input_at(next(given.ticks_after(at("06-01 10:00")))) == "02 00"
    assert schedule("0 0 * * *").input_at(at("06-01 10:00")) == "today"


def test_an_expression_without_a_next_tick_ends() -> None:
    assert next(schedule("0 0 1 1 *").ticks_after(at("06-01 10:00"))) == datetime(
        2027, 1, 1, tzinfo=UTC
    )
    with_seconds = schedule("*/30 * * * * *").ticks_after(at("06-01 10:00"))
    assert [f"{tick:%M:%S}" for tick in islice(with_seconds, 3)] == ["00:30", "01:00", "01:30"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cron": "0 25 * * *"}, "'report': '0 25 [*] [*] [*]' is not a cron expression: Bad hour"),
        ({"cron": "hourly"}, "not a cron expression"),
        ({"timezone": "Mars/Olympus"}, "'Mars/Olympus' is not a known time zone"),
        ({"missed": "some"}, 'missed must be "latest", "all" or "skip"'),
        ({"input": 5}, "has no valid input.*5 is not of the declared type str"),
        ({"input": None}, "None is not of the declared type str"),
    ],
)
def test_a_schedule_that_cannot_work_is_rejected_when_it_is_made(
    options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"cron": "0 * * * *", "input": "today"} | options
    with pytest.raises(ValueError, match=message):
        Schedule(report, **given)
