#!/usr/bin/env bash
# Compiles the contracts of the tests (crates/logmill/tests/contracts/*.sol) into NAME.json beside them: bytecode and ABI.
# The builds are checked in, so that tests need no compiler; one of them compares (`tools/contracts.sh --print` prints
# the builds by name and writes nothing).
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
contracts="$root/crates/logmill/tests/contracts"
"$root/tools/node.sh"

NODE_PATH="$root/.tools/node/node_modules" node - "$contracts" "${1:-}" <<'JS'
const fs = require("node:fs");
const path = require("node:path");
const solc = require("solc");
const [folder, mode] = process.argv.slice(2);

function build(name) {
  const input = {
    language: "Solidity",
    sources: { [name]: { content: fs.readFileSync(path.join(folder, `${name}.sol`), "utf8") } },
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
  return { abi, bytecode: `0x${evm.bytecode.object}` };
}

const sources = fs.readdirSync(folder).filter((file) => file.endsWith(".sol"));
const names = sources.map((file) => path.basename(file, ".sol")).sort();
const builds = Object.fromEntries(names.map((name) => [name, build(name)]));
if (mode === "--print") {
  console.log(JSON.stringify(builds));
} else {
  for (const [name, build] of Object.entries(builds)) {
    const file = path.join(folder, `${name}.json`);
    fs.writeFileSync(`${file}.new`, `${JSON.stringify(build, null, 1)}\n`);
    fs.renameSync(`${file}.new`, file);
  }
}
JS
