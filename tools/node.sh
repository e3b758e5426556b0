#!/usr/bin/env bash
# Makes .tools/node with the peers of the tests that come from npm: anvil (an EVM node), cast, solc, viem, ethers and redocly, in the
# versions of tools/node/package-lock.json.
# Safe to run at any time and by several tests at once; does nothing when those versions are there.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$root/.tools/node"
pins="$root/tools/node"

# The stamp is the list of versions, so a new pin is installed and an old folder is not taken for it.
stamp="$folder/.installed"
is_done() { [[ -f "$stamp" ]] && cmp -s "$stamp" "$pins/package-lock.json"; }

is_done && exit 0
mkdir -p "$root/.tools"
exec 9>"$folder.lock"
flock 9
is_done && exit 0

rm -rf "$folder"
mkdir -p "$folder"
cp "$pins/package.json" "$pins/package-lock.json" "$folder/"
# No package's own script is run: the binaries are in the packages.
# Not `npm ci`: it wants packages of other platforms in the list, which the list of this platform lacks.
(cd "$folder" && npm install --ignore-scripts --no-audit --no-fund --no-save --loglevel=error)
# The last write: whoever sees the stamp may use the tools.
cp "$pins/package-lock.json" "$stamp"
