"""When a cron expression fires: counted out around changes of the clock, by date, and what is refused."""

from __future__ import annotations

import calendar
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadDateError, croniter

from cogworkerd.cron import Schedule, split_zone, zone_of
from tests.unit.cron_reference import changes, epoch, slots

YEARS = [
    ("Europe/Berlin", 2026),
    ("America/New_York", 2026),
    ("Australia/Lord_Howe", 2026),  # set by half an hour
    ("America/Sao_Paulo", 2017),  # set at midnight
    ("America/Sao_Paulo", 2018),
    ("Asia/Kolkata", 2026),
    ("UTC", 2026),
    ("Pacific/Apia", 2011),  # left out the 30th of December
]
ODD_YEARS = [
    ("America/Havana", 2024),  # set back from 1:00 to 0:00
    ("Europe/Dublin", 2024),  # its winter is the exception, not its summer
    ("Antarctica/Troll", 2024),  # set by two hours
    ("Africa/Casablanca", 2024),  # set back for Ramadan
    ("Asia/Tehran", 2021),
]
EXPRESSIONS = [
    "*/15 * * * *",
    "30 2 * * *",
    "0 0 * * *",
    "0 * * * *",
    "15 1,2,3 * * *",
    "*/20 2 * * *",
    "30 */2 * * *",
    "0 0-23 * * *",
    "59 23 * * *",
    "0 12 * * 1",
    "0 0 1 * *",
    "5 4 1 * mon",
]
WITH_SECONDS = [
    "*/20 * * * * */20",
    "30 2 * * * 15,45",
    "* 2 * * * 30",
    "0 */2 * * * 10-50/20",
    "59 23 * * * 59",
    "0 0 * * * 1",
]
HOUR, DAY = 3600, 86_400
QUICK_YEARS = {
    ("Europe/Berlin", 2026, "30 2 * * *"),
    ("Australia/Lord_Howe", 2026, "15 1,2,3 * * *"),
    ("Pacific/Apia", 2011, "0 0 * * *"),
}


def moments(years: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """All changes of the clock in these years; an arbitrary instant where there is none."""
    return [
        (zone, at)
        for zone, year in years
        for at in changes(ZoneInfo(zone), epoch(year, 1, 1), epoch(year + 1, 1, 1)) or [epoch(year, 6, 15, 12)]
    ]


def name(value: object) -> str:
    return str(datetime.fromtimestamp(value, UTC).date()) if isinstance(value, int) else str(value)


def shown(instants: list[int], zone: ZoneInfo | None = None) -> list[str]:
    """Instants as a reader of a failure wants them."""
    return [datetime.fromtimestamp(at, zone or UTC).isoformat() for at in instants]


def forward(schedule: Schedule, start: int, end: int) -> list[int]:
    """The slots from `start` to `end` (exclusive), each asked for from the one before."""
    found: list[int] = []
    slot = schedule.next_after(start - 1)
    while slot < end:
        assert not found or slot > found[-1]
        found.append(slot)
        slot = schedule.next_after(slot)
    return found


def backward(schedule: Schedule, start: int, end: int) -> list[int]:
    """The same, each asked for from the one behind; in order of time."""
    found: list[int] = []
    slot = schedule.latest(end - 1)
    while slot is not None and slot >= start:
        assert not found or slot < found[-1]
        found.append(slot)
        slot = schedule.latest(slot - 1)
    return found[::-1]


def instants(rng: random.Random, expected: list[int], start: int, end: int) -> Iterator[float]:
    """Where to ask: anywhere, near the middle (where the clock is set), on slots and a little beside them."""
    middle = (start + end) // 2
    yield from (middle - 1, middle, middle + 1)
    for _ in range(8):
        yield rng.uniform(start, end - 1)
        yield rng.uniform(middle - 2 * HOUR, middle + 2 * HOUR)
        if expected:
            yield rng.choice(expected)
            near = bisect_left(expected, rng.uniform(middle - 2 * HOUR, middle + 2 * HOUR))
            yield expected[min(near, len(expected) - 1)] + rng.choice([-1, -0.001, 0, 0.25, 1])


def check_answers(schedule: Schedule, expected: list[int], asked: float, start: int, end: int) -> None:
    """Both answers for an instant are those of the list, or lie outside the time that the list covers."""
    place = bisect_right(expected, asked)
    later, latest = schedule.next_after(asked), schedule.latest(asked)
    assert latest is not None
    if place < len(expected):
        assert later == expected[place], asked
    else:
        assert later >= end, asked
    if place:
        assert latest == expected[place - 1], asked
    else:
        assert latest < start, asked


# ---- changes of the clock, counted out -----------------------------------------------------------------


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("zone", "change"), moments(YEARS), ids=name)
def test_the_days_around_a_change_of_the_clock_are_those_counted_out(zone: str, change: int, expression: str) -> None:
    clock = ZoneInfo(zone)
    start, end = change - 36 * HOUR, change + 36 * HOUR
    schedule = Schedule(expression, clock)
    expected = slots(expression, clock, start, end)
    assert shown(forward(schedule, start, end), clock) == shown(expected, clock)
    assert shown(backward(schedule, start, end), clock) == shown(expected, clock)
    for asked in instants(random.Random(f"{zone} {change} {expression}"), expected, start, end):
        check_answers(schedule, expected, asked, start, end)


