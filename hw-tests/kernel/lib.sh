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

# Open vSwitch's own switch on the kernel's datapath, with an empty database.
start_switch() {
  modprobe openvswitch
  ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
  ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$run/db.sock" conf.db 2> /dev/null
  ovs-vsctl --no-wait init
  ovs-vswitchd --detach --no-chdir --pidfile --log-file 2> /dev/null
}

# northd with its databases, and this machine's controller as chassis $1 at $2.
start_ovn() {
  "$BIN/northd" --embed="$run" --detach --no-chdir --pidfile --log-file > /dev/null
  ovs-vsctl set Open_vSwitch . external_ids:system-id="$1" external_ids:hostname="$1" external_ids:ovn-remote="$OVN_SB_DB" \
    external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip="$2"
  "$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
}
