# What the scripts of this folder share: they run as root in an emulated machine (scripts/kernel-lab) whose programs are in $BIN.
set -eu
run=/run/isthmus; mkdir -p "$run"; cd "$run"
export OVS_RUNDIR=$run OVS_LOGDIR=$run OVS_DBDIR=$run OVN_RUNDIR=$run OVN_LOGDIR=$run OVN_DBDIR=$run
export OVN_NB_DB=unix:$run/ovnnb_db.sock OVN_SB_DB=unix:$run/ovnsb_db.sock
ip link set lo up

now() { cut -d' ' -f1 /proc/uptime; }
# A script may define what its failure is to show besides, as `explain`.
fail() { echo "FAILED: $*"; grep -v 'Prefix lookup' "$run"/{controller,dpdk-dataplane}.log 2> /dev/null | tail -n 30 || true; devlink port show; ovs-vsctl --columns=name,external_ids,error find Interface || true; ! command -v explain > /dev/null || explain; exit 1; }

# until SECONDS WHAT COMMAND...: waits until the command succeeds.
until_() {
  local limit=$1 what=$2 start; shift 2; start=$(now)
  while ! "$@" > /dev/null 2>&1; do
    awk -v a="$start" -v b="$(now)" -v l="$limit" 'BEGIN { exit !(b - a > l) }' && fail "$what"
    sleep 0.05
  done
  awk -v a="$start" -v b="$(now)" -v w="$what" 'BEGIN { printf "ok: %s (%.2f s)\n", w, b - a }'
}

# Open vSwitch's empty database, without a switch: what the controller writes there can be looked at.
start_database() {
  modprobe openvswitch
  ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
  ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$run/db.sock" conf.db 2> /dev/null
  ovs-vsctl --no-wait init
}

# Within ten seconds of the machine's start Open vSwitch 3.1 counts no processors, has no threads for upcalls then ("Overriding
# n-handler-threads to 0"), and loses all upcalls of a datapath made meanwhile.
up_for_ten_seconds() { while [ "$(cut -d. -f1 /proc/uptime)" -lt 11 ]; do sleep 0.2; done; }

# Open vSwitch's own switch on the kernel's datapath, with an empty database.
start_switch() {
  start_database
  up_for_ten_seconds
  ovs-vswitchd --detach --no-chdir --pidfile --log-file 2> /dev/null
}

# northd with its databases.
start_central() { "$BIN/northd" --embed="$run" --detach --no-chdir --pidfile --log-file > /dev/null; }
# That, and this machine's controller as chassis $1 at $2.
start_ovn() {
  start_central
  ovs-vsctl set Open_vSwitch . external_ids:system-id="$1" external_ids:hostname="$1" external_ids:ovn-remote="$OVN_SB_DB" \
    external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip="$2"
  "$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
}

# A chassis in a namespace of its own, with a directory of its own: on NAME COMMAND...
on() { local c=$1; shift; ip netns exec "$c" env OVS_RUNDIR="$run/$c" OVS_LOGDIR="$run/$c" OVS_DBDIR="$run/$c" OVN_RUNDIR="$run/$c" OVN_LOGDIR="$run/$c" "$@"; }
new_chassis() { mkdir -p "$run/$1"; ip netns add "$1"; ip -n "$1" link set lo up; }
# Open vSwitch's own switch on the kernel's datapath there; with the database that it had.
kernel_switch() {
  [ -e "$run/$1/conf.db" ] || on "$1" ovsdb-tool create "$run/$1/conf.db" /usr/share/openvswitch/vswitch.ovsschema
  on "$1" ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$run/$1/db.sock" "$run/$1/conf.db" 2> /dev/null
  on "$1" ovs-vsctl --no-wait init
  up_for_ten_seconds
  on "$1" ovs-vswitchd --detach --no-chdir --pidfile --log-file 2> /dev/null
}
# A controller there: join NAME ENCAPSULATION-ADDRESSES
join() {
  on "$1" ovs-vsctl set Open_vSwitch . external_ids:system-id="$1" external_ids:hostname="$1" external_ids:ovn-remote="$OVN_SB_DB" \
    external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip="$2"
  on "$1" "$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
  until_ 60 "$1's br-int" on "$1" ovs-vsctl br-exists br-int
}

