# How soon representors are plugged in, and what that costs: times are printed, and are those of an emulated machine. What must be right
# in the end is checked.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim
modprobe netdevsim
mount -t debugfs d /sys/kernel/debug
# Without a switch: what is looked at is what the controller writes.
modprobe openvswitch
ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$run/db.sock" conf.db 2> /dev/null
ovs-vsctl --no-wait init
ovs-vsctl() { command ovs-vsctl --no-wait "$@"; }
card() { # card NUMBER VFS
  echo "$1 1 4" > $sim/new_device
  echo "$2" > "/sys/kernel/debug/netdevsim/netdevsim$1/max_vfs"
  devlink dev eswitch set "netdevsim/netdevsim$1" mode switchdev
}
vfs() { echo "$2" > "$sim/devices/netdevsim$1/sriov_numvfs"; }
port() { # port NAME CARD VF
  ovn-nbctl --may-exist lsp-add ls "$1" -- lsp-set-options "$1" requested-chassis=hv1 vif-plug-type=representor \
    vif-plug:representor:pf-pci="netdevsim$2" vif-plug:representor:vf-num="$3"
}
# Each row that comes or changes, with the second of the day that it is told in.
follow() { # follow FILE SOCKET DATABASE TABLE COLUMNS
  ovsdb-client --timestamp --no-headings --format=csv monitor "unix:$2" "$3" "$4" "$5" > "$1" 2> /dev/null & followers+=($!)
  until_ 20 "$4 is watched" test -s "$1"
}
seconds() { awk -F: '{ printf "%.3f\n", $1 * 3600 + $2 * 60 + $3 }'; }
clock() { date +%H:%M:%S.%3N | seconds; }
# The second of the first line behind line FROM that has TEXT; nothing, as long as there is none.
at() { # at FILE FROM TEXT
  awk -v from="$2" -v text="$3" '$2 ~ /^[0-9:.]+$/ && NF == 2 { t = $2 } NR > from && index($0, text) { print t; exit }' "$1" | seconds
}
has() { [ -n "$(at "$@")" ]; }
between() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.0f\n", (b - a) * 1000 }'; }
ids() { ovs-vsctl --bare --columns=external_ids find Interface external_ids:ovn-plugged=representor; }
clean() { ids | grep "iface-id=$1 " | grep -vq ovn-plug-error; }
summary() { # summary WHAT: milliseconds come one a line
  sort -n | awk -v w="$1" '{ v[NR] = $1 } END { printf "measured: %s: %d ms (median of %d), at most %d ms\n", w, v[int((NR + 1) / 2)], NR, v[NR] }'
}
lines() { wc -l < "$1"; }

card 20 8
start_ovn hv1 127.0.0.1
until_ 60 "the northbound database" ovn-nbctl ls-add ls
until_ 60 "the chassis" ovn-sbctl --bare --columns=_uuid find Chassis name=hv1
followers=()
port first 20 7
follow sb.rows "$run/ovnsb_db.sock" OVN_Southbound Port_Binding logical_port,options
follow ovs.rows "$run/db.sock" Open_vSwitch Interface name,external_ids

# The function is there, and the port comes.
vfs 20 8
: > ms
for n in 0 1 2 3 4 5 6; do
  from=$(lines ovs.rows)
  port "a$n" 20 "$n"
  until_ 30 "a$n is plugged in" has ovs.rows "$from" "iface-id=a$n"
  between "$(at sb.rows 0 "a$n,")" "$(at ovs.rows "$from" "iface-id=a$n")" >> ms
done
summary "from the port in the southbound database to its interface" < ms

# The port is there, and the function comes. The time is from before the card is told to make it.
: > ms; : > back
for round in 1 2 3 4 5; do
  from=$(lines ovs.rows)
  vfs 20 0
  until_ 30 "all functions are gone" has ovs.rows "$from" "has no VF 7"
  from=$(lines ovs.rows)
  start=$(clock); vfs 20 8; made=$(clock)
  # Its row is there still, and loses its error or gets the new name.
  until_ 30 "first is plugged in again" clean first
  until_ 30 "a6 is plugged in again" clean a6
  last=$(awk '$2 ~ /^[0-9:.]+$/ && NF == 2 { t = $2 } END { print t }' ovs.rows | seconds)
  between "$start" "$last" >> ms; between "$made" "$last" >> back
done
summary "from the order to make 8 functions to all their interfaces" < ms
summary "from 8 functions that are back to all their interfaces" < back

# 1,000 functions come at once.
card 21 1000
ports=()
for n in {0..999}; do
  ports+=(-- lsp-add ls "b$n" -- lsp-set-options "b$n" requested-chassis=hv1 vif-plug-type=representor
    vif-plug:representor:pf-pci=netdevsim21 "vif-plug:representor:vf-num=$n")
done
ovn-nbctl "${ports[@]}"
known() { [ "$(ovn-appctl -t "$run/controller.$(cat controller.pid).ctl" plug/show | grep -c "netdevsim/netdevsim21 has no VF")" = 1000 ]; }
until_ 120 "all ports are known" known
plugged() { ids | grep iface-id | grep -vc ovn-plug-error; }
all() { [ "$(plugged)" = 1008 ]; }
dumps() { grep -c 'all are read again' controller.log || true; }
burst() { # burst WHAT: the card makes its 1,000 functions
  local from start made last before; from=$(lines ovs.rows) before=$(dumps)
  start=$(clock); vfs 21 1000; made=$(clock)
  until_ 120 "$1: 1,000 functions are plugged in" all
  last=$(awk '$2 ~ /^[0-9:.]+$/ && NF == 2 { t = $2 } END { print t }' ovs.rows | seconds)
  echo "measured: $1: $(between "$start" "$last") ms from the order, $(between "$made" "$last") ms from when the card had made them;" \
    "read again $(($(dumps) - before)) times"
}
burst "1,000 functions"
for vf in 0 500 999; do
  netdev=$(devlink port show | sed -n "s#^netdevsim/netdevsim21/.* netdev \([^ ]*\) flavour pcivf .*vfnum $vf .*#\1#p")
  [ "$(ovs-vsctl get Interface "$netdev" external_ids:iface-id)" = "b$vf" ] || fail "VF $vf is plugged in for another port"
done

# While nothing changes, a controller with 1,008 representors costs nothing.
sleep 5
ticks() { awk '{ print $14 + $15 }' "/proc/$(cat controller.pid)/stat"; }
before=$(ticks); sleep 30
echo "measured: idle with 1,008 representors: $(($(ticks) - before)) hundredths of a second of processor time in 30 s"

# With a buffer that holds a few events only: they are lost, everything is read again, and is right.
vfs 21 0
sysctl -q -w net.core.rmem_default=4096
old=$(cat controller.pid); kill "$old"
gone() { [ ! -e "/proc/$old" ]; }
until_ 60 "the controller has ended" gone
"$BIN/controller" --detach --no-chdir --pidfile --log-file > /dev/null
until_ 120 "all ports are known again" known
sysctl -q -w net.core.rmem_default=212992
burst "1,000 functions and events that are lost"
[ "$(dumps)" -ge 1 ] || fail "no event was lost"
for vf in 0 500 999; do
  netdev=$(devlink port show | sed -n "s#^netdevsim/netdevsim21/.* netdev \([^ ]*\) flavour pcivf .*vfnum $vf .*#\1#p")
  [ "$(ovs-vsctl get Interface "$netdev" external_ids:iface-id)" = "b$vf" ] || fail "VF $vf is plugged in for another port"
done
kill "${followers[@]}" "$(cat controller.pid)"
