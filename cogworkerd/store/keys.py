"""The name of every key, in one place."""

from __future__ import annotations

import time

# Lifetimes in seconds.
PRESENCE_TTL = 60
ORPHANINGS_TTL = 604_800
LIVE_QUEUES_TTL = 86_400
QUARANTINE_TTL = 2_592_000
SLOT_LOCK_TTL = 20
SLOT_RECEIPTS_TTL = 3600
SLOT_RECEIPTS = 64
DAILY_TTL = 34_560_000
REPLY_TTL = 60
CURSOR_TTL = 604_800

_SUSPECTS = "x:suspects:"

LIVE_WITHIN = 120
"""Seconds within which a live process has said that it reads a queue."""


PERIODIC_LIVE_WITHIN = 180
"""Seconds within which a live daemon has said that it declares a periodic entry."""


class Keys:
    """The keys of one namespace.

    Args:
        namespace: prefix of every key, without its colon; "" is the wire format that other programs share.
    """

    def __init__(self, namespace: str = "") -> None:
        self.prefix = f"{namespace}:" if namespace else ""
        base = f"{self.prefix}cogworker:"
        self._base = base
        self.queues = f"{base}queues"
        self.live_queues = f"{base}live_queues"
        self.paused_queues = f"{base}paused_queues"
        self.schedule = f"{base}schedule"
        self.retry = f"{base}retry"
        self.dead = f"{base}dead"
        self.inprogress_identities = f"{base}inprogress_identities"
        self.last_beat = f"{base}last_beat"
        self.repeat_orphans = f"{base}repeat_orphans"
        self.unsettled = f"{base}unsettled"
        self.quarantined_records = f"{base}quarantine:{self.unsettled}:records"
        self.processes = f"{base}processes"
        self.processed = f"{base}stats:processed"
        self.failed = f"{base}stats:failed"
        self.recovery_lease = f"{base}x:recovery"
        self.raw_burials = f"{base}x:raw_burials"
        self.wards = f"{base}x:wards"
        self.periodic_schedule = f"{self.prefix}periodic:schedule"
        self.periodic_live = f"{base}x:periodic_live"
        self.periodic_disabled = f"{self.prefix}periodic:disabled"

    def queue(self, name: str) -> str:
        return f"{self._base}queue:{name}"

    def inprogress(self, identity: str) -> str:
        return f"{self._base}inprogress:{identity}"

    @property
    def nothing(self) -> str:
        """A list that nobody ever writes: a wait on it is a wait that CLIENT UNBLOCK can end."""
        return f"{self._base}x:nothing"

    def look(self, identity: str) -> str:
        """The number of the newest look at the list of this identity."""
        return f"{self._base}x:look:{identity}"

    def orphanings(self, jid: str) -> str:
        return f"{self._base}orphanings:{jid}"

    def process(self, identity: str) -> str:
        return f"{self._base}process:{identity}"

    def signal(self, identity: str) -> str:
        """The channel by which a daemon takes orders. Channels know no database number."""
        return f"{self._base}signal:{identity}"

    def workers(self, identity: str) -> str:
        return f"{self._base}workers:{identity}"

    def throughput(self, now: float) -> str:
        return f"{self._base}throughput:{int(now) // 3600}"

    def attempts(self, jid: str) -> str:
        return f"{self._base}job_attempts:{jid}"

    def history(self, which: str) -> str:
        """`which`: all, success or failed."""
        return f"{self._base}history:{which}"

    def history_of_day(self, now: float) -> str:
        return f"{self._base}history:daily:{time.strftime('%Y-%m-%d', time.gmtime(now))}"

    def status(self, jid: str) -> str:
        return f"{self.prefix}status:{jid}"

    def cost_of_day(self, now: float) -> str:
        """The sums of the receipts of one day (UTC), by job."""
        return f"{self._base}x:cost:{time.strftime('%Y-%m-%d', time.gmtime(now))}"

    def cursor(self, jid: str) -> str:
        """Where a job that is to be resumed goes on."""
        return f"{self._base}x:cursor:{jid}"

    def reply(self, request: str) -> str:
        """Where a daemon answers a request that came by its channel."""
        return f"{self._base}x:reply:{request}"

    def quarantine(self, key: str, suffix: str) -> str:
        """Where a key of ours goes that holds another type."""
        return f"{self._base}quarantine:{key}:{suffix}"

    def unique(self, digest: str) -> str:
        return f"{self._base}unique:{digest}"

    def periodic_last_slot(self, pjid: str) -> str:
        return f"{self.prefix}periodic:last_slot:{pjid}"

    def periodic_lock(self, pjid: str, slot: int) -> str:
        return f"{self.prefix}periodic:lock:{pjid}:{slot}"

    def periodic_seen(self, pjid: str) -> str:
        """The newest slot that is done with although it was not fired."""
        return f"{self._base}x:periodic_seen:{pjid}"

    def periodic_fired(self, pjid: str) -> str:
        """The receipt of the slot that each daemon fired last."""
        return f"{self._base}x:periodic_fired:{pjid}"

    def periodic_reservation(self, pjid: str) -> str:
        """Held by the daemon whose client middleware looks at a slot."""
        return f"{self._base}x:periodic_reservation:{pjid}"

    def periodic_running(self, pjid: str) -> str:
        return f"{self.prefix}periodic:running:{pjid}"


def suspects_of(queue: str) -> str:
    """The queue where jobs of a queue wait to be run alone: their daemon died while they ran."""
    return f"{_SUSPECTS}{queue}"


def origin_of(queue: str) -> str:
    """The queue that a queue of suspects is for; any other queue is its own."""
    return queue.removeprefix(_SUSPECTS)
