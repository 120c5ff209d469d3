# Everything that people and CI run. `make help` lists it.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(TARGET)/release/isthmus-lab
KEEP ?=
FUZZ_SECONDS ?= 60

.PHONY: help build demo test verify fmt clippy doc bench-failover bench-ovsdb fuzz-smoke

help:
	@echo "make demo            the gateway scenario on this machine (root); KEEP=1 leaves it up"
	@echo "make test            all tests, against the real peers from Debian's packages (root)"
	@echo "make verify          what CI checks besides: formatting, lints, documentation"
	@echo "make bench-failover  outages at failover and failback, beside the C stack (root)"
	@echo "make bench-ovsdb     the database server beside Debian's ovsdb-server"
	@echo "make fuzz-smoke      every decoder on mutated input, a minute each; FUZZ_SECONDS=60"

build:
	scripts/install build
	$(CARGO) build --release --workspace --bins

demo: build
	$(LAB) gateway --page demo-report.html $(if $(KEEP),--keep)

test:
	scripts/install test
	$(CARGO) build --workspace --bins
	$(CARGO) test --workspace

verify: fmt clippy doc

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

bench-failover: build
	scripts/install test
	$(LAB) bench-failover

bench-ovsdb:
	scripts/install test
	$(CARGO) build --release -p ovsdb-rs --bins --example bench
	ulimit -n 20000; $(TARGET)/release/examples/bench

fuzz-smoke:
	$(CARGO) build --release -p fuzz
	$(TARGET)/release/fuzz --seconds $(FUZZ_SECONDS)
