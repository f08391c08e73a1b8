#!/usr/bin/env bash
# A life of the service under a real systemd. Runs as root inside a throw-away box (systemd-in-a-box.sh), with a venv
# that holds the installed wheel bound at /venv. Prints what an operator would see; the first thing that is not as it
# should be ends it with status 1.
set -euo pipefail

NAME=cogworkerd
APP_DIR=/srv/shop
CLIENT_DIR=/srv/client # has the first release for good: what enqueues does not break with the service's code
CLI=/opt/cogworkerd/bin/cogworkerd
export COGWORKERD_REDIS_URL=redis://127.0.0.1:6379/0

say() { printf '\n== %s\n' "$*"; }
fail() { echo "FAILED: $*"; systemctl status --no-pager -l $NAME || true; journalctl -u $NAME --no-pager -n 40 || true; exit 1; }
show() { systemctl show -p "$1" --value $NAME; }
until_true() { # SECONDS COMMAND...
  local limit=$((SECONDS + $1 * ${PATIENCE:-1})); shift
  until "$@"; do [ $SECONDS -lt $limit ] || fail "not within its time: $*"; sleep 0.1; done
}
is() { [ "$(show "$1")" = "$2" ]; }
status_is() { [[ "$(show StatusText)" == $1 ]]; }
list() { redis-cli --raw lrange "$1" 0 -1; }
has() { list "$1" | grep -qx -- "$2"; }
times() { list "$1" | grep -cx -- "$2" || true; }
told() { journalctl --sync; journalctl COGWORKERD_EVENT="$1" -o cat --no-pager; } # EVENT
told_times() { [ "$(told "$1" | grep -c .)" = "$2" ]; }
enqueue() { (cd $CLIENT_DIR && $CLI enqueue shop:app "$@"); }
release() { # the application, on standard input. Bytecode of the same second and size must not win
  cat > $APP_DIR/new
  touch -d "@$(($(stat -c %Y $APP_DIR/shop.py) + 10))" $APP_DIR/new
  mv $APP_DIR/new $APP_DIR/shop.py
}
new_code_is_tried() { pgrep -f cogworkerd:check >/dev/null; }
stops_within() { # SECONDS
  local begun=$SECONDS
  systemctl stop $NAME
  is ActiveState inactive && is Result success || fail "the stop was not clean: $(show Result)"
  [ $((SECONDS - begun)) -le $(($1 * ${PATIENCE:-1})) ] || fail "the stop took $((SECONDS - begun)) s"
  pgrep -f cogworkerd: && fail "processes are left"
  return 0
}
children() { pgrep -P "$(show MainPID)" -f 'cogworkerd:slot' || true; }

say "the service is installed"
cp -a /venv /opt/cogworkerd
sed -i '1s|.*|#!/opt/cogworkerd/bin/python|' $CLI
mkdir -p $APP_DIR $CLIENT_DIR
cat > $APP_DIR/shop.py <<'APP'
import os, time
import redis
from cogworkerd import App, current_job

VERSION = "one"
app = App()
book = redis.Redis.from_url("redis://127.0.0.1:6379/0")


@app.job
def sleeps(name: str, seconds: float) -> None:
    book.rpush("start", name)
    current_job().log.warning("sleeping for %s", name)
    time.sleep(seconds)
    book.rpush("end", name)
    book.rpush("version", f"{name}: {VERSION}")


@app.job
def waits(name: str) -> None:
    book.rpush("start", name)
    book.blpop(f"go {name}", 60)
    book.rpush("end", name)
    book.rpush("version", f"{name}: {VERSION}")


@app.job(retry=0)
def fails() -> None:
    raise ValueError("no luck")
APP
cp $APP_DIR/shop.py $CLIENT_DIR
systemctl start redis-server
$CLI systemd install shop:app --app-dir $APP_DIR
echo COGWORKERD_CONCURRENCY=2 >> /etc/cogworkerd/$NAME.env
mkdir -p /etc/systemd/system/$NAME.service.d
printf '[Service]\nWatchdogSec=%s\nRestartSec=300ms\n' $((3 * ${PATIENCE:-1})) > /etc/systemd/system/$NAME.service.d/short.conf
systemctl daemon-reload

