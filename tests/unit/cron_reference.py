"""When cron fires, counted out: every minute (or second) is looked at, nothing is computed ahead.

It shares nothing with `cogworkerd.cron` and does not use croniter; the tests compare the two. It knows numbers,
weekdays by name, `*`, lists, ranges and steps.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7), (0, 59))
_WEEK = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def _values(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            numbers = range(low, high + 1)
        else:
            number = _WEEK.index(first) if first in _WEEK else int(first)
            numbers = range(number, int(last or number) + 1)
        found.update(numbers[:: int(step or 1)])
    return frozenset(found)


class Fields:
    """The fields of an expression, and whether they match what a clock shows."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        parsed = [_values(field, *bounds) for field, bounds in zip(fields, _RANGES, strict=False)]
        self.minutes, self.hours, self.days, self.months, week = parsed[:5]
        self.seconds = parsed[5] if len(parsed) > 5 else frozenset({0})
        self.week = frozenset(day % 7 for day in week)
        self.any_day, self.any_weekday = fields[2] == "*", fields[4] == "*"
        self.by_the_clock = "*" in fields[1] or "/" in fields[1] or len(self.hours) == 24

    def match(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and wall.month in self.months
            and self._match_day(wall)
        )

    def _match_day(self, wall: datetime) -> bool:
        of_month, of_week = wall.day in self.days, wall.isoweekday() % 7 in self.week
        if self.any_day or self.any_weekday:
            return of_month and of_week
        return of_month or of_week


def epoch(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    """The instant of a date and time in UTC."""
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp())


@lru_cache(maxsize=2)
def _walls(zone: tzinfo, start: int, end: int, step: int) -> list[tuple[int, datetime]]:
    """Every instant of a time, and what the clock shows then."""
    return [(at, datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)) for at in range(start, end, step)]


def slots(expression: str, zone: tzinfo, start: int, end: int, step: int = 60) -> list[int]:
    """The instants from `start` to `end` (exclusive) at which cron fires; the clock must not change at `start`.

    Fixed hours are those of a clock-watcher who ticks off each wall time as it comes by: what has been ticked off is
    not done again, and what was left out is done as soon as it is seen to be late.
    """
    fields = Fields(expression)
    tick = timedelta(seconds=step)
    found = []
    done = datetime.fromtimestamp(start, zone).replace(tzinfo=None, fold=0) - tick
    for at, wall in _walls(zone, start, end, step):
        if fields.by_the_clock:
            if fields.match(wall):
                found.append(at)
            continue
        fires = False
        while done < wall:
            done += tick
            fires = fields.match(done) or fires
        if fires:
            found.append(at)
    return found


@cache
def changes(zone: tzinfo, start: int, end: int) -> list[int]:
    """The instants at which the clock is set, to the minute, found by looking at every hour, then every minute."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, zone).utcoffset()

    return [
        at
        for hour in range(start, end, 3600)
        if offset(hour) != offset(hour - 3600)
        for at in range(hour - 3540, hour + 60, 60)
        if offset(at) != offset(at - 60)
    ]
