"""When a cron expression fires: pure functions of an expression, a time zone and an instant.

croniter reads the expression and walks wall-clock times; this file maps wall times to instants. croniter alone is
wrong there: walking an aware time it fires 02:30 twice where a clock is set back, moves a slot of `*/2` hours that a
clock leaves out to the end of the gap, and joins a day of the month and `#`, `L` or `W` by "and" (so that
`0 0 1 * 5#3` never fires). Its walk is therefore only used on times without a zone, and each such pair of days as the
union of two walks.

The rules for changes of the clock are those of cron:

- An entry with fixed hours fires once a day at each of its wall times: one that does not exist (the clock is set
  forward) at the next valid instant, one that exists twice the first time.
- An entry whose hour is a wildcard or a step follows the clock at every instant: it fires whenever the wall clock
  matches, so it has neither a gap nor a double in real time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, CroniterError, croniter

DEFAULT_ZONE = "UTC"
MACROS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_RANDOM = re.compile(r"[rh](\(.*\))?(/.*)?", re.IGNORECASE)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_SHAPE = "5 fields (minute, hour, day of month, month, day of week), a sixth for seconds, or one of " + ", ".join(
    MACROS
)
# Not a zone, although it could be the name of one: names of days and months, L, R and H, with what may follow them.
_FIELD = re.compile(
    r"(mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|[lrhw]\d*)([-/#].*)?", re.IGNORECASE
)
_HOUR, _DAY_OF_MONTH, _DAY_OF_WEEK = 1, 2, 4
_ALL_HOURS = 24


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name.

    Raises:
        ValueError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; allowed: a name such as Europe/Berlin")


def schedule_of(cron: str) -> Schedule:
    """The schedule of an expression that may have a time zone behind it; without one, UTC.

    Raises:
        ValueError: it cannot be used, with the reason.
    """
    expression, zone = split_zone(cron)
    return Schedule(expression, zone_of(zone or DEFAULT_ZONE))


def split_zone(expression: str) -> tuple[str, str | None]:
    """An expression without the time zone that may stand behind its fields, and that zone's name.

    Raises:
        ValueError: something stands there that is no time zone.
    """
    *fields, last = expression.split() or [""]
    head, whole = " ".join(fields), " ".join(expression.split())
    if not _ZONE.fullmatch(last) or _FIELD.fullmatch(last) or (len(fields) < 5 and head.lower() not in MACROS):
        return whole, None
    return head, zone_of(last).key


class Schedule:
    """The instants at which an expression fires.

    Args:
        expression: five fields, or six with the seconds last, or a macro; without a time zone (see `split_zone`).
        zone: the wall clock that the fields speak of.

    Raises:
        ValueError: the expression cannot be used, with the reason.

    All instants are epoch seconds; those that a schedule answers are whole.
    """

    def __init__(self, expression: str, zone: tzinfo = UTC) -> None:
        self._zone = zone
        if expression.startswith("@"):
            expression = expression.lower()
        fields = expression.split()
        _check_shape(expression, fields)
        self._walks = _walks_of(expression, fields)
        try:
            self._by_the_clock = _by_the_clock(fields) if len(fields) > 1 else expression == "@hourly"
            self.next_after(datetime.now(UTC).timestamp())
        except (CroniterError, ValueError, OverflowError, AttributeError, TypeError, KeyError, IndexError) as error:
            raise ValueError(str(error) or type(error).__name__)

    def next_after(self, instant: float) -> int:
        """The first slot later than this instant."""
        wall = self._wall(instant)
        best: int | None = None
        for time in self._later(wall - self._first_of_two(instant)):
            first, second = self._instants(time)
            if self._by_the_clock:
                if second is not None and second > instant:
                    best = second if best is None else min(best, second)
                if self._exists(time) and first > instant:
                    return first if best is None else min(best, first)
                if best is not None and time > wall:
                    return best
            elif first > instant:
                return first
        raise ValueError("it never fires: failed to find next date")

    def latest(self, instant: float) -> int | None:
        """The last slot that is not later than this instant; None if there is none in the years that croniter walks."""
        wall = self._wall(instant)
        best: int | None = None
        for time in self._earlier(wall + self._second_of_two(instant)):
            first, second = self._instants(time)
            if not self._by_the_clock:
                if first <= instant:
                    return first
                continue
            for slot in (first if self._exists(time) else None, second):
                if slot is not None and slot <= instant:
                    best = slot if best is None else max(best, slot)
            if best is not None and time <= wall:
                return best
        return best

    def count(self, after: float, until: float, most: int = 10_000) -> int:
        """How many slots there are later than `after` and not later than `until`; counted up to `most`."""
        found, slot = 0, self.next_after(after)
        while slot <= until and found < most:
            found += 1
            slot = self.next_after(slot)
        return found

    # ---- wall times -------------------------------------------------------------------------------------

    def _later(self, wall: datetime) -> Iterator[datetime]:
        """Matching wall times later than this one, in order."""
        yield from _merged(self._walks, wall, forward=True)

    def _earlier(self, wall: datetime) -> Iterator[datetime]:
        """Matching wall times not later than this one, the last one first."""
        yield from _merged(self._walks, wall + timedelta(seconds=1), forward=False)

    # ---- wall times and instants ------------------------------------------------------------------------

    def _wall(self, instant: float) -> datetime:
        """What the clock shows, to the second."""
        return datetime.fromtimestamp(int(instant // 1), self._zone).replace(tzinfo=None, fold=0)

    def _offset(self, time: datetime, fold: int) -> timedelta:
        return time.replace(tzinfo=self._zone, fold=fold).utcoffset() or timedelta()

    def _instants(self, time: datetime) -> tuple[int, int | None]:
        """When a clock shows this time: the first instant, and a second one if there are two. For a time that the clock
        leaves out: the instant at which it is set forward."""
        before, after = self._offset(time, 0), self._offset(time, 1)
        if before < after:
            return self._gap_end(time, before, after), None
        first = _epoch(time - before)
        return first, _epoch(time - after) if after < before else None

    def _exists(self, time: datetime) -> bool:
        return self._offset(time, 0) >= self._offset(time, 1)

    def _gap_end(self, time: datetime, before: timedelta, after: timedelta) -> int:
        """The instant of the change that leaves this time out, found by halving: no zone tells its changes."""
        low, high = _epoch(time - after), _epoch(time - before)  # before the change, and not before it
        while high - low > 1:
            middle = (low + high) // 2
            offset = datetime.fromtimestamp(middle, self._zone).utcoffset()
            low, high = (middle, high) if offset == before else (low, middle)
        return high

    def _first_of_two(self, instant: float) -> timedelta:
        """If the clock will show this instant's time once more: how long it is set back; else nothing."""
        return self._set_back(instant, fold=0)

    def _second_of_two(self, instant: float) -> timedelta:
        """If the clock has shown this instant's time before: how long it was set back; else nothing."""
        return self._set_back(instant, fold=1)

    def _set_back(self, instant: float, fold: int) -> timedelta:
        shown = datetime.fromtimestamp(int(instant // 1), self._zone)
        time = shown.replace(tzinfo=None, fold=0)
        length = self._offset(time, 0) - self._offset(time, 1)
        return length if length > timedelta() and shown.fold == fold else timedelta()


def _epoch(utc: datetime) -> int:
    return int(utc.replace(tzinfo=UTC).timestamp())


def _check_shape(expression: str, fields: list[str]) -> None:
    if expression in MACROS:
        return
    if expression.startswith("@"):
        raise ValueError(f"there is no macro {expression!r}; allowed: {_SHAPE}")
    if len(fields) not in (5, 6):
        raise ValueError(f"{len(fields)} fields; allowed: {_SHAPE}")
    for field in fields:
        for item in field.split(","):
            if _RANDOM.fullmatch(item):
                raise ValueError(f"{item!r}: R and H differ between processes, so they would fire many times")


def _walks_of(expression: str, fields: list[str]) -> list[str]:
    """The expressions whose union this one is. Cron fires when the day of the month or the day of the week matches;
    croniter has that for plain days only."""
    if len(fields) < 5:
        return [expression]
    month_day, week_day = fields[_DAY_OF_MONTH], fields[_DAY_OF_WEEK]
    special = re.search(r"[lw]", month_day, re.IGNORECASE) or re.search(r"[#l]", week_day, re.IGNORECASE)
    if not special or month_day in ("*", "?") or week_day in ("*", "?"):
        return [expression]
    by_month, by_week = list(fields), list(fields)
    by_month[_DAY_OF_WEEK] = "*"
    by_week[_DAY_OF_MONTH] = "*"
    return [" ".join(by_month), " ".join(by_week)]


def _by_the_clock(fields: list[str]) -> bool:
    hour = fields[_HOUR]
    if "*" in hour or "/" in hour:
        return True
    expanded = croniter.expand(" ".join(fields))[0]
    return expanded[_HOUR] == ["*"] or len(expanded[_HOUR]) == _ALL_HOURS


def _merged(expressions: list[str], start: datetime, forward: bool) -> Iterator[datetime]:
    """The wall times of all expressions, each once, in order from `start` (exclusive)."""
    walks = [_steps(expression, start, forward) for expression in expressions]
    heads = {walk: time for walk in walks if (time := next(walk, None)) is not None}
    while heads:
        head = min(heads.values()) if forward else max(heads.values())
        yield head
        for walk in [walk for walk, time in heads.items() if time == head]:
            time = next(walk, None)
            if time is None:
                del heads[walk]
            else:
                heads[walk] = time


def _steps(expression: str, start: datetime, forward: bool) -> Iterator[datetime]:
    """The wall times of one expression; it ends where croniter finds no more (30 February)."""
    walk = croniter(expression, start)
    step = walk.get_next if forward else walk.get_prev
    while True:
        try:
            yield step(datetime)
        except CroniterBadDateError:
            return
