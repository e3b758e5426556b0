# The commands of Logmill. `make` lists them; the longer ones live in tools/.

# Programs of bench/ that `make bench` runs, in this order.
BENCHES := queue index ingest rpc derive api ponder meter

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint proof sample bench soak growth release peer-ponder $(BENCHES:%=bench-%)

help: ## list the commands
	@sed -nE 's/^([a-z]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'
	@printf '  make %-12s %s\n' bench-NAME 'run one of: $(BENCHES)'

demo: ## run what exists so far, with nothing installed
	cargo run --release -p logmill -- demo

test: ## install what the tests need, lint, run every test, end with the counts
	@tools/test.sh test

lint: ## formatting, spelling, clippy
	@tools/test.sh lint

proof: ## the tests that are too long or too heavy for every run: Ceph, long seeds
	@tools/test.sh proof

sample: ## store the sample folder and its answers again, after a change that means to alter them
	LOGMILL_SAMPLE=make cargo nextest run --workspace --locked -E 'package(logmill) and test(=sample::a_stored_folder_returns_the_stored_answers)'

bench: $(BENCHES:%=bench-%) ## run every benchmark; results go to bench/results/

soak: release ## an hour of usage at full speed: fails if the memory of the server grows
	tools/soak-meter.py --minutes 60

growth: ## how the log index grows from 1 to 50 million logs
	tools/index-growth.sh

# The server that is measured from outside.
bench-rpc bench-api bench-ponder bench-meter: release
release:
	cargo build --release -p logmill

bench-ponder: peer-ponder
peer-ponder:
	tools/ponder.sh

$(BENCHES:%=bench-%): bench-%:
	tools/postgres.sh
	tools/python.sh bench
	tools/node.sh
	mkdir -p bench/results
	cd bench && cargo run --release --bin $* -- --json ../bench/results/$*.json
