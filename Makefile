# Everything that people and CI run. `make help` lists it.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(TARGET)/release/isthmus-lab
KEEP ?=
GOLDEN ?= ../shared/reference/golden

.PHONY: help build demo test verify fmt clippy doc bench-failover bench-northd golden

help:
	@echo "make demo            the gateway scenario on this machine (root); KEEP=1 leaves it up"
	@echo "make test            all tests, against the real peers from Debian's packages (root)"
	@echo "make verify          what CI checks besides: formatting, lints, documentation"
	@echo "make golden          agreement with recorded situations of OVN; GOLDEN=DIR is a folder of them"
	@echo "make bench-northd    a full compile and single changes, beside Debian's ovn-northd"
	@echo "make bench-failover  outages at failover and failback, beside the C stack (root)"

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

golden:
	@$(CARGO) run --quiet --release -p northd --example golden -- $(GOLDEN)

bench-northd:
	$(CARGO) build --release -p northd --bin northd --example versus
	$(TARGET)/release/examples/versus
