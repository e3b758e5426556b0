#!/usr/bin/env bash
# Compiles the contracts of the tests (crates/logmill/tests/contracts/*.sol) into NAME.json beside them: bytecode and ABI.
# The builds are checked in, so that tests need no compiler; one of them compares (`tools/contracts.sh --print NAME`
# prints a build and writes nothing).
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
contracts="$root/crates/logmill/tests/contracts"
"$root/tools/node.sh"

build() {
    NODE_PATH="$root/.tools/node/node_modules" node - "$contracts/$1.sol" "$1" <<'JS'
const fs = require("node:fs");
const solc = require("solc");
const [file, name] = process.argv.slice(2);
const input = {
  language: "Solidity",
  sources: { [name]: { content: fs.readFileSync(file, "utf8") } },
  settings: {
    // Fixed, so that a newer compiler does not change what the code needs of a chain.
    evmVersion: "paris",
    optimizer: { enabled: true, runs: 200 },
    // Without a trailing hash of the source's metadata the code depends on nothing but the code.
    metadata: { bytecodeHash: "none", appendCBOR: false },
    outputSelection: { "*": { "*": ["abi", "evm.bytecode.object"] } },
  },
};
const output = JSON.parse(solc.compile(JSON.stringify(input)));
for (const error of output.errors ?? []) console.error(error.formattedMessage);
const { abi, evm } = output.contracts[name][name];
console.log(JSON.stringify({ abi, bytecode: `0x${evm.bytecode.object}` }, null, 1));
JS
}

if [[ "${1:-}" == --print ]]; then
    build "$2"
    exit 0
fi
for source in "$contracts"/*.sol; do
    name="$(basename "$source" .sol)"
    build "$name" >"$contracts/$name.json.new"
    mv "$contracts/$name.json.new" "$contracts/$name.json"
done
