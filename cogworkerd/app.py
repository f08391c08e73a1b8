"""App: the registry of jobs, settings and hooks."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload
from zoneinfo import ZoneInfo

from cogworkerd import payload as payloads
from cogworkerd.client import Client, Push
from cogworkerd.context import JobContext
from cogworkerd.expiry import EXPIRES_AT
from cogworkerd.job import (
    Call,
    D,
    DeathHook,
    Job,
    JobOptions,
    Options,
    check_death_hook,
    check_options,
    due_at,
    due_in,
    expires_at_of,
    payload_fields,
)
from cogworkerd.locks import JobLocks, Locks
from cogworkerd.middleware import Chain, Middleware, PendingJob, is_async
from cogworkerd.settings import APP_LAYER, Layer, Settings, combine, did_you_mean, environment_layers
from cogworkerd.status import JobStatus, queued_fields, read_statuses
from cogworkerd.store.keys import Keys
from cogworkerd.store.scripts import StatusWrite

if TYPE_CHECKING:
    from cogworkerd.jobsets import Store
    from cogworkerd.periodic import Declaration

P = ParamSpec("P")
R = TypeVar("R")
ChildHook = Callable[[], None]
C = TypeVar("C", bound=ChildHook)
M = TypeVar("M", bound=Middleware[Any])
F = TypeVar("F", bound=Callable[..., Any])


class PeriodicOptions(TypedDict, total=False):
    """What `app.periodic(...)` takes.

    args, kwargs: of the job, JSON. queue, retry: default those of the job; of a name that is not registered here:
    "default" and none. unique: "until_executed": no slot fires while a run of the entry waits or is at work. tz: the
    time zone of the fields, by name or as a ZoneInfo; default UTC. catch_up: after a downtime the "latest" missed slot
    is fired (the default, see the setting periodic_catch_up), or "none", or "first": as "latest", and an entry that the
    server has never seen fires its latest slot at once. jitter: seconds over which the instants are spread.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue: str
    retry: bool | int
    unique: Literal["until_executed"] | None
    tz: str | ZoneInfo
    catch_up: Literal["latest", "none", "first"] | None
    jitter: float | timedelta


PERIODIC_NAMES = tuple(PeriodicOptions.__annotations__)


