# Everything that people and CI run. `make help` lists it.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(TARGET)/release/isthmus-lab
KEEP ?=
GOLDEN ?= ../shared/reference/golden
FUZZ_SECONDS ?= 60
CASES ?=
SCALE ?= 400

.PHONY: help build demo demo-ic test test-boot test-kernel asan verify check fmt lines clippy doc deny golden compare-switch bench-bfd bench-controller bench-failover bench-idle bench-interconnect bench-network-connect bench-northd bench-ovsdb bench-survive bench-switch bench-sync bench-vtep churn fuzz-smoke

help:
	@echo "make demo            the gateway scenario on this machine (root); KEEP=1 leaves it up"
	@echo "make demo-ic         two zones that interconnect joins, on this machine (root); KEEP=1 leaves them up"
	@echo "make test            all tests, against the real peers from Debian's packages (root)"
	@echo "make test-boot       emulated machines boot through an external port: BIOS with iPXE, UEFI by TFTP, HTTP and HTTP over IPv6 (root)"
	@echo "make test-kernel     representors, tunnels and IPsec on Debian's kernel, emulated: devlink, netdevsim, openvswitch, ESP (root once, to install)"
	@echo "make asan            devices, bonds, workers and jumbo frames under AddressSanitizer (root)"
	@echo "make check           formatting, lints, documentation, dependencies"
	@echo "make verify          what CI runs: check and test"
	@echo "make golden          agreement with recorded situations of OVN; GOLDEN=DIR is a folder of them"
	@echo "make compare-switch  every recorded flow table in our switch and in Open vSwitch's userspace datapath"
	@echo "make bench-bfd       what 1,000 BFD sessions cost the switch (root)"
	@echo "make bench-controller  a chassis in a cloud of 200,000 logical flows, beside Debian's ovn-controller; SCALE=40 tenants instead of 400"
	@echo "make bench-failover  outages at failover and failback, beside the C stack (root)"
	@echo "make bench-idle      what daemons take that cannot do their work, beside the C stack's (root)"
	@echo "make bench-interconnect  ten zones with 1,000 routes each, beside Debian's ovn-ic, and OVN_IC=PATH"
	@echo "make bench-network-connect  200 user-defined networks joined on 500 nodes: starts, and a node more"
	@echo "make bench-northd    a full compile and single changes, beside Debian's ovn-northd"
	@echo "make bench-ovsdb     the database server beside Debian's ovsdb-server"
	@echo "make bench-survive   connections through a gateway's death, beside the C stack (root)"
	@echo "make bench-switch    forwarding, beside ovs-vswitchd with DPDK (root); CASES=snat only some"
	@echo "make bench-sync      what it costs that gateways share connections, and how late the peer knows (root)"
	@echo "make bench-vtep      one MAC among 100,000, beside ovn-controller-vtep"
	@echo "make churn           10,000 ports and flows come and go ten times in each daemon, which ends where it began (root)"
	@echo "make fuzz-smoke      every decoder on mutated input, a minute each; FUZZ_SECONDS=60"

build:
	scripts/install build
	$(CARGO) build --release --workspace --bins

demo: build
	$(LAB) gateway --page demo-report.html $(if $(KEEP),--keep)

demo-ic: build
	$(LAB) zones --page demo-ic-report.html $(if $(KEEP),--keep)
	$(if $(KEEP),,$(LAB) transit)

test:
	scripts/install test
	CARGO="$(CARGO)" scripts/test

test-boot:
	scripts/install test
	$(CARGO) build --workspace --bins
	ISTHMUS_BOOT=1 $(CARGO) test -p hw-tests --test boot

test-kernel:
	scripts/install kernel
	$(CARGO) build -p northd -p controller -p dpdk-dataplane -p isthmusctl --bins
	scripts/test-kernel

# The sanitizer's runtime comes with the stable toolchain, the switch that turns it on does not. The daemon's tests are those that move
# packets between threads, devices and buffers of all sizes.
asan:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address $(CARGO) test --target x86_64-unknown-linux-gnu -p dpdk-rs -p dpdk-dataplane \
	    --test devices --test offloads --test workers --test bonds --test jumbo

# What CI runs.
verify: check test

check: fmt lines clippy doc deny

fmt:
	$(CARGO) fmt --all --check

lines:
	scripts/lines

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

deny:
	CARGO="$(CARGO)" TOOLS="$(TARGET)/tools" scripts/deny

# The sizes of a round in `make test` are 200, 1,000, 60 and 300; ovsdb-rs's is 10,000 there as well.
churn:
	ISTHMUS_CHURN=50 $(CARGO) test --release -p northd --test churn
	ISTHMUS_CHURN=10 $(CARGO) test --release -p vtep-controller --test churn
	ISTHMUS_CHURN=170 $(CARGO) test --release -p controller --test churn
	ISTHMUS_CHURN=34 $(CARGO) test --release -p dpdk-dataplane --test churn
	$(CARGO) test --release -p ovsdb-rs --test churn

golden:
	@$(CARGO) build --quiet --release -p northd --example golden-northd -p controller --example golden-controller
	@log=$$(mktemp); \
	 for d in northd controller; do $(TARGET)/release/examples/golden-$$d $(GOLDEN); done | tee $$log | grep -v '^golden '; \
	 grep '^golden ' $$log; rm -f $$log

compare-switch:
	scripts/install test
	COMPARE_STEP=1 COMPARE_PACKETS=100 COMPARE_SHOW=200 $(CARGO) test --release -p switch --test lab -- --nocapture

bench-controller:
	scripts/install test
	$(CARGO) build --release -p controller --bin controller --example bench-controller
	$(TARGET)/release/examples/bench-controller $(SCALE)

bench-failover: build
	scripts/install test
	$(LAB) bench-failover

bench-idle: build
	scripts/install test
	$(LAB) bench-idle

bench-survive: build
	scripts/install test
	$(LAB) bench-survive

bench-bfd: build
	scripts/install test
	$(LAB) bench-bfd

bench-sync: build
	scripts/install test
	$(LAB) bench-sync

bench-interconnect:
	scripts/install test
	$(CARGO) build --release -p interconnect --bin interconnect --example bench-interconnect
	$(TARGET)/release/examples/bench-interconnect

bench-network-connect:
	$(CARGO) build --release -p network-connect --bin network-connect --example bench-network-connect
	$(TARGET)/release/examples/bench-network-connect $(TARGET)/release/network-connect

bench-northd:
	scripts/install test
	$(CARGO) build --release -p northd --bin northd --example versus
	$(TARGET)/release/examples/versus

bench-ovsdb:
	scripts/install test
	$(CARGO) build --release -p ovsdb-rs --bins --example bench-ovsdb
	ulimit -n 20000; $(TARGET)/release/examples/bench-ovsdb

bench-switch: build
	scripts/install test
	$(LAB) bench-switch $(CASES)

fuzz-smoke:
	$(CARGO) build --release -p fuzz
	$(TARGET)/release/fuzz --seconds $(FUZZ_SECONDS)

bench-vtep:
	scripts/install test
	$(CARGO) build --release -p vtep-controller --bins --example bench-vtep
	$(TARGET)/release/examples/bench-vtep
