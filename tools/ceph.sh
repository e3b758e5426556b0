#!/usr/bin/env bash
# A real S3 server for `make proof`: Ceph on one node, in memory, on loopback, without authentication between
# its daemons.
#
#   tools/ceph.sh start    installs Debian's packages if missing, starts the cluster, makes an S3 user and the
#                          bucket "logmill-proof", and prints "endpoint,key,secret" (the value of
#                          LOGMILL_PROOF_S3) as its only line of standard output
#   tools/ceph.sh stop     stops the daemons and removes their folder; fine if nothing runs
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
link="$root/.tools/ceph"
bucket="logmill-proof"
key="logmillproof"
secret="logmillproofsecret"
# Long, as the command line of Ceph takes seconds to start on a busy machine.
wait_seconds_max=300
answer_seconds_max=30

say() { echo "ceph: $*" >&2; }

# Runs a command until it succeeds, once a second, for at most so long.
wait_for() {
    local what="$1" end=$((SECONDS + wait_seconds_max))
    shift
    while ((SECONDS < end)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 1
    done
    say "$what did not happen within $wait_seconds_max s; the logs are in $dir"
    return 1
}

install() {
    if command -v ceph-mon ceph-osd ceph-mgr radosgw ceph >/dev/null; then return; fi
    say "installing the packages"
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends \
        ceph-mon ceph-osd ceph-mgr radosgw ceph-common >&2
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

configure() {
    cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$mon_port
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
osd objectstore = memstore
memstore device bytes = 4294967296
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon data = $dir/mon
mgr data = $dir/mgr
osd data = $dir/osd
rgw data = $dir/rgw
rgw frontends = beast endpoint=127.0.0.1:$s3_port
run dir = $dir
pid file = $dir/\$type.pid
admin socket = $dir/\$name.\$pid.asok
log file = $dir/\$name.log
crash dir = $dir/crash
CONF
}

start_cluster() {
    local disk
    disk="$(cat /proc/sys/kernel/random/uuid)"
    mkdir -p "$dir"/{mon,mgr,osd,rgw,crash}
    monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon_port]" "$dir/monmap" >&2
    ceph-mon -c "$dir/ceph.conf" --mkfs -i a --monmap "$dir/monmap" >&2
    ceph-mon -c "$dir/ceph.conf" -i a >&2
    wait_for "a monitor with a quorum" timeout "$answer_seconds_max" ceph -c "$dir/ceph.conf" mon stat
    ceph-mgr -c "$dir/ceph.conf" -i a >&2
    # The monitor admits only the disk that it was told of.
    ceph -c "$dir/ceph.conf" osd new "$disk" >&2
    ceph-osd -c "$dir/ceph.conf" -i 0 --mkfs --osd-uuid "$disk" >&2
    ceph-osd -c "$dir/ceph.conf" -i 0 >&2
    wait_for "one disk up" sh -c "timeout $answer_seconds_max ceph -c '$dir/ceph.conf' osd stat | grep -q '1 up'"
}

start_gateway() {
    radosgw-admin -c "$dir/ceph.conf" user create --uid=proof --display-name=proof \
        --access-key="$key" --secret-key="$secret" >&2
    radosgw -c "$dir/ceph.conf" -n client.rgw --pid-file "$dir/rgw.pid" >&2
    wait_for "an answer from the gateway" curl --silent "http://127.0.0.1:$s3_port/"
    curl --silent --show-error --fail --aws-sigv4 "aws:amz:us-east-1:s3" --user "$key:$secret" \
        --header "x-amz-content-sha256: UNSIGNED-PAYLOAD" \
        --request PUT "http://127.0.0.1:$s3_port/$bucket" >&2
}

start() {
    stop
    install
    mkdir -p "$root/.tools"
    dir="$(mktemp -d)"
    ln -sfn "$dir" "$link"
    fsid="$(cat /proc/sys/kernel/random/uuid)"
    mon_port="$(free_port)"
    s3_port="$(free_port)"
    configure
    start_cluster
    start_gateway
    echo "http://127.0.0.1:$s3_port,$key,$secret"
}

stop() {
    [[ -L "$link" ]] || return 0
    local pid_file pid
    for pid_file in "$link"/*.pid; do
        [[ -f "$pid_file" ]] || continue
        pid="$(cat "$pid_file")"
        kill -KILL "$pid" 2>/dev/null || continue
        # A folder is only removed when nobody writes to it any more.
        while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
    rm -rf "$(readlink "$link")" "$link"
}

case "${1:-}" in
start) start ;;
stop) stop ;;
*)
    say "usage: tools/ceph.sh start|stop"
    exit 2
    ;;
esac