say "start: active when its slots have said hello"
systemctl start $NAME
is ActiveState active || fail "it is not active"
until_true 5 status_is "0/2 busy"
told daemon.start | grep -q "jobs=3" || fail "the application was not loaded before the slots were forked"
systemctl status --no-pager $NAME
ps -o pid,ppid,user,rss,args -C cogworkerd:supe,cogworkerd:slot
systemd-cgtop -n 1 -b --depth=3 2>/dev/null | grep -E "Control|cogworkerd" || true

say "jobs: done, and found in the journal by their id"
jid=$(enqueue sleeps '["first", 0.1]')
until_true 10 has end first
enqueue fails
journalctl --sync
until_true 5 sh -c "journalctl COGWORKERD_JID=$jid -o cat | grep -q 'job.done'"
journalctl COGWORKERD_JID="$jid" --no-pager
until_true 5 sh -c "journalctl COGWORKERD_EVENT=job.dead -o json | grep -q 'ValueError: no luck'"
[ "$(journalctl COGWORKERD_EVENT=job.dead -o json | wc -l)" = 1 ] || fail "a traceback is more than one entry"
journalctl -u $NAME -p err --no-pager

say "quiet and resume"
systemctl kill -s TSTP --kill-who=main $NAME
until_true 5 status_is "0/2 busy, quiet"
enqueue sleeps '["while quiet", 0.1]' >/dev/null
sleep 1
has end "while quiet" && fail "it fetched while it was quiet"
systemctl kill -s CONT --kill-who=main $NAME
until_true 10 has end "while quiet"

say "reload: new code, with jobs under way"
pid=$(show MainPID)
before=$(children | sort)
for name in "one under way" "two under way"; do
  enqueue waits "[\"$name\"]" >/dev/null
  until_true 5 has start "$name"
done
sed 's/VERSION = "one"/VERSION = "two"/' $APP_DIR/shop.py | release
systemctl reload $NAME
systemctl is-active -q $NAME || fail "it is not active after the reload"
until_true 20 told_times renewal.done 1
until_true 5 is ActiveState active
until_true 5 status_is "2/2 busy"
[ "$(children | sort)" = "$before" ] || fail "a busy child was replaced"
systemctl status --no-pager $NAME
redis-cli rpush "go one under way" 1 >/dev/null
redis-cli rpush "go two under way" 1 >/dev/null
until_true 20 told_times roll.done 1
for name in "one under way" "two under way"; do
  [ "$(times start "$name") $(times end "$name") $(times version "$name: one")" = "1 1 1" ] || fail "$name did not end once"
done
enqueue sleeps '["after the reload", 0.1]' >/dev/null
until_true 5 has version "after the reload: two"
[ "$pid" = "$(show MainPID)" ] && is NRestarts 0 || fail "the supervisor was restarted"
[ -z "$(comm -12 <(echo "$before") <(children | sort))" ] || fail "a child was not replaced"
is ActiveState active || fail "it is not active"

say "reload: a broken release is named in one line, and changes nothing"
before=$(children | sort)
cp $APP_DIR/shop.py /root/good.py
enqueue waits '["under way"]' >/dev/null
until_true 5 has start "under way"
refused=0
for broken in "import nowhere" "def nowhere(:"; do
  echo "$broken" | release
  systemctl reload $NAME
  systemctl is-active -q $NAME || fail "it is not active after the reload"
  refused=$((refused + 1))
  until_true 20 told_times renewal.refused $refused
  told renewal.refused | tail -1
  until_true 5 is ActiveState active
