"""Job: a decorated function and its enqueue methods."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast

from cogworkerd import payload as payloads
from cogworkerd.expiry import END_OF_TIME
from cogworkerd.middleware import PendingJob, is_async
from cogworkerd.redact import masked_places
from cogworkerd.retry import Decision, Hook
from cogworkerd.settings import check_queue_name, did_you_mean
from cogworkerd.unique import MODES

if TYPE_CHECKING:
    from cogworkerd.app import App

P = ParamSpec("P")
R = TypeVar("R")
Delay = float | timedelta
When = datetime | float
HookAnswer = float | timedelta | Decision | None
RetryHook = Callable[[int, Any, Any], HookAnswer]
H = TypeVar("H", bound=RetryHook)
DeathHook = Callable[[Any, Any], Any]
D = TypeVar("D", bound=DeathHook)


class JobOptions(TypedDict, total=False):
    """What `@app.job(...)` and `using(...)` take.

    queue: where the job goes ("default"). retry: True is 25 retries over about 25 days, an int that many, False none.
    unique: "until_executed": no second job of the same queue and arguments until this one is over; None: many.
    timeout: seconds or a timedelta after which it is ended; None: the setting `timeout`. expires_in: seconds or a
    timedelta, from when the job is due, after which it is dropped if it was not started. expires_at: the same as an
    aware datetime or epoch seconds; it wins over expires_in. status: its status can be read from the moment it is
    enqueued. redact: names of parameters whose values are shown nowhere.
    tags: texts that travel with the job. meta: a dict of JSON that travels with the job, for middleware.
    """

    queue: str
    retry: bool | int
    unique: Literal["until_executed"] | None
    timeout: Delay | None
    expires_in: Delay | None
    expires_at: When | None
    status: bool
    redact: Sequence[str | int]
    tags: Sequence[str]
    meta: dict[str, Any]


OPTION_NAMES = tuple(JobOptions.__annotations__)


@dataclass(frozen=True)
class Options:
    """Checked options of a job."""

    queue: str | None = None
    retry: bool | int = True
    unique: str | None = None
    timeout: float | None = None
    expires_in: float | None = None
    expires_at: float | None = None
    status: bool = False
    redact: tuple[str | int, ...] = ()
    tags: tuple[str, ...] = ()
    meta: dict[str, Any] | None = None


def check_options(base: Options, given: dict[str, Any], where: str) -> Options:
    """`base` with the given options laid over it.

    Raises:
        TypeError: an option is unknown or of the wrong type.
        ValueError: an option's value is not allowed.
    """
    for name, value in given.items():
        if name not in OPTION_NAMES:
            raise TypeError(f"{where}: unknown option {name!r}{did_you_mean(name, OPTION_NAMES)}")
        base = replace(base, **{name: _OPTION_CHECKS[name](value, where)})
    return base


def payload_fields(options: Options, job: Job[..., Any] | None) -> dict[str, Any]:
    """The fields of a payload that options give, beside its queue, its retries and its times.

    Args:
        job: whose parameters `redact` names; None for a job that is not ours: positions and names as they are.
    """
    fields: dict[str, Any] = {
        "unique": options.unique,
        "timeout": options.timeout,
        "status": options.status,
        "redact": job.places(options.redact) if job is not None else list(options.redact),
        "tags": list(options.tags),
        "meta": options.meta,
    }
    return {name: value for name, value in fields.items() if value}


def expires_at_of(options: Options, due: float) -> float | None:
    """When a job that is due then is too late, in epoch seconds; None: never."""
    if options.expires_at is not None or options.expires_in is None:
        return options.expires_at
    return due + options.expires_in


def _queue_option(value: Any, where: str) -> str:
    try:
        return check_queue_name(value)
    except ValueError as error:
        raise ValueError(f"{where}: queue = {value!r:.80}: {error}")


def _retry_option(value: Any, where: str) -> bool | int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{where}: retry = {value!r:.80}: allowed is True, False or a whole number from 0 up")
    return value


def _unique_option(value: Any, where: str) -> str | None:
    return check_unique(value, where)


def check_unique(value: Any, where: str) -> str | None:
    """A mode of uniqueness, or None.

    Raises:
        ValueError: there is no such mode.
    """
    if value is not None and value not in MODES:
        modes = " or ".join(repr(mode) for mode in MODES)
        raise ValueError(f"{where}: unique = {value!r:.80}: allowed is {modes}, or None")
    return cast("str | None", value)


def _timeout_option(value: Any, where: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise ValueError(f"{where}: timeout = {value!r:.80}: allowed are seconds above 0, a timedelta, or None")
    return float(seconds)


def _expires_in_option(value: Any, where: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise ValueError(f"{where}: expires_in = {value!r:.80}: allowed are seconds above 0, a timedelta, or None")
    return float(seconds)


def _expires_at_option(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        when = due_at(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: expires_at = {value!r:.80}: {error}")
    if not 0 < when < END_OF_TIME:
        raise ValueError(f"{where}: expires_at = {value!r:.80}: allowed are epoch seconds above 0 (no milliseconds)")
    return when


def _status_option(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{where}: status = {value!r:.80}: allowed is True or False")
    return value


def _redact_option(value: Any, where: str) -> tuple[str | int, ...]:
    if not isinstance(value, list | tuple) or not all(_names_an_argument(each) for each in value):
        raise TypeError(f"{where}: redact = {value!r:.80}: allowed is a list of names of parameters, or positions")
    return tuple(value)


def _names_an_argument(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _tags_option(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(tag, str) for tag in value):
        raise TypeError(f"{where}: tags = {value!r:.80}: allowed is a list of texts")
    return tuple(payloads.check_json(list(value), "tags"))


def _meta_option(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{where}: meta = {value!r:.80}: allowed is a dict of JSON")
    return cast(dict[str, Any], payloads.check_json(value, "meta"))


_OPTION_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "queue": _queue_option,
    "retry": _retry_option,
    "unique": _unique_option,
    "timeout": _timeout_option,
    "expires_in": _expires_in_option,
    "expires_at": _expires_at_option,
    "status": _status_option,
    "redact": _redact_option,
    "tags": _tags_option,
    "meta": _meta_option,
}


@dataclass(frozen=True)
class Call:
    """One call of a job, bound and checked, not yet enqueued: what `Job.call` makes and `enqueue_many` takes."""

    job: Job[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


class Job(Generic[P, R]):
    """A function that can be called, and enqueued to be called in a worker. Made by `@app.job`."""

    def __init__(self, app: App, function: Callable[P, R], name: str, options: Options) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self._signature = _signature_of(function)
        self._family: _Family = _Family()
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it were not decorated."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def queue(self) -> str:
        return self.options.queue or payloads.DEFAULT_QUEUE

    def using(self, **options: Unpack[JobOptions]) -> Job[P, R]:
        """The same job with other options, for one call or to keep.

        Raises:
            TypeError, ValueError: an option is unknown or its value is not allowed.
        """
        twin: Job[P, R] = Job.__new__(Job)
        twin.__dict__.update(self.__dict__)
        twin.options = check_options(self.options, dict(options), f"{self.name}.using")
        twin.places(twin.options.redact)
        return twin

    def places(self, redact: Sequence[str | int]) -> list[int | str]:
        """Where the parameters that `redact` names stand in a payload.

        Raises:
            ValueError: the function has no such parameter.
        """
        return masked_places(self._signature, redact, self.name)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Bind and check a call for `enqueue_many`.

        Raises:
            TypeError: the arguments do not fit the function, or are not JSON; the text has the path.
        """
        return Call(self, *self._bind(args, kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Put the job on its queue.

        Returns:
            The job's id; None where nothing was pushed: it is a duplicate of a unique job, or a client middleware
            stopped it.

        Raises:
            TypeError: the arguments do not fit the function, or are not JSON; the text has the path.
            ValueError: the job is larger than the setting `max_payload`.
            PushUnknown: the push was sent but not answered.
            redis.exceptions.RedisError: the server refused or was not there; nothing was pushed.
        """
        return self.app.send(self._build(args, kwargs, None))

    def enqueue_in(self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Enqueue the job after a delay: seconds or a timedelta. Returns and raises as `enqueue`."""
        return self.app.send(self._build(args, kwargs, due_in(delay)))

    def enqueue_at(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Enqueue the job at a time: an aware datetime or epoch seconds. Returns and raises as `enqueue`."""
        return self.app.send(self._build(args, kwargs, due_at(when)))

    def enqueue_many(self, calls: Iterable[tuple[Any, ...] | Call]) -> list[str | None]:
        """Enqueue many calls in few round trips.

        Args:
            calls: tuples of positional arguments, or what `call` made.

        Returns:
            The ids, in order.

        Raises:
            As `enqueue`; nothing is sent before all calls are checked.
        """
        return self.app.send_many([self._build_call(call) for call in calls])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """`enqueue` for a running event loop."""
        return await self.app.asend(self._build(args, kwargs, None))

    async def aenqueue_in(self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """`enqueue_in` for a running event loop."""
        return await self.app.asend(self._build(args, kwargs, due_in(delay)))

    async def aenqueue_at(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """`enqueue_at` for a running event loop."""
        return await self.app.asend(self._build(args, kwargs, due_at(when)))

    async def aenqueue_many(self, calls: Iterable[tuple[Any, ...] | Call]) -> list[str | None]:
        """`enqueue_many` for a running event loop."""
        return await self.app.asend_many([self._build_call(call) for call in calls])

    def retry_in(self, hook: H) -> H:
        """Decorator: `hook(attempt, error, job)` says when a failed run is tried again.

        It answers seconds from 0 up, None (the usual back-off), BURY (to dead) or DISCARD, and is asked after every
        failure but the last. An answer of another kind, or an error in the hook, counts as None and is logged.
        """
        if is_async(hook):
            raise TypeError(f"the retry_in hook of {self.name} must be a plain function, not async")
        self._family.retry_hook = hook
        return hook

    def on_death(self, hook: D) -> D:
        """Decorator: `hook(job, error)` is called when a job of this kind is in dead, once in the fleet.

        It runs in the process that performed the job; in a short-lived one, 30 s at most, if that process died or
        the job was buried elsewhere (`error` is then a `RecordedError`). Not for discarded jobs, nor for what somebody
        does to dead entries by hand. Each hook is called on its own: one that raises is logged.

        Raises:
            TypeError: the hook is async.
        """
        self._family.death_hooks.append(check_death_hook(hook, f"the on_death hook of {self.name}"))
        return hook

    @property
    def death_hooks(self) -> list[DeathHook]:
        return self._family.death_hooks

    @property
    def retry_hook(self) -> Hook | None:
        return self._family.retry_hook

    def _build_call(self, call: tuple[Any, ...] | Call) -> PendingJob:
        if isinstance(call, Call):
            return call.job._push(call.args, call.kwargs, None)
        if not isinstance(call, tuple):
            raise TypeError(f"{self.name}.enqueue_many takes tuples of arguments or calls, not {type(call).__name__}")
        return self._build(call, {}, None)

    def _build(self, args: tuple[Any, ...], kwargs: dict[str, Any], due: float | None) -> PendingJob:
        return self._push(*self._bind(args, kwargs), due)

    def _push(self, args: list[Any], kwargs: dict[str, Any], due: float | None) -> PendingJob:
        reason = _unfit_for_workers(self)
        if reason:
            raise RuntimeError(reason)
        return self.app.build(self.name, args, kwargs, self.options, due)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}")
        return (
            [payloads.check_json(value, f"args[{index}]") for index, value in enumerate(bound.args)],
            {name: payloads.check_json(value, f"kwargs[{name!r}]") for name, value in bound.kwargs.items()},
        )


class _Family:
    """What a job and its `using(...)` twins share."""

    def __init__(self) -> None:
        self.retry_hook: Hook | None = None
        self.death_hooks: list[DeathHook] = []


def check_death_hook(hook: D, what: str) -> D:
    """A hook that is a plain function.

    Raises:
        TypeError: it is not.
    """
    if not callable(hook) or is_async(hook):
        raise TypeError(f"{what} must be a plain function (job, error), not async")
    return hook


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature, without evaluating annotations."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _unfit_for_workers(job: Job[..., Any]) -> str | None:
    if job.name.startswith("__main__."):
        return (
            f"{job.name} is defined in a script that was run as a file, so no worker could find it under that name: "
            "move it to a module, run the script with python -m, or give the job a name="
        )
    return None


def due_in(delay: Delay) -> float:
    """The epoch second that lies `delay` ahead."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a delay is a number of seconds or a timedelta, not {type(delay).__name__}")
    return time.time() + _finite(seconds, "a delay is a finite number of seconds")


def due_at(when: When) -> float:
    """A time as epoch seconds."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError("a naive datetime does not say which instant it is: give it a tzinfo")
        return when.timestamp()
    if isinstance(when, bool) or not isinstance(when, int | float):
        raise TypeError(f"a time is an aware datetime or epoch seconds, not {type(when).__name__}")
    return _finite(when, "a time is a finite number of epoch seconds")


def _finite(number: float, allowed: str) -> float:
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{allowed}, not {number!r:.40}")
    return value
