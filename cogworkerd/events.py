"""Every event that the daemon logs: its name, its level, its fields and what it means. The one list of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A happening. Code passes values for `fields`, all or some of them, and nothing else."""

    name: str
    level: str
    meaning: str
    fields: tuple[str, ...] = ()


def _event(name: str, level: str, meaning: str, *fields: str) -> Event:
    event = Event(name, level, meaning, fields)
    ALL[name] = event
    return event


ALL: dict[str, Event] = {}
JOB_FIELDS = ("jid", "job", "queue", "attempt")

DAEMON_START = _event(
    "daemon.start",
    "info",
    "what was started",
    "version",
    "app",
    "server",
    "server_version",
    "queues",
    "slots",
    "slots_by",
    "jobs",
    "cron_entries",
    "url",
)
SETTINGS_WARNING = _event("settings.warning", "warning", "a setting that works but should not stay", "text")
DAEMON_READY = _event("daemon.ready", "info", "every slot has said hello", "identity", "slots", "queues")
DAEMON_WAITING = _event("daemon.waiting", "warning", "the first beat has not succeeded", "server", "error")
DAEMON_QUIET = _event("daemon.quiet", "info", "fetching stopped; what runs goes on")
DAEMON_RESUMED = _event("daemon.resumed", "info", "fetching again")
DAEMON_STOPPING = _event("daemon.stopping", "info", "told to stop", "signal", "busy", "timeout")
DAEMON_STOPPED = _event("daemon.stopped", "info", "everything is settled or handed back", "requeued", "kept")
DAEMON_CRASHED = _event("daemon.crashed", "error", "a fault of cogworkerd itself; the daemon ends", "task")
DAEMON_REGISTERED_ANEW = _event(
    "daemon.registered_anew", "warning", "was cut off for longer than its presence lasts", "was_registered"
)
REMOTE_ORDER = _event("remote.order", "info", "an order came by the daemon's channel", "order")
REMOTE_UNKNOWN = _event("remote.unknown", "warning", "something else came by the daemon's channel", "order")
REMOTE_REFUSED = _event(
    "remote.refused", "warning", "the server does not let this user listen for orders; signals work", "error"
)
ROLL_STARTED = _event("roll.started", "info", "children are replaced one by one", "signal")
ROLL_DONE = _event("roll.done", "info", "every child was replaced")
WARD_OPENED = _event(
    "ward.opened", "info", "jobs whose daemon died are run one at a time, by a daemon of their own", "ward", "suspects"
)
WARD_CLOSED = _event("ward.closed", "info", "that daemon has ended", "ward", "status")
WARD_FAILED = _event("ward.failed", "error", "that daemon could not be started", "error")
RENEWAL_STARTED = _event("renewal.started", "info", "new code is tried in a process of its own", "signal")
RENEWAL_REFUSED = _event("renewal.refused", "error", "the new code cannot follow; all stays as it was", "reason")
RENEWAL_FAILED = _event("renewal.failed", "error", "the new program could not be started; all stays as it was", "error")
RENEWAL_WITHOUT_APP = _event(
    "renewal.without_app", "error", "the new code was fit, and cannot be imported now: each child tries it", "reason"
)
RENEWAL_IMPOSSIBLE = _event(
    "renewal.impossible", "warning", "this system cannot hand a supervisor over: with preload on the code stays"
)
RENEWAL_DONE = _event(
    "renewal.done", "info", "the new program has taken the children over", "version", "python", "slots", "adopted"
)
PRELOAD_THREADS = _event(
    "preload.threads", "warning", "importing the app left threads running; starting anew with preload off", "threads"
)
QUEUE_NOT_READ = _event("queue.not_read", "warning", "these jobs go to queues that are not read here", "jobs")
QUEUE_UNREAD = _event("queue.unread", "warning", "a job went back to a queue that no live daemon reads", "queue")
FETCH_BASIC = _event(
    "fetch.basic", "warning", "reliable fetch is not to be had here; a job is lost if this daemon dies", "reason"
)
SERVER_EVICTS = _event("server.evicts", "warning", "the server may evict jobs; use noeviction", "policy")