@pytest.mark.parametrize("expression", WITH_SECONDS)
@pytest.mark.parametrize(("zone", "change"), moments([*YEARS[:1], *YEARS[2:4]]), ids=name)
def test_the_hours_around_a_change_are_those_counted_out_by_the_second(zone: str, change: int, expression: str) -> None:
    clock = ZoneInfo(zone)
    start, end = change - 2 * HOUR, change + 3 * HOUR
    schedule = Schedule(expression, clock)
    expected = slots(expression, clock, start, end, step=1)
    assert shown(forward(schedule, start, end), clock) == shown(expected, clock)
    assert shown(backward(schedule, start, end), clock) == shown(expected, clock)
    for asked in instants(random.Random(f"{zone} {change} {expression}"), expected, start, end):
        check_answers(schedule, expected, asked, start, end)


def random_field(rng: random.Random, low: int, high: int, star: float) -> str:
    if rng.random() < star:
        return "*"
    first = rng.randint(low, high - 1)
    last = rng.randint(first + 1, high)
    return rng.choice(
        [
            str(rng.randint(low, high)),
            ",".join(str(rng.randint(low, high)) for _ in range(rng.randint(2, 4))),
            f"{first}-{last}",
            f"{first}-{last}/{rng.randint(1, 9)}",
            f"*/{rng.randint(2, high)}",
        ]
    )


def random_expression(rng: random.Random) -> str:
    near = rng.choice(["0", "1", "2", "3", "0,23", "1-3", "*/2", "*", "0-23/3", random_field(rng, 0, 23, 0)])
    day = random_field(rng, 1, 31, 0.6)
    return " ".join([random_field(rng, 0, 59, 0.2), near, day, "*", random_field(rng, 0, 6, 0.6)])


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
@pytest.mark.parametrize(("zone", "change"), moments([*YEARS[:4], YEARS[7], *ODD_YEARS]), ids=name)
def test_expressions_of_chance_fire_as_counted_out(zone: str, change: int, seed: int) -> None:
    rng = random.Random(f"{zone} {change} {seed}")
    clock = ZoneInfo(zone)
    start, end = change - 36 * HOUR, change + 36 * HOUR
    for _ in range(3):
        expression = random_expression(rng)
        schedule = Schedule(expression, clock)
        expected = slots(expression, clock, start, end)
        for asked in instants(rng, expected, start, end):
            check_answers(schedule, expected, asked, start, end)


