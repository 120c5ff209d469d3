# How soon representors are plugged in, and what that costs: times are printed, and are those of an emulated machine. What must be right
# in the end is checked.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim
modprobe netdevsim
mount -t debugfs d /sys/kernel/debug
start_database
ovs-vsctl() { command ovs-vsctl --no-wait "$@"; }
# Without functions a card of netdevsim's is in legacy mode again.
vfs() {
  echo "$2" > "$sim/devices/netdevsim$1/sriov_numvfs"
  [ "$2" = 0 ] || devlink dev eswitch set "netdevsim/netdevsim$1" mode switchdev
}
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
summary() { # summary WHAT: milliseconds come one a line
  sort -n | awk -v w="$1" '{ v[NR] = $1 } END { printf "measured: %s: %d ms (median of %d), at most %d ms\n", w, v[int((NR + 1) / 2)], NR, v[NR] }'
}
lines() { wc -l < "$1"; }

sim_card 20 8
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
  between "$(at sb.rows 0 ",a$n,")" "$(at ovs.rows "$from" "iface-id=a$n")" >> ms
done
summary "from the port in the southbound database to its interface" < ms

plugged() { ids | grep iface-id | grep -vc ovn-plug-error || true; }
none() { [ "$(plugged)" = 0 ]; }
eight() { [ "$(plugged)" = 8 ]; }
# The port is there, and the function comes. The time is from before the card is told to make it.
: > ms; : > made
for round in 1 2 3 4 5; do
  vfs 20 0
  until_ 30 "all functions are gone" none
  start=$(clock); vfs 20 8; made=$(clock)
  # Its row is there still, and loses its error or gets the new name.
  until_ 30 "all are plugged in again" eight
  last=$(awk '$2 ~ /^[0-9:.]+$/ && NF == 2 { t = $2 } END { print t }' ovs.rows | seconds)
  between "$start" "$last" >> ms; between "$start" "$made" >> made
done
summary "from the order to make 8 functions to all their interfaces" < ms
summary "of these the order itself" < made

# 1,000 functions come at once.
sim_card 21 1000
thousand_ports b 21
all() { [ "$(plugged)" = 1008 ]; }
dumps() { grep -c 'all are read again' controller.log || true; }
burst() { # burst WHAT: the card makes its 1,000 functions
  local start made last before; before=$(dumps)
  start=$(clock); vfs 21 1000; made=$(clock)
  until_ 120 "$1: 1,000 functions are plugged in" all
  last=$(awk '$2 ~ /^[0-9:.]+$/ && NF == 2 { t = $2 } END { print t }' ovs.rows | seconds)
  echo "measured: $1: $(between "$start" "$last") ms from the order, $(between "$made" "$last") ms from when the card had made them;" \
    "read again $(($(dumps) - before)) times"
}
burst "1,000 functions"
plugged_right b 21

# While nothing changes, the thread that listens to the kernel costs nothing. (The whole controller looks for its switch, which is not here.)
sleep 5
ran() { for t in /proc/"$(cat controller.pid)"/task/*; do grep -q "$1" "$t/comm" && cat "$t/schedstat"; done | awk '{ n += $1 } END { printf "%.0f\n", n / 1e6 }'; }
idle() { # idle WHAT
  local one all; one=$(ran representors) all=$(ran .); sleep 15
  echo "measured: idle with $1, in 15 s: $(($(ran representors) - one)) ms of processor time for representors, $(($(ran .) - all)) ms in all"
}
idle "1,008 representors"
ports=()
for n in {0..999}; do ports+=(-- lsp-del "b$n"); done
ovn-nbctl "${ports[@]}"
until_ 60 "the 1,000 are unplugged" eight
sleep 5
idle "8 representors"

# More happens than the buffer holds, which a controller that does not run has to show: everything is read again, and is right.
[ "$(dumps)" = 0 ] || echo "measured: events were lost $(dumps) times so far"
for round in 1 2; do
  before=$(dumps) from=$(lines ovs.rows)
  kill -STOP "$(cat controller.pid)"
  for again in 1 2 3 4; do vfs 21 0; vfs 21 1000; done
  ip link set "$(representor 20 0)" down; ip link set "$(representor 20 0)" name "red$round"
  start=$(clock); kill -CONT "$(cat controller.pid)"
  until_ 30 "round $round: the other name, after events were lost" has ovs.rows "$from" ",red$round,"
  [ "$(dumps)" -gt "$before" ] || fail "no event was lost"
  echo "measured: right again after lost events, with 1,000 other functions: $(between "$start" "$(at ovs.rows "$from" ",red$round,")") ms"
done
kill "${followers[@]}" "$(cat controller.pid)"
