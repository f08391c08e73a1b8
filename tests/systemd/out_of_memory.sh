#!/usr/bin/env bash
# A job that eats all memory, under a real MemoryMax=: it loses its process, the service does not notice. For the box's
# engine with a kernel of its own (systemd-in-a-box.sh --engine uml); otherwise as in_the_box.sh.
set -euo pipefail

NAME=cogworkerd
export COGWORKERD_REDIS_URL=redis://127.0.0.1:6379/0

fail() { echo "FAILED: $*"; systemctl status --no-pager -l $NAME || true; journalctl -u $NAME --no-pager -n 40 || true; exit 1; }
show() { systemctl show -p "$1" --value $NAME; }
until_true() { local limit=$((SECONDS + $1 * ${PATIENCE:-1})); shift; until "$@"; do [ $SECONDS -lt $limit ] || fail "not within its time: $*"; sleep 0.2; done; }

cp -a /venv /opt/cogworkerd
sed -i '1s|.*|#!/opt/cogworkerd/bin/python|' /opt/cogworkerd/bin/cogworkerd
mkdir -p /srv/shop
cat > /srv/shop/shop.py <<'APP'
from cogworkerd import App

app = App()


@app.job
def eats() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(2**22))


@app.job
def works() -> None: ...
APP
systemctl start redis-server
/opt/cogworkerd/bin/cogworkerd systemd install shop:app --app-dir /srv/shop
printf 'COGWORKERD_CONCURRENCY=2\nCOGWORKERD_MAX_ORPHANINGS=1\n' >> /etc/cogworkerd/$NAME.env
mkdir -p /etc/systemd/system/$NAME.service.d
printf '[Service]\nMemoryMax=200M\nTimeoutStartSec=120\n' > /etc/systemd/system/$NAME.service.d/wall.conf
systemctl daemon-reload
systemctl start $NAME
cd /srv/shop
/opt/cogworkerd/bin/cogworkerd enqueue shop:app eats
until_true 90 sh -c '[ "$(redis-cli zcard cogworker:dead)" = 1 ]'
redis-cli --raw zrange cogworker:dead 0 -1 | grep -o '"error_message":"[^"]*"'
/opt/cogworkerd/bin/cogworkerd enqueue shop:app works
until_true 30 sh -c '[ "$(redis-cli get cogworker:stats:processed)" = 1 ]'
[ "$(show ActiveState)" = active ] || fail "it is $(show ActiveState)"
[ "$(show NRestarts)" = 0 ] || fail "the service was restarted"
journalctl -u $NAME --no-pager | grep -i "oom\|child.died" | tail -6
systemctl stop $NAME
echo "== all is well"