def whole_years() -> list[object]:
    every = [(zone, year, expression) for zone, year in YEARS for expression in EXPRESSIONS]
    return [case if case in QUICK_YEARS else pytest.param(*case, marks=pytest.mark.slow) for case in every]


@pytest.mark.parametrize(("zone", "year", "expression"), whole_years())
def test_a_whole_year_is_the_one_counted_out(zone: str, year: int, expression: str) -> None:
    clock = ZoneInfo(zone)
    start, end = epoch(year, 1, 1), epoch(year + 1, 1, 1)
    schedule = Schedule(expression, clock)
    expected = slots(expression, clock, start, end)
    assert expected
    assert forward(schedule, start, end) == expected
    assert backward(schedule, start, end) == expected


# ---- changes of the clock, by hand ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "zone", "day", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", date(2026, 3, 28), ["28 01:30", "29 01:00", "30 00:30"]),
        ("30 2 * * *", "Europe/Berlin", date(2026, 10, 24), ["24 00:30", "25 00:30", "26 01:30"]),
        ("15,45 2 * * *", "Europe/Berlin", date(2026, 3, 29), ["29 01:00", "30 00:15"]),
        ("0 2,3 * * *", "Europe/Berlin", date(2026, 3, 29), ["29 01:00", "30 00:00"]),
        ("15 1,2,3 * * *", "Europe/Berlin", date(2026, 3, 29), ["29 00:15", "29 01:00", "29 01:15"]),
        ("15 1,2,3 * * *", "Europe/Berlin", date(2026, 10, 25), ["24 23:15", "25 00:15", "25 02:15"]),
        ("30 */2 * * *", "Europe/Berlin", date(2026, 3, 29), ["28 23:30", "29 02:30", "29 04:30"]),
        ("30 */2 * * *", "Europe/Berlin", date(2026, 10, 25), ["24 22:30", "25 00:30", "25 01:30", "25 03:30"]),
        ("30 * * * *", "Europe/Berlin", date(2026, 10, 25), ["24 22:30", "24 23:30", "25 00:30", "25 01:30"]),
        ("0 0 * * *", "America/Sao_Paulo", date(2017, 10, 14), ["14 03:00", "15 03:00", "16 02:00"]),
        ("0 0 * * *", "Pacific/Apia", date(2011, 12, 29), ["29 10:00", "30 10:00", "31 10:00"]),
        ("0 12 * * *", "Pacific/Apia", date(2011, 12, 29), ["29 22:00", "30 10:00", "30 22:00"]),
    ],
)
def test_a_day_on_which_the_clock_is_set(expression: str, zone: str, day: date, expected: list[str]) -> None:
    clock = ZoneInfo(zone)
    at = int(datetime(day.year, day.month, day.day, tzinfo=clock).timestamp()) - 1
    schedule, found = Schedule(expression, clock), []
    for _ in expected:
        at = schedule.next_after(at)
        found.append(datetime.fromtimestamp(at, UTC).strftime("%d %H:%M"))
    assert found == expected