# A machine in a namespace, at this machine's br-int: machine PORT MAC ADDRESS/LENGTH
machine() {
  ip netns add "$1"; ip link add "$1" type veth peer name eth0 netns "$1"; ip link set "$1" up
  ip -n "$1" link set eth0 address "$2" up; ip -n "$1" addr add "$3" dev eth0
  ovs-vsctl --may-exist add-br br-int -- add-port br-int "$1" -- set Interface "$1" external_ids:iface-id="$1"
}
# `watch NAMESPACE DEVICE FILTER FILE`: what passes there is written to a file, until `unwatch`.
watch() {
  ip netns exec "$1" tcpdump -n -l -e -i "$2" "$3" > "$4" 2> "$4.log" & watcher=$!
  until_ 30 "$1's $2 is watched" grep -q listening "$4.log"
}
unwatch() { sleep 1; kill "$watcher"; wait "$watcher" 2> /dev/null || true; }

# A card of netdevsim with four queues, which can have so many VFs: sim_card NUMBER VFS. debugfs is mounted.
sim_card() {
  echo "$1 1 4" > /sys/bus/netdevsim/new_device
  echo "$2" > "/sys/kernel/debug/netdevsim/netdevsim$1/max_vfs"
}
# The network device of a card's port: device_of CARD FLAVOUR [WHICH]
device_of() { devlink port show | sed -n "s#^netdevsim/netdevsim$1/.* netdev \([^ ]*\) flavour $2 .*${3:-}.*#\1#p"; }
# The network device that stands for a VF: representor CARD VF.
representor() { device_of "$1" pcivf "vfnum $2 "; }

# A logical port of the switch ls that wants a representor: port NAME OPTIONS...
port() {
  local name=$1; shift
  ovn-nbctl lsp-add ls "$name" -- lsp-set-options "$name" requested-chassis=hv1 vif-plug-type=representor "$@"
}
plugged() { # plugged PORT DEVICE
  [ -n "$2" ] && [ "$(ovs-vsctl --bare --columns=name find Interface external_ids:iface-id="$1" external_ids:ovn-plugged=representor)" = "$2" ]
}
in_kernel() { ovs-dpctl show | grep -q " $1\$"; }
up() { [ "$(ovn-nbctl get Logical_Switch_Port "$1" up)" = true ]; }
error() { ovs-vsctl get Interface "$1" external_ids:ovn-plug-error | grep -q "$2"; }
no_error() { ! ovs-vsctl get Interface "$1" external_ids:ovn-plug-error; }

# 1,000 ports of the switch ls for the VFs of a card: thousand_ports PREFIX CARD. They wait, as the card is in legacy mode.
thousand_ports() {
  local n ports=()
  for n in {0..999}; do
    ports+=(-- lsp-add ls "$1$n" -- lsp-set-options "$1$n" requested-chassis=hv1 vif-plug-type=representor
      "vif-plug:representor:pf-pci=netdevsim$2" "vif-plug:representor:vf-num=$n")
  done
  ovn-nbctl "${ports[@]}"
  until_ 90 "all ports are known" thousand_wait "$2"
}
thousand_wait() { [ "$(ovn-appctl -t "$run/controller.$(cat controller.pid).ctl" plug/show | grep -c "netdevsim/netdevsim$1 is in legacy mode")" = 1000 ]; }
# VFs 0, 500 and 999 of a card are plugged in for the ports PREFIX0, PREFIX500 and PREFIX999: plugged_right PREFIX CARD.
plugged_right() {
  local vf
  for vf in 0 500 999; do
    [ "$(ovs-vsctl get Interface "$(representor "$2" $vf)" external_ids:iface-id)" = "$1$vf" ] || fail "VF $vf is plugged in for another port"
  done
}
