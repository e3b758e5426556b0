#!/usr/bin/env bash
# Makes sure that the server programs of PostgreSQL, 15 or newer, are there. Quick when they are.
# Tests and benchmarks start servers of their own, in folders of their own; none has to run.
set -euo pipefail

readonly VERSION_MIN=15

# Prints the folder of a new enough `initdb`, the newest first; fails when there is none.
find_postgres() {
    local initdb version
    local -a places=()
    if initdb=$(command -v initdb); then
        places+=("$initdb")
    fi
    while IFS= read -r initdb; do
        places+=("$initdb")
    done < <(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -rV)
    for initdb in ${places[@]+"${places[@]}"}; do
        # "initdb (PostgreSQL) 15.14 (Debian …)"
        version=$("$initdb" --version | sed -nE 's/^[^0-9]*([0-9]+).*/\1/p')
        if [[ -n $version && $version -ge $VERSION_MIN ]]; then
            dirname "$initdb"
            return 0
        fi
    done
    return 1
}

if find_postgres >/dev/null; then
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "PostgreSQL $VERSION_MIN or newer was not found: install its server programs" >&2
    exit 1
fi

echo "installing PostgreSQL"
as_root=()
if [[ $EUID -ne 0 ]]; then
    as_root=(sudo)
fi
${as_root[@]+"${as_root[@]}"} apt-get update -q
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends postgresql

if ! find_postgres >/dev/null; then
    echo "the installed PostgreSQL is older than $VERSION_MIN" >&2
    exit 1
fi
