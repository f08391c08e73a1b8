"""The unit and the environment file of the systemd service. The files in `systemd/` are what these functions write."""

from __future__ import annotations

import re
from dataclasses import dataclass

STOP_MARGIN = 15
"""Seconds that systemd waits longer than a drain may take."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True)
class Service:
    """What a unit is written for.

    Attributes:
        program: absolute path of `cogworkerd`.
        environment: absolute path of the environment file; `%i` stands for the instance.
        name: of the unit, without `.service`; with an `@` at its end it is a template.
        account: the user that jobs run as; "" makes one for as long as the service runs (DynamicUser).
        user_manager: for `systemctl --user`.
        shutdown_timeout: seconds, as the daemon has it.
    """

    program: str
    environment: str
    name: str = "cogworkerd"
    account: str = ""
    user_manager: bool = False
    shutdown_timeout: float = 25.0


def check_name(name: str) -> str:
    """A unit's name without `.service`.

    Raises:
        ValueError: it is something else.
    """
    if not _NAME.fullmatch(name.removesuffix("@")):
        raise ValueError("1 to 100 letters, digits and _ . : -, with an @ behind them for a template")
    return name


def unit(service: Service) -> str:
    """The unit file."""
    what = "Background jobs (cogworkerd)" + (" for %i" if service.name.endswith("@") else "")
    parts = [_head(what, service), _process(service), _account(service), _LIMITS]
    if not service.user_manager:
        parts.append(_HARDENING)
    target = "default.target" if service.user_manager else "multi-user.target"
    return "\n".join([*parts, f"[Install]\nWantedBy={target}\n"])


def environment_file(app: str, folder: str, redis_url: str = "redis://localhost:6379/0") -> str:
    """The environment file. `app`: MODULE:APP; `folder`: first on the import path."""
    return f"""# The application, and the folder that it is imported from.
APP={app}
APP_DIR={folder}

# Every setting is a variable: COGWORKERD_<NAME>. `cogworkerd check` shows all of them and where each comes from.
# Keep this file readable by root only if the URL holds a password. Better still is a credential, in a drop-in:
#   LoadCredential=redis_url:/etc/cogworkerd/redis_url
#   Environment=COGWORKERD_REDIS_URL_FILE=%d/redis_url
COGWORKERD_REDIS_URL={redis_url}
#COGWORKERD_CONCURRENCY=10
#COGWORKERD_QUEUES=mail,3 default
"""


def _head(what: str, service: Service) -> str:
    # A user's manager knows nothing of the system's units.
    after = (
        "" if service.user_manager else "\n# Ordering counts at a stop, too: jobs are drained while the server is up."
    )
    units = (
        ""
        if service.user_manager
        else (
            " Not Requires=: a restart of the server\n# must not restart the daemon, which waits for it.\n"
            "After=network.target redis-server.service redis.service valkey.service"
        )
    )
    return f"""[Unit]
Description={what}{after}{units}
# A daemon that crashes again and again ends as failed, where it is seen.
StartLimitIntervalSec=60
StartLimitBurst=5
"""


def _process(service: Service) -> str:
    stop = int(service.shutdown_timeout) + STOP_MARGIN
    return f"""[Service]
# Active when every slot has said hello; systemctl status shows how many are busy. Only the supervisor speaks.
Type=notify
NotifyAccess=main
EnvironmentFile={service.environment}
ExecStart={service.program} run ${{APP}} --app-dir ${{APP_DIR}}
# The new code is tried first; a broken one leaves the service as it is, and the journal has the reason. Else the
# supervisor becomes it, MainPID stays, and children are replaced one by one: running jobs go on.
ExecReload=/bin/kill -USR2 $MAINPID
# The stack of a supervisor that hangs, when the watchdog ends it; fewer arenas for the allocator; lines as they come.
Environment=PYTHONFAULTHANDLER=1 MALLOC_ARENA_MAX=2 PYTHONUNBUFFERED=1
# TERM goes to the supervisor alone, which drains; what is left after it is killed. No ExecStop: it would be a second
# TERM, which ends the drain.
KillMode=mixed
KillSignal=SIGTERM
# Longer than shutdown_timeout ({service.shutdown_timeout:g} s); the daemon asks for more if it is set higher.
TimeoutStopSec={stop}
TimeoutStartSec=60
# A supervisor that does not turn its loop is restarted.
WatchdogSec=30
TimeoutAbortSec=15
# Not always: that would undo a stop by signal or by cogworkerd stop. 78 is a wrong configuration: no restart heals it.
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=78
"""


def _account(service: Service) -> str:
    if service.user_manager:
        return ""
    if service.account:
        return f"# Jobs run as this user.\nUser={service.account}\nUMask=0077\n"
    return """\
# A user of its own, for as long as the service runs; data that is to stay goes to /var/lib/cogworkerd. Jobs that
# share files with other programs need User= instead.
DynamicUser=yes
StateDirectory=cogworkerd
UMask=0077
"""


_LIMITS = """\
# A job that is out of memory loses its process, not the service: the supervisor counts it and starts another. Set the
# wall for all of them together here, or in a drop-in.
OOMPolicy=continue
#MemoryMax=2G
TasksMax=1024
LimitNOFILE=8192
SyslogIdentifier=cogworkerd
"""

_HARDENING = """\
# Jobs need none of these. Where one does, take the line back in a drop-in: systemctl edit.
NoNewPrivileges=yes
CapabilityBoundingSet=
# The file system is read-only but for StateDirectory and /tmp; more: ReadWritePaths=.
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Left out on purpose: MemoryDenyWriteExecute (compilers at run time, callbacks of ctypes), ProtectProc and ProcSubset
# (psutil), PrivateUsers, PrivateNetwork.
"""
