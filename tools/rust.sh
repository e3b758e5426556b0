#!/usr/bin/env bash
# Makes sure that rustfmt, clippy and cargo-nextest are there. Quick when they are.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "cargo was not found: install Rust with rustup first" >&2
    exit 1
fi

if ! cargo fmt --version >/dev/null 2>&1; then
    echo "installing rustfmt"
    rustup component add rustfmt
fi

if ! cargo clippy --version >/dev/null 2>&1; then
    echo "installing clippy"
    rustup component add clippy
fi

if ! cargo nextest --version >/dev/null 2>&1; then
    echo "installing cargo-nextest: this builds it, which takes some minutes"
    cargo install cargo-nextest --locked
fi
