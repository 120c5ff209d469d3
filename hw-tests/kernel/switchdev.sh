# The operator's act on a card (`isthmusctl nic switchdev`), shown and done; a port that waits for a function is plugged in by that.
. "${0%/*}/lib.sh"
sim=/sys/bus/netdevsim
nic() { "$BIN/isthmusctl" nic "$@"; }
mode() { devlink dev eswitch show netdevsim/netdevsim12 | grep -q "mode $1"; }
vfs() { [ "$(cat $sim/devices/netdevsim12/sriov_numvfs)" = "$1" ]; }
modprobe netdevsim
echo "12 1 4" > $sim/new_device
echo 2 > $sim/devices/netdevsim12/sriov_numvfs
nic switchdev netdevsim12 --vfs 3 > shown || fail "what nic switchdev would do"
[ "$(grep -c '^echo\|^devlink' shown),$(grep -c 'nothing was done' shown)" = 3,1 ] || fail "$(cat shown)"
mode legacy && vfs 2 || fail "nothing is done without --yes"
nic switchdev netdevsim12 --vfs 3 --yes > shown || fail "nic switchdev --yes"
mode switchdev && vfs 3 || fail "the mode and the VFs"
echo "ok: the mode and the VFs"
nic switchdev netdevsim12 --vfs 3 --yes | grep -q "nothing to do" || fail "it is so already"
[ "$(nic show | grep -c 'pf0vf')" = 3 ] || fail "$(nic show)"
nic switchdev netdevsim12 --vfs 1 | grep -q "all VFs go" || fail "what breaks is said"
if nic switchdev 0000:09:00.0 --yes 2> shown; then fail "a card that is not there"; fi
grep -q "is no card whose driver is known to devlink, which knows .*netdevsim12" shown || fail "$(cat shown)"
echo "ok: what cannot be is said"
nic show || true