@pytest.mark.parametrize(
    ("macro", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
@pytest.mark.parametrize(("zone", "change"), moments([YEARS[2], YEARS[3], ODD_YEARS[0]]), ids=name)
def test_a_macro_fires_as_its_fields_do(zone: str, change: int, macro: str, fields: str) -> None:
    clock = ZoneInfo(zone)
    for at in range(change - 6 * HOUR, change + 6 * HOUR, 20 * 60):
        assert Schedule(macro, clock).next_after(at) == Schedule(fields, clock).next_after(at)
        assert Schedule(macro, clock).latest(at) == Schedule(fields, clock).latest(at)


@pytest.mark.parametrize(
    "hours", ["*", "*/1", "*,3", "0-23", "0-11,12-23", "0-23/1", "22-21", ",".join(str(hour) for hour in range(24))]
)
def test_every_hour_follows_the_clock_however_it_is_written(hours: str) -> None:
    schedule = Schedule(f"0 {hours} * * *", ZoneInfo("Europe/Berlin"))
    for change in (epoch(2026, 3, 29, 1), epoch(2026, 10, 25, 1)):
        start, end = change - 4 * HOUR, change + 4 * HOUR
        assert forward(schedule, start, end) == list(range(start, end, HOUR))


# ---- dates ---------------------------------------------------------------------------------------------

FIRST, LAST = date(2023, 1, 1), date(2026, 12, 31)
FOUR_YEARS = [FIRST + timedelta(days=number) for number in range((LAST - FIRST).days + 1)]
MONDAY, FRIDAY, SATURDAY, SUNDAY = 1, 5, 6, 7


def weekday(day: date) -> int:
    return day.isoweekday()


def ends_month(day: date) -> bool:
    return (day + timedelta(days=1)).day == 1


def which(day: date) -> int:
    """The how-manieth of its weekday it is in its month."""
    return (day.day + 6) // 7


def last_of_its_kind(day: date) -> bool:
    return (day + timedelta(days=7)).month != day.month


def nearest_working_day(day: date, wanted: int) -> bool:
    """Whether the wanted day of the month, moved off its weekend, is this one; for days amid a month."""
    moved = {SATURDAY: -1, SUNDAY: 1}.get(weekday(day.replace(day=wanted)), 0)
    return day.day == wanted + moved


def fires_on(expression: str, time: str, matches: Callable[[date], bool]) -> None:
    """Over four years the expression fires at this time (UTC) of the days that match, and at no other."""
    seconds = sum(int(part) * unit for part, unit in zip(time.split(":"), (HOUR, 60, 1), strict=True))
    expected = [calendar.timegm(day.timetuple()) + seconds for day in FOUR_YEARS if matches(day)]
    start, end = calendar.timegm(FIRST.timetuple()), calendar.timegm(LAST.timetuple()) + DAY
    schedule = Schedule(expression)
    assert expected
    assert shown(forward(schedule, start, end)) == shown(expected)
    assert shown(backward(schedule, start, end)) == shown(expected)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("0 0 L * *", ends_month),
        ("0 0 l * *", ends_month),
        ("0 0 L 2 *", lambda day: day.month == 2 and ends_month(day)),
        ("0 0 1,L * *", lambda day: day.day == 1 or ends_month(day)),
        ("0 0 29 2 *", lambda day: (day.month, day.day) == (2, 29)),
        ("0 0 29,30,31 * *", lambda day: day.day > 28),
        ("0 0 31 * *", lambda day: day.day == 31),
        ("0 0 */7 * *", lambda day: day.day in (1, 8, 15, 22, 29)),
        ("0 0 10-20/4 * *", lambda day: day.day in (10, 14, 18)),
        ("0 0 * * 5#3", lambda day: weekday(day) == FRIDAY and which(day) == 3),
        ("0 0 * * FRI#3", lambda day: weekday(day) == FRIDAY and which(day) == 3),
        ("0 0 * * 5#5", lambda day: weekday(day) == FRIDAY and which(day) == 5),
        ("0 0 * * 0#1", lambda day: weekday(day) == SUNDAY and which(day) == 1),
        ("0 0 * * 7#1", lambda day: weekday(day) == SUNDAY and which(day) == 1),
        (
            "0 0 * * 1#1,5#3",
            lambda day: (weekday(day), which(day)) in ((MONDAY, 1), (FRIDAY, 3)),
        ),
        ("0 0 * * L5", lambda day: weekday(day) == FRIDAY and last_of_its_kind(day)),
        ("0 0 * 2 L5", lambda day: day.month == 2 and weekday(day) == FRIDAY and last_of_its_kind(day)),
        ("0 0 * * L1,L5", lambda day: weekday(day) in (MONDAY, FRIDAY) and last_of_its_kind(day)),
        ("0 0 1 * 5#3", lambda day: day.day == 1 or (weekday(day) == FRIDAY and which(day) == 3)),
        ("0 0 13 * 5#2", lambda day: day.day == 13 or (weekday(day) == FRIDAY and which(day) == 2)),
        ("0 0 1,15 * L5", lambda day: day.day in (1, 15) or (weekday(day) == FRIDAY and last_of_its_kind(day))),
        ("0 0 L * 5#3", lambda day: ends_month(day) or (weekday(day) == FRIDAY and which(day) == 3)),
        ("0 0 L * L5", lambda day: ends_month(day) or (weekday(day) == FRIDAY and last_of_its_kind(day))),
        ("0 0 L * 1", lambda day: ends_month(day) or weekday(day) == MONDAY),
        ("0 0 15,L * mon-wed", lambda day: day.day == 15 or ends_month(day) or weekday(day) < 4),
        ("0 0 ? * 5#3", lambda day: weekday(day) == FRIDAY and which(day) == 3),
        ("0 0 L * ?", ends_month),
        ("0 0 15 * 5", lambda day: day.day == 15 or weekday(day) == FRIDAY),
        ("0 0 15 3 5", lambda day: day.month == 3 and (day.day == 15 or weekday(day) == FRIDAY)),
        ("0 0 31 2 5", lambda day: day.month == 2 and weekday(day) == FRIDAY),
        ("0 0 * * 0-7", lambda day: True),
        ("0 0 * * 0", lambda day: weekday(day) == SUNDAY),
        ("0 0 * * 7", lambda day: weekday(day) == SUNDAY),
        ("0 0 * * sun", lambda day: weekday(day) == SUNDAY),
        ("0 0 * * 6-7", lambda day: weekday(day) > 5),
        ("0 0 * * MON-FRI", lambda day: weekday(day) < 6),
        ("0 0 * * Fri-Mon", lambda day: weekday(day) in (FRIDAY, SATURDAY, SUNDAY, MONDAY)),
        ("0 0 * * THU", lambda day: weekday(day) == 4),
        ("0 0 1 mar,APR *", lambda day: day.day == 1 and day.month in (3, 4)),
        ("0 0 1 nov-feb *", lambda day: day.day == 1 and day.month in (11, 12, 1, 2)),
        ("0 0 * jan mon", lambda day: day.month == 1 and weekday(day) == MONDAY),
        ("@weekly", lambda day: weekday(day) == SUNDAY),
        ("@monthly", lambda day: day.day == 1),
        ("@yearly", lambda day: (day.month, day.day) == (1, 1)),
    ],
)
def test_an_expression_fires_on_the_days_that_it_names(expression: str, matches: Callable[[date], bool]) -> None:
    fires_on(expression, "0:0:0", matches)


