# Everything that people and CI run. `make help` lists it.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(TARGET)/release/isthmus-lab
KEEP ?=

.PHONY: help build demo test verify fmt clippy doc bench-failover bench-vtep

help:
	@echo "make demo            the gateway scenario on this machine (root); KEEP=1 leaves it up"
	@echo "make test            all tests, against the real peers from Debian's packages (root)"
	@echo "make verify          what CI checks besides: formatting, lints, documentation"
	@echo "make bench-failover  outages at failover and failback, beside the C stack (root)"
	@echo "make bench-vtep      one MAC among 100,000, beside ovn-controller-vtep"

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

bench-vtep:
	scripts/install test
	$(CARGO) build --release -p vtep-controller --bins --example bench
	$(TARGET)/release/examples/bench