JOB_START = _event("job.start", "debug", "a job begins")
RECEIPT_FIELDS = (
    *("seconds", "cpu_user", "cpu_system", "rss_peak_kb", "rss_growth_kb", "switches", "preempted", "wait"),
)
JOB_DONE = _event("job.done", "info", "a job ended well", *RECEIPT_FIELDS)
JOB_FAILED = _event(
    "job.failed", "warning", "a job raised and will be tried again", *RECEIPT_FIELDS, "error", "message", "retry_at"
)
JOB_DEAD = _event("job.dead", "error", "a job is in dead", *RECEIPT_FIELDS, "error", "message")
JOB_DISCARDED = _event(
    "job.discarded", "warning", "a failed job was dropped, as it was decided", *RECEIPT_FIELDS, "error", "message"
)
JOB_EXPIRED = _event("job.expired", "warning", "a job came too late and was dropped", "late")
JOB_REQUEUED = _event("job.requeued", "info", "a job left early and is back on its queue", *RECEIPT_FIELDS, "reason")
RECORD_FAILED = _event(
    "record.failed", "error", "a fault in writing down what ran; the job is not touched by it", "jid"
)
RECORD_DROPPED = _event(
    "record.dropped", "warning", "runs were not written down: the server was away for too long", "count"
)
JOB_UNPARSEABLE = _event("job.unparseable", "error", "bytes that are not a job went to dead", "queue", "reason")
JOB_HOOK_FAILED = _event("job.hook_failed", "error", "a retry_in hook raised or answered nonsense", "error", "message")
DEATH_HOOK_FAILED = _event("death_hook.failed", "error", "a death hook raised", "hook", "error", "message")
DEATH_HOOK_LOST = _event("death_hook.lost", "error", "a death hook did not come to its end", "jid", "job", "reason")
ERRAND_FAILED = _event("errand.failed", "error", "code of the app failed in a process of its own", "errand", "reason")
JOB_FORKED = _event("job.forked", "warning", "a job left a forked copy of itself behind; the copy ends", "copy")
JOB_INTERRUPTED = _event(
    "job.interrupted",
    "warning",
    "a running job is told to end; it is killed if it has not when the grace is over",
    "slot",
    "jid",
    "job",
    "order",
    "reason",
    "grace",
)
JOB_RETURNED = _event("job.returned", "info", "a job fetched too late went back to its queue", "jid", "queue")
JOB_ORPHANED = _event(
    "job.orphaned", "warning", "a job lost its process", "jid", "job", "queue", "blame", "result", "reason"
)
JOB_STRAY = _event("job.stray", "warning", "a job that no child holds was requeued", "jid", "queue", "result")
JOB_BURIED = _event("job.buried", "error", "a job that ran in too many daemons that died is in dead", "jid", "set")
DEAD_TRIMMED = _event("dead.trimmed", "warning", "the oldest dead jobs went, by dead_max", "count", "most")
JOB_VANISHED = _event(
    "job.vanished", "warning", "the server lost a failed job's entry; it was filed all the same", "jid", "set"
)

CHILD_STARTED = _event("child.started", "debug", "a child was forked", "slot", "child")
CHILD_RECYCLED = _event(
    "child.recycled", "info", "a child has done enough or grown too large; it is replaced", "slot", "reason"
)
CHILD_LEFT = _event("child.left", "debug", "a child left as asked", "slot", "child")
CHILD_DIED = _event(
    "child.died",
    "error",
    "a child died; the job that it held, and its stack if it could be had",
    "slot",
    "child",
    "reason",
    "rss_kb",
    "jid",
    "job",
    "frames",
    "respawn_in",
)
CHILD_KILLED = _event("child.killed", "warning", "the supervisor killed a child", "slot", "child", "why")
CHILD_HOOK_FAILED = _event("child.hook_failed", "error", "a start or stop hook of the app raised", "hook")
CHILD_BOOT_FAILED = _event("child.boot_failed", "error", "a child could not start", "slot", "reason")
CHILD_STACK = _event("child.stack", "info", "what a child is doing", "slot", "child", "phase", "jid", "frames")
FORK_FAILED = _event("fork.failed", "warning", "the system refused a new process", "slot", "error", "retry_in")
REPORT = _event("report", "debug", "a report of a child was read", "slot", "kind", "jid", "detail")

SETTLED_BY_SUPERVISOR = _event("settle.done", "info", "an outcome left by a child was settled", "jid", "result")
REDIS_AWAY = _event("redis.away", "warning", "the server is away", "site", "error")
REDIS_REFUSING = _event("redis.refusing", "warning", "the server is there and refuses", "site", "error")
REDIS_STILL = _event("redis.still_away", "warning", "the trouble goes on", "site", "failures", "seconds", "error")
REDIS_BACK = _event("redis.back", "info", "available again", "site", "failures", "seconds")
REDIS_ERROR = _event("redis.error", "error", "a command failed", "site", "error")

CRON_FIRED = _event(
    "cron.fired", "info", "a periodic slot was fired here", "pjid", "job", "cron", "slot", "jid", "late"
)
CRON_SKIPPED = _event(
    "cron.skipped", "warning", "a periodic slot was not fired", "pjid", "job", "cron", "slot", "reason"
)
CRON_MISSED = _event(
    "cron.missed",
    "warning",
    "periodic slots went by while nobody could fire them; the newest one is fired",
    "pjid",
    "job",
    "cron",
    "slot",
    "count",
)
CRON_FAILED = _event(
    "cron.failed",
    "error",
    "a periodic entry could not be fired; it is tried again",
    "pjid",
    "job",
    "cron",
    "slot",
    "reason",
    "retry_in",
)
CRON_FORGOTTEN = _event("cron.forgotten", "info", "an entry that no live daemon declares was forgotten", "pjid")

DUE_MOVED = _event("due.moved", "debug", "due jobs went to their queues", "set", "count")
DUE_BURIED = _event("due.buried", "error", "a due entry that is not a job went to dead", "set", "reason")
PARKED = _event("settle.parked", "warning", "an outcome was handed over to any live daemon", "jid", "set")
PARKED_FILED = _event("parked.filed", "info", "an outcome of a daemon that has left was filed", "jid", "set")
PARKED_UNUSABLE = _event("parked.unusable", "error", "a parked record was moved aside", "reason", "moved_to")
LOCK_DEFERRED = _event(
    "lock.deferred", "warning", "the server refused to release a lock; it is tried again", "lock", "jid", "error"
)
LOCK_LOST = _event("lock.lost", "warning", "a job at work does not hold its lock any more", "lock", "jid")
LOCK_DROPPED = _event("lock.dropped", "warning", "a lock that can never be released", "lock", "jid", "error")
KEY_QUARANTINED = _event(
    "key.quarantined", "warning", "a key of ours held another type", "key", "found", "wanted", "moved_to"
)
RECOVERY_DONE = _event(
    "recovery.done", "warning", "jobs of a dead daemon were requeued", "dead", "requeued", "repeated"
)