@pytest.mark.parametrize(
    ("expression", "time", "matches"),
    [
        ("0 0 12 * * 30", "0:0:30", lambda day: day.day == 12),
        ("59 23 L * * 59", "23:59:59", ends_month),
        ("5 4 1 * 5#3 7", "4:5:7", lambda day: day.day == 1 or (weekday(day) == FRIDAY and which(day) == 3)),
        ("15 10 * * L5 0", "10:15:0", lambda day: weekday(day) == FRIDAY and last_of_its_kind(day)),
    ],
)
def test_the_sixth_field_is_that_of_the_seconds(expression: str, time: str, matches: Callable[[date], bool]) -> None:
    fires_on(expression, time, matches)


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [
        ("*/10 * * * * *", [minute * 60 + second for minute in range(0, 60, 10) for second in range(60)]),
        ("* * * * * */10", list(range(0, HOUR, 10))),
        ("0,30 * * * * 5,50", [5, 50, 1805, 1850]),
        ("* * * * * *", list(range(HOUR))),
    ],
)
def test_seconds_within_an_hour(expression: str, seconds: list[int]) -> None:
    start = epoch(2026, 5, 17, 8)
    expected = [start + second for second in seconds]
    assert forward(Schedule(expression), start, start + HOUR) == expected
    assert backward(Schedule(expression), start, start + HOUR) == expected


