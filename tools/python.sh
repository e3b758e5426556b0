#!/usr/bin/env bash
# Makes .tools/venv with the Python tools of the tests: moto (an S3 server) and typos; with the argument `bench` makes
# .tools/venv-bench with a peer of the benchmarks: DuckDB, and Arrow to feed it.
# Safe to run at any time and by several tests at once; does nothing when the pinned versions are there.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.tools/venv"
packages=("moto[server,s3]==5.2.5" "typos==1.51.1")
if [[ "${1:-}" == bench ]]; then
    venv="$root/.tools/venv-bench"
    packages=("duckdb==2.0.0" "pyarrow==26.0.1")
fi

# The stamp names the versions, so a new pin is installed and an old venv is not taken for it.
stamp="$venv/.installed"
wanted="${packages[*]}"
is_done() { [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; }

is_done && exit 0
mkdir -p "$root/.tools"
exec 9>"$venv.lock"
flock 9
is_done && exit 0

rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
# The last write: whoever sees the stamp may use the tools.
printf '%s' "$wanted" >"$stamp"