class App:
    """An application's jobs and settings.

    Args:
        redis_url: the server; a client looks at this and at the environment (COGWORKERD_REDIS_URL,
            COGWORKERD_REDIS_URL_FILE, REDIS_URL) only. The environment wins.
        imports: further modules that hold jobs, imported by the daemon and by `cogworkerd check`, never by a client.
        settings: any setting of the README's table by its name.

    Raises:
        SettingsError: a setting is unknown or its value is not allowed.
    """

    def __init__(self, redis_url: str | None = None, *, imports: Sequence[str] = (), **settings: Any) -> None:
        given = dict(settings)
        if redis_url is not None:
            given["redis_url"] = redis_url
        self.layer = Layer(APP_LAYER, given)
        combine(self.layer)  # a mistake is an error where it stands
        self.imports = tuple(imports)
        self.jobs: dict[str, Job[..., Any]] = {}
        self.start_hooks: list[ChildHook] = []
        self.stop_hooks: list[ChildHook] = []
        self.death_hooks: list[DeathHook] = []
        self.declarations: list[Declaration] = []
        self.client_chain: Chain[PendingJob] = Chain("client_middleware")
        self.server_chain: Chain[JobContext] = Chain("server_middleware")
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._store: Store | None = None
        self._settings: Settings | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...

    @overload
    def job(
        self, function: None = None, /, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> Callable[[Callable[P, R]], Job[P, R]]: ...

    def job(self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Decorator: register a function, plain or async, as a job.

        Args:
            name: the job's name on the wire; default `<module>.<qualified name>`.
            options: queue, retry, timeout, expires_in, unique, status, redact, tags, meta (see `JobOptions`).

        Raises:
            TypeError, ValueError: an option is unknown or not allowed, the function cannot be found by a worker under
                a stable name, or a second job has the name.
        """
        if function is None:
            return functools.partial(self._register, name=name, options=options)
        return self._register(function, name=name, options=options)

    def _register(self, function: Callable[..., Any], *, name: str | None, options: dict[str, Any]) -> Job[..., Any]:
        name = _job_name(function) if name is None else _check_name(name)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: a generator function cannot be a job: calling it would run nothing of it")
        if name in self.jobs:
            raise ValueError(f"a second job with the name {name!r}; the first is {_place(self.jobs[name].function)}")
        job: Job[..., Any] = Job(self, function, name, check_options(Options(), options, name))
        job.places(job.options.redact)  # a name that is no parameter is an error where it stands
        self.jobs[name] = job
        return job

    @overload
    def periodic(self, cron: str, job: Job[..., Any] | str, /, **options: Unpack[PeriodicOptions]) -> None: ...

    @overload
    def periodic(self, cron: str, /, **options: Unpack[PeriodicOptions]) -> Callable[[F], F]: ...

    def periodic(self, cron: str, job: Any = None, /, **options: Any) -> Any:
        """Declare a periodic entry; without a job, a decorator of one (or of a function, which becomes a job).

        Args:
            cron: five fields, or six with the seconds last, or a macro such as @hourly; a time zone may stand behind.
            job: a job of this app, or the name of one that only another program knows.
            options: see `PeriodicOptions`.

        Raises:
            BadEntry (a ValueError): the text names entry, expression and reason.
            TypeError: an option is unknown, or the arguments do not fit the job's function.
        """
        if job is None:
            return functools.partial(self._periodic_job, cron, options)
        from cogworkerd.periodic import declare  # a client that declares nothing never needs croniter

        for name in options:
            if name not in PERIODIC_NAMES:
                raise TypeError(f"periodic({cron!r}): unknown option {name!r}{did_you_mean(name, PERIODIC_NAMES)}")
        name = job.name if isinstance(job, Job) else job
        base = job.options if isinstance(job, Job) else None
        declaration = declare(cron, name, **options, where="app.periodic", options=base)
        if isinstance(job, Job):
            try:
                job.call(*declaration.args, **declaration.kwargs)
            except TypeError as error:
                raise TypeError(f"app.periodic: periodic entry {name!r} ({cron!r}): {error}")
        self.declarations.append(declaration)

    def _periodic_job(self, cron: str, options: dict[str, Any], function: Any) -> Any:
        job = function if isinstance(function, Job) else self.job(function)
        self.periodic(cron, job, **options)
        return job

    @property
    def queues(self) -> list[str]:
        """ "default" and every queue that a registered job names: what a daemon reads unless told otherwise."""
        names = {job.queue for job in self.jobs.values()}
        declared = (*self.declarations, *((self._settings and self._settings.periodic) or ()))
        ours = [entry for entry in declared if entry.job in self.jobs]
        names |= {queue for entry in ours if (queue := entry.queue or (entry.options and entry.options.queue))}
        return [payloads.DEFAULT_QUEUE, *sorted(names - {payloads.DEFAULT_QUEUE})]

    def push(
        self,
        name: str,
        args: Sequence[Any] = (),
        *,
        kwargs: Mapping[str, Any] | None = None,
        delay: Any = None,
        at: Any = None,
        **options: Unpack[JobOptions],
    ) -> str | None:
        """Enqueue a job by its name, also one that only another program knows.

        Args:
            name: what the worker knows it by.
            args: positional arguments, JSON.
            kwargs: keyword arguments, JSON; only Python workers know them.
            delay: seconds or a timedelta; at: an aware datetime or epoch seconds; at most one of them.
            options: as for `@app.job`; for a job of this app its own options are the defaults.

        Returns and raises as `Job.enqueue`.
        """
        return self.send(self._named(name, args, kwargs, delay, at, dict(options)))

    async def apush(
        self,
        name: str,
        args: Sequence[Any] = (),
        *,
        kwargs: Mapping[str, Any] | None = None,
        delay: Any = None,
        at: Any = None,
        **options: Unpack[JobOptions],
    ) -> str | None:
        """`push` for a running event loop."""
        return await self.asend(self._named(name, args, kwargs, delay, at, dict(options)))

    def enqueue_many(self, calls: Iterable[Call]) -> list[str | None]:
        """Enqueue calls of several jobs in few round trips. Returns the ids, in order; raises as `Job.enqueue`."""
        return self.send_many([self._checked_call(call) for call in calls])

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[str | None]:
        """`enqueue_many` for a running event loop."""
        return await self.asend_many([self._checked_call(call) for call in calls])

    @staticmethod
    def _checked_call(call: Call) -> PendingJob:
        if not isinstance(call, Call):
            raise TypeError(f"app.enqueue_many takes what job.call(...) makes, not {type(call).__name__}")
        return call.job._build_call(call)

    def status(self, jid: str) -> JobStatus | None:
        """The status of a job (`status=True`, or a job that calls `progress` or `store`, or that has failed).

        Returns:
            None where there is none: the job did not ask, or its last change is older than `status_ttl`.

        Raises:
            redis.exceptions.RedisError: the server is away.
        """
        return self.statuses([jid])[jid]

    def statuses(self, jids: Iterable[str]) -> dict[str, JobStatus | None]:
        """The statuses of many jobs, 500 in one round trip."""
        from cogworkerd.jobsets import Store  # which needs this module

        if self._store is None:
            self._store = Store.of(self)
        return read_statuses(self._store, jids)

    def on_child_start(self, hook: C) -> C:
        """Decorator: called in each child after the fork, before its first job: open pools here.

        A hook that raises is a failed start of the child.
        """
        self.start_hooks.append(_plain(hook, "on_child_start"))
        return hook

    def on_child_stop(self, hook: C) -> C:
        """Decorator: called in each child before it leaves, for 2 s at most: flush here (atexit does not run)."""
        self.stop_hooks.append(_plain(hook, "on_child_stop"))
        return hook

    def client_middleware(self, middleware: M) -> M:
        """Decorator: a function `(job, call_next)` around each push of this app, periodic ones included.

        `job` is a `PendingJob` that may be changed; without `call_next()` nothing is pushed, and `enqueue` returns
        None. `call_next()` returns None when the job is pushed; within `enqueue_many` the jobs are pushed together
        after the chain has run for each of them. The first one registered is the outermost.

        Raises:
            TypeError: it is async, or does not take two arguments.
        """
        self.client_chain.add(middleware)
        return middleware

    def server_middleware(self, middleware: M) -> M:
        """Decorator: a function `(job, call_next)` around each run, also of a job that is not registered here.

        `job` is what `current_job()` gives. `call_next()` returns None when the job is over (an async one has then run
        to its end, in the same context variables) and raises what it raised. A middleware that does not call it, or
        swallows the error, makes the run a success. The first one registered is the outermost.

        Raises:
            TypeError: it is async, or does not take two arguments.
        """
        self.server_chain.add(middleware)
        return middleware

    def on_death(self, hook: D) -> D:
        """Decorator: `hook(job, error)` is called when any job of this app is in dead. See `Job.on_death`."""
        self.death_hooks.append(check_death_hook(hook, "on_death"))
        return hook

    def death_hooks_of(self, name: str) -> list[DeathHook]:
        """The hooks for a job of this name: its own, then those for all jobs."""
        job = self.jobs.get(name)
        return [*(job.death_hooks if job is not None else ()), *self.death_hooks]

    @property
    def settings(self) -> Settings:
        """The settings that a client sees: App(...) and the environment."""
        if self._settings is None:
            self._settings = combine(self.layer, *_client_layers(environment_layers())).settings
        return self._settings

    @property
    def client(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self.settings.server(), Keys(self.settings.namespace))
            return self._client

    @property
    def locks(self) -> Locks:
        """The rules for the locks of jobs that this app pushes."""
        return self.settings.locks(Keys(self.settings.namespace))

    def use(self, settings: Settings) -> None:
        """Make the daemon's settings those of this app's own pushes."""
        with self._lock:
            self._settings, self._client, self._store = settings, None, None

    def build(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, due: float | None
    ) -> PendingJob:
        """A job that is ready to be sent. `args` and `kwargs` are checked JSON; `due` in epoch seconds."""
        now = time.time()
        queue = options.queue or payloads.DEFAULT_QUEUE
        payload: dict[str, Any] = {
            "class": name,
            "args": args,
            "queue": queue,
            "jid": payloads.new_jid(),
            "retry": options.retry,
            "created_at": now,
        }
        if kwargs:
            payload["kwargs"] = kwargs
        payload.update(payload_fields(options, self.jobs.get(name)))
        expires_at = expires_at_of(options, now if due is None else due)
        if expires_at is not None:
            payload[EXPIRES_AT] = expires_at
        if due is not None and due > now:
            payload["at"] = due
        else:
            due = None
            payload["enqueued_at"] = now
        return PendingJob(payload, due)

    def push_of(self, pending: PendingJob) -> Push:
        """A job in the form in which it is sent.

        Raises:
            ValueError: it is larger than the setting `max_payload`.
        """
        payload = pending.payload
        raw = payloads.dump(payload)
        limit = self.settings.max_payload
        if len(raw) > limit:
            raise ValueError(
                f"{payload['class']}: the job has {len(raw)} bytes, more than max_payload = {limit}: "
                "store the data elsewhere and pass a reference to it"
            )
        return Push(
            payload["jid"], payload["queue"], raw, pending.due, self._unique_lock(pending), self._status(payload)
        )

    def _status(self, payload: Mapping[str, Any]) -> StatusWrite | None:
        if payload.get("status") is not True:
            return None
        settings = self.settings
        key = Keys(settings.namespace).status(payload["jid"])
        return StatusWrite(key, math.ceil(settings.status_ttl), tuple(queued_fields(payload, time.time())))

    def _unique_lock(self, pending: PendingJob) -> JobLocks | None:
        if "unique" not in pending.payload:
            return None
        locks = self.locks
        key = locks.unique(pending.payload, payloads.DEFAULT_QUEUE)
        if key is None:
            return None
        wait = 0.0 if pending.due is None else pending.due - time.time()
        return JobLocks(pending.jid, (key,), ttl=locks.waiting_ttl(wait))

    def send(self, pending: PendingJob) -> str | None:
        """Push one job, through the client middleware. Returns and raises as `Job.enqueue`."""
        if not self.client_chain:
            return self._sent([self.push_of(pending)])[0]
        jid: str | None = None

        def push() -> None:
            nonlocal jid
            pending.check()
            jid = self._sent([self.push_of(pending)])[0]

        self.client_chain.run(pending, push)
        return jid

    def send_many(self, pending: Sequence[PendingJob]) -> list[str | None]:
        """Push many jobs, each through the client middleware, then all of them together."""
        if not self.client_chain:
            return self._sent([self.push_of(job) for job in pending])
        passed: dict[int, Push] = {}
        for index, job in enumerate(pending):
            self.client_chain.run(job, functools.partial(self._collect, passed, index, job))
        jids = dict(zip(passed, self._sent(list(passed.values())), strict=True))
        return [jids.get(index) for index in range(len(pending))]

    def _collect(self, passed: dict[int, Push], index: int, job: PendingJob) -> None:
        job.check()
        passed[index] = self.push_of(job)

    def _sent(self, pushes: Sequence[Push]) -> list[str | None]:
        duplicates = self.client.push(pushes)
        return [None if push.jid in duplicates else push.jid for push in pushes]

    async def asend(self, pending: PendingJob) -> str | None:
        """`send` for a running event loop; client middleware, which is not async, runs in a thread."""
        if self.client_chain:
            return await asyncio.to_thread(self.send, pending)
        return (await self._asent([self.push_of(pending)]))[0]

    async def asend_many(self, pending: Sequence[PendingJob]) -> list[str | None]:
        """`send_many` for a running event loop."""
        if self.client_chain:
            return await asyncio.to_thread(self.send_many, pending)
        return await self._asent([self.push_of(job) for job in pending])

    async def _asent(self, pushes: Sequence[Push]) -> list[str | None]:
        duplicates = await self.client.apush(pushes)
        return [None if push.jid in duplicates else push.jid for push in pushes]

    def _named(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        delay: Any,
        at: Any,
        options: dict[str, Any],
    ) -> PendingJob:
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise TypeError(f"push({name!r}): args is a list of arguments, not {type(args).__name__}")
        if delay is not None and at is not None:
            raise TypeError(f"push({name!r}): give delay or at, not both")
        due = due_in(delay) if delay is not None else due_at(at) if at is not None else None
        known = self.jobs.get(name)
        base = known.options if known else Options()
        checked = payloads.check_json(list(args), "args")
        checked_kwargs = payloads.check_json(dict(kwargs or {}), "kwargs")
        return self.build(_check_name(name), checked, checked_kwargs, check_options(base, options, name), due)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._client is not None:
            self._client.after_fork()


def _client_layers(layers: list[Layer]) -> list[Layer]:
    """Only what a client needs: a daemon's variables in the environment are none of its business."""
    wanted = ("redis_url", "namespace", "max_payload", "unique_lock_ttl", "status_ttl")
    return [layer for layer in layers if next(iter(layer.values)) in wanted]


def _plain(hook: C, kind: str) -> C:
    if is_async(hook):
        raise TypeError(f"{kind} takes a plain function, not an async one")
    return hook


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise ValueError(f"a job's name is a printable text of 1 to 200 characters, not {name!r:.80}")
    return name


def _job_name(function: Callable[..., Any]) -> str:
    qualified = getattr(function, "__qualname__", None)
    if not isinstance(qualified, str):
        raise TypeError(f"@app.job takes a function, not {type(function).__name__}")
    if "<lambda>" in qualified or "<locals>" in qualified:
        raise ValueError(f"{qualified}: no worker can find it under a stable name; move it to the top of a module")
    if "." in qualified:
        raise ValueError(f"{qualified}: a method cannot be a job (which self?); use a function at the top of a module")
    module = function.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name.removesuffix(".__main__") if spec is not None else module
    return _check_name(f"{module}.{qualified}")


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"at {code.co_filename}:{code.co_firstlineno}" if code else repr(function)