done
[[ "$(told renewal.refused | head -1)" == *"No module named 'nowhere'"*shop.py:1* ]] || fail "the module is not named"
[[ "$(told renewal.refused | tail -1)" == *SyntaxError*shop.py:1* ]] || fail "the mistake is not named"
[ "$(journalctl -u $NAME -p err -o cat | grep -c shop.py:1)" = 2 ] || fail "it is not found as an error of the unit"
told_times roll.started 1 && told_times renewal.done 1 || fail "a broken release replaced something"
enqueue sleeps '["after the broken ones", 0.1]' >/dev/null
until_true 5 has version "after the broken ones: two"
redis-cli rpush "go under way" 1 >/dev/null
until_true 5 has version "under way: two"
[ "$(times start "under way")" = 1 ] || fail "the job did not run once"
[ "$pid" = "$(show MainPID)" ] && is NRestarts 0 || fail "the supervisor was restarted"
[ "$(children | sort)" = "$before" ] || fail "a child was replaced"
for event in child.died job.orphaned daemon.crashed renewal.failed; do
  told_times $event 0 || fail "$event: $(told $event)"
done

say "a stop is prompt: after such reloads, while new code is tried, and right behind a reload"
until_true 10 status_is "0/2 busy"
stops_within 3
release < /root/good.py
systemctl start $NAME
echo "import time; time.sleep(600)" | release
systemctl reload --no-block $NAME
until_true 5 new_code_is_tried
until_true 5 is ActiveState reloading
stops_within 3
release < /root/good.py
systemctl start $NAME
systemctl reload $NAME
stops_within 3
systemctl start $NAME

say "a stop drains the children that were taken over"
enqueue waits '["taken over"]' >/dev/null
until_true 5 has start "taken over"
renewed=$(told renewal.done | grep -c . || true)
systemctl reload $NAME
until_true 20 told_times renewal.done $((renewed + 1))
systemctl stop --no-block $NAME
until_true 5 is ActiveState deactivating
redis-cli rpush "go taken over" 1 >/dev/null
stops_within 5
[ "$(times start "taken over") $(times end "taken over")" = "1 1" ] || fail "the stop cut a job short"
systemctl start $NAME

say "a child is killed: its job is done again, the service goes on"
enqueue sleeps '["killed", 2]' >/dev/null
until_true 5 has start killed
kill -9 "$(pgrep -f 'cogworkerd:slot.*shop.sleeps' | head -1)"
until_true 15 has end killed
[ "$(list start | grep -cx killed)" = 2 ] || fail "the job of the killed child did not start twice"
is NRestarts 0 || fail "a child's death restarted the service"

say "the supervisor hangs: the watchdog restarts it"
kill -STOP "$(show MainPID)"
until_true 30 is NRestarts 1
until_true 15 is ActiveState active
journalctl -u $NAME --no-pager | grep -i watchdog | tail -2

say "the supervisor is killed in the middle of a job: it is back, and the job is done"
until_true 10 status_is "0/2 busy"
enqueue sleeps '["orphan", 4]' >/dev/null
until_true 5 has start orphan
kill -9 "$(show MainPID)"
until_true 10 is NRestarts 2
until_true 40 has end orphan

say "stop in the middle of a job: it is drained"
until_true 10 status_is "0/2 busy"
enqueue sleeps '["at the stop", 3]' >/dev/null
until_true 5 has start "at the stop"
systemctl stop $NAME
has end "at the stop" || fail "the stop cut a job short"
is ActiveState inactive && is Result success || fail "the stop was not clean: $(show Result)"
pgrep -f cogworkerd: && fail "processes are left"

say "the server is away at the start: it waits"
systemctl stop redis-server
systemctl start --no-block $NAME
until_true 10 status_is "*waiting for Redis*"
is ActiveState activating || fail "it claims to be ready"
systemctl start redis-server
until_true 20 is ActiveState active
systemctl stop $NAME

say "a wrong configuration: failed, and no restart"
sed -i 's/^APP=.*/APP=nowhere:app/' /etc/cogworkerd/$NAME.env
systemctl reset-failed $NAME 2>/dev/null || true
systemctl start $NAME && fail "it started without an app"
until_true 10 is ActiveState failed
is ExecMainStatus 78 && is NRestarts 0 || fail "status $(show ExecMainStatus), $(show NRestarts) restarts"
journalctl -u $NAME -n 4 --no-pager

say "taken away"
$CLI systemd uninstall
systemctl daemon-reload
systemctl cat $NAME 2>/dev/null && fail "the unit is still there"
say "all is well"