@pytest.mark.parametrize("day", ["15W", "W15", "1W", "31W", "15w"])
def test_a_nearest_working_day_is_the_same_from_both_sides(day: str) -> None:
    schedule = Schedule(f"0 12 {day} * *")
    start, end = epoch(2023, 1, 1), epoch(2027, 1, 1)
    found = forward(schedule, start, end)
    assert len(found) == 48
    assert found == backward(schedule, start, end)
    assert all(datetime.fromtimestamp(at, UTC).isoweekday() < 6 for at in found)


@pytest.mark.parametrize("day", ["15W", "W15", "15w"])
def test_a_nearest_working_day_or_a_weekday(day: str) -> None:
    fires_on(f"0 0 {day} * 1", "0:0:0", lambda day: nearest_working_day(day, 15) or weekday(day) == MONDAY)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("0 0 30 2 5#3", lambda day: weekday(day) == FRIDAY and which(day) == 3),
        ("0 0 30,31 2 L5", lambda day: weekday(day) == FRIDAY and last_of_its_kind(day)),
    ],
)
def test_a_day_of_the_month_that_never_comes_leaves_the_weekday(
    expression: str, matches: Callable[[date], bool]
) -> None:
    fires_on(expression, "0:0:0", lambda day: day.month == 2 and matches(day))


def test_the_29th_of_february_is_found_across_a_year_that_is_no_leap_year() -> None:
    schedule = Schedule("0 0 29 2 *")
    assert schedule.next_after(epoch(2096, 3, 1)) == epoch(2104, 2, 29)
    assert schedule.latest(epoch(2104, 2, 28)) == epoch(2096, 2, 29)


# ---- the answers fit each other ------------------------------------------------------------------------

ANY = [
    *EXPRESSIONS,
    *WITH_SECONDS,
    *("@hourly", "@daily", "@weekly", "@monthly", "@yearly"),
    *("0 0 L * *", "0 0 29 2 *", "0 0 * * 5#3", "0 0 * * L5", "0 0 1 * 5#3", "30 2 L * 1", "0 0 1,L * *"),
    *("0 0 31 * *", "0 0 */7 * *", "30 2 15W * *", "0 0 * 2 5#5", "0 0 29 2 sun", "*/7 1-3 13 * fri#2 */25"),
]


@pytest.mark.parametrize("seed", range(8))
def test_what_comes_next_and_what_was_last_fit_each_other(seed: int) -> None:
    rng = random.Random(seed)
    for expression in ANY:
        zone = ZoneInfo(rng.choice([*YEARS, *ODD_YEARS])[0])
        schedule = Schedule(expression, zone)
        for _ in range(4):
            at: float = rng.uniform(epoch(1995, 1, 1), epoch(2036, 1, 1))
            at = rng.choice([at, round(at), round(at / 900) * 900])
            later, latest = schedule.next_after(at), schedule.latest(at)
            assert latest is not None, (expression, zone, at)
            assert latest <= at < later, (expression, zone, at)
            assert schedule.latest(later) == later, (expression, zone, at)
            assert schedule.latest(later - 1) == latest, (expression, zone, at)
            assert schedule.next_after(latest) == later, (expression, zone, at)


@pytest.mark.parametrize("seed", range(4))
def test_a_count_is_that_of_the_slots_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    for expression in ANY:
        zone = ZoneInfo(rng.choice([*YEARS, *ODD_YEARS])[0])
        schedule = Schedule(expression, zone)
        ends = [rng.uniform(epoch(1995, 1, 1), epoch(2036, 1, 1))]
        for _ in range(rng.randint(0, 12)):
            ends.append(schedule.next_after(ends[-1]))
        last = ends[-1]
        steps = len(ends) - 1
        assert schedule.count(ends[0], last) == steps, (expression, zone, ends)
        assert schedule.count(ends[0], schedule.next_after(last) - 0.5) == steps, (expression, zone, ends)
        assert schedule.count(ends[0], last - 0.5) == max(steps - 1, 0), (expression, zone, ends)
        assert schedule.count(ends[0], last, most=3) == min(steps, 3), (expression, zone, ends)


def test_a_count_of_a_time_that_ends_before_it_begins_is_nothing() -> None:
    assert Schedule("* * * * *").count(1000, 900) == 0
    assert Schedule("* * * * *").count(1020, 1020) == 0


# ---- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "0 fields; allowed: 5 fields"),
        ("   ", "0 fields; allowed: 5 fields"),
        ("* * * *", "4 fields; allowed: 5 fields"),
        ("* * * * * * *", "7 fields; allowed: 5 fields"),
        ("0 0 1 1 * 0 2030", "7 fields; allowed: 5 fields"),
        ("@reboot", "or one of @hourly, @daily"),
        ("@every 5m", "or one of @hourly, @daily"),
        ("@reboot * * * *", "or one of @hourly, @daily"),
        ("60 * * * *", "[60 * * * *] is not acceptable, out of range"),
        ("* 24 * * *", "out of range"),
        ("* * 0 * *", "out of range"),
        ("* * 32 * *", "out of range"),
        ("* * * 0 *", "out of range"),
        ("* * * 13 *", "out of range"),
        ("* * * * 8", "out of range"),
        ("* * * * * 60", "out of range"),
        ("1-70 * * * *", "out of bands"),
        ("-5 * * * *", "negative"),
        ("*/0 * * * *", "step '0'"),
        ("x * * * *", "[x * * * *] is not acceptable"),
        ("* * * * monday", "is not acceptable"),
        ("0 0 * * 5#6", "Invalid day_of_week value: '6'"),
        ("0 0 * * 5#0", "Invalid day_of_week value: '0'"),
        ("0 0 * * L8", "out of range"),
        ("0 0 * * 1,5#3", "does not support mixing"),
        ("0 0 1W,5 * *", "'W' can only be used with a single day value"),
        ("0 0 30 2 *", "failed to find next date"),
        ("0 0 31 2,4,6 *", "failed to find next date"),
        ("0 0 31 2 5#3 61", "out of range"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused_with_its_reason(expression: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        Schedule(expression)
    assert reason in str(caught.value)


@pytest.mark.parametrize("form", ["R", "H", "r", "h", "R(0-9)", "H(0-9)", "H/5", "R/5", "h(0-9)/5"])
@pytest.mark.parametrize("place", range(6))
def test_a_time_by_chance_is_refused_in_every_field(form: str, place: int) -> None:
    fields = ["*"] * 6
    for written in (form, f"1,{form}"):
        fields[place] = written
        with pytest.raises(ValueError) as caught:
            Schedule(" ".join(fields))
        assert str(caught.value).startswith(repr(form))
        assert "would fire many times" in str(caught.value)


# ---- time zones ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expression", "zone"),
    [
        ("0 5 * * * Europe/Berlin", "0 5 * * *", "Europe/Berlin"),
        ("0 5 * * * UTC", "0 5 * * *", "UTC"),
        ("0 5 * * * 30 Europe/Berlin", "0 5 * * * 30", "Europe/Berlin"),
        ("0 5 * * * America/Argentina/Buenos_Aires", "0 5 * * *", "America/Argentina/Buenos_Aires"),
        ("0 5 * * * America/Port-au-Prince", "0 5 * * *", "America/Port-au-Prince"),
        ("0 5 * * * Etc/GMT+5", "0 5 * * *", "Etc/GMT+5"),
        ("0 5 * * fri UTC", "0 5 * * fri", "UTC"),
        ("0 5 L * L5 UTC", "0 5 L * L5", "UTC"),
        ("@daily Asia/Tokyo", "@daily", "Asia/Tokyo"),
        ("  0 5 * * *   Europe/Berlin ", "0 5 * * *", "Europe/Berlin"),
        ("0 5 * * *\tEurope/Berlin", "0 5 * * *", "Europe/Berlin"),
        ("0 5 * * *", "0 5 * * *", None),
        ("0 5 * * * 30", "0 5 * * * 30", None),
        ("0 5 * * MON", "0 5 * * MON", None),
        ("0 5 * * thu", "0 5 * * thu", None),
        ("0 5 * * MON-FRI", "0 5 * * MON-FRI", None),
        ("0 5 * * L5", "0 5 * * L5", None),
        ("0 5 * * * MON", "0 5 * * * MON", None),
        ("0 5 * * * sun", "0 5 * * * sun", None),
        ("0 5 * * * L", "0 5 * * * L", None),
        ("@daily", "@daily", None),
        ("", "", None),
    ],
)
def test_a_zone_behind_the_fields_is_taken_off(written: str, expression: str, zone: str | None) -> None:
    assert split_zone(written) == (expression, zone)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe/Berlinn", "Nowhere", "Europe"])
def test_a_zone_that_is_none_is_refused_by_its_name(zone: str) -> None:
    for written in (f"0 5 * * * {zone}", f"@daily {zone}"):
        with pytest.raises(ValueError) as caught:
            split_zone(written)
        assert repr(zone) in str(caught.value)


@pytest.mark.parametrize("name", ["", "Europe", "europe/nowhere", "../zone", "/etc/passwd", "a\0b", "x" * 5000])
def test_no_name_of_a_zone_leads_anywhere_else(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        zone_of(name)
    assert repr(name) in str(caught.value)


def test_a_zone_of_a_schedule_is_the_clock_of_its_fields() -> None:
    tokyo = Schedule("0 5 * * *", zone_of("Asia/Tokyo"))
    assert tokyo.next_after(epoch(2026, 6, 1)) == epoch(2026, 6, 1, 20)
    assert Schedule("0 5 * * *").next_after(epoch(2026, 6, 1)) == epoch(2026, 6, 1, 5)


# ---- why croniter is not asked alone -------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")


def alone(expression: str, start: datetime, number: int) -> list[str]:
    walk = croniter(expression, start)
    return [walk.get_next(datetime).isoformat() for _ in range(number)]


def test_croniter_alone_fires_a_fixed_hour_twice_where_the_clock_is_set_back() -> None:
    start = datetime(2026, 10, 24, 12, tzinfo=BERLIN)
    twice = ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
    assert alone("30 2 * * *", start, 2) == twice
    assert shown([Schedule("30 2 * * *", BERLIN).next_after(start.timestamp())], BERLIN) == twice[:1]
    after = Schedule("30 2 * * *", BERLIN).next_after(datetime.fromisoformat(twice[0]).timestamp())
    assert shown([after], BERLIN) == ["2026-10-26T02:30:00+01:00"]


def test_croniter_alone_moves_a_stepped_hour_to_one_that_it_does_not_name() -> None:
    start = datetime(2026, 3, 29, 1, tzinfo=BERLIN)
    assert alone("30 */2 * * *", start, 2) == ["2026-03-29T03:00:00+02:00", "2026-03-29T04:30:00+02:00"]
    assert shown([Schedule("30 */2 * * *", BERLIN).next_after(start.timestamp())], BERLIN) == [
        "2026-03-29T04:30:00+02:00"
    ]


@pytest.mark.parametrize("expression", ["0 0 1 * 5#3", "0 0 15 * L5"])
def test_croniter_alone_joins_a_day_and_a_certain_weekday_by_and(expression: str) -> None:
    with pytest.raises(CroniterBadDateError):
        alone(expression, datetime(2026, 1, 2), 1)
    assert Schedule(expression).next_after(epoch(2026, 1, 2)) < epoch(2026, 1, 17)
